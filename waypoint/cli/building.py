"""Building a Dockerfile with a program of this machine, with the rights of the user who runs the command."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

from waypoint.model.errors import Failed, HostLacks

_FILES = ("Dockerfile", "Containerfile")
_LAYOUT = "oci-layout"
_TRIED = "build"


class _Builder(NamedTuple):
    """`build`: the command, which writes the image's id to a file; the arguments are the Dockerfile, that file, and the
    folder of the build. `save`: the command that writes the image with this id to this archive.
    """

    build: Callable[[str, str, str], list[str]]
    save: Callable[[str, str], list[str]]


_BUILDERS = {
    "buildah": _Builder(
        lambda file, ids, folder: ["build", "--file", file, "--iidfile", ids, folder],
        lambda image, archive: ["push", "--quiet", image.removeprefix("sha256:"), f"oci-archive:{archive}"],
    ),
    "docker": _Builder(
        lambda file, ids, folder: ["build", "--file", file, "--iidfile", ids, folder],
        lambda image, archive: ["save", "--output", archive, image],
    ),
}


def dockerfile_of(source: str) -> str | None:
    """The Dockerfile that `source` names: the file itself, or that of a folder which is no image layout."""
    if os.path.isdir(source):
        if os.path.lexists(f"{source}/{_LAYOUT}"):
            return None
        return next((f"{source}/{name}" for name in _FILES if os.path.isfile(f"{source}/{name}")), None)
    name = os.path.basename(source)
    is_one = any(name == one or name.startswith(f"{one}.") or name.endswith(f".{one.lower()}") for one in _FILES)
    return source if is_one and os.path.isfile(source) else None


@contextlib.contextmanager
def built(file: str) -> Iterator[str]:
    """Build the Dockerfile `file` in its folder; yield the path of an archive with the image, which exists for the
    `with` block. The builder's output goes to stderr. Raises HostLacks, Failed.
    """
    found = next(((path, one) for name, one in _BUILDERS.items() if (path := shutil.which(name))), None)
    if found is None:
        said = f"none of the programs {' and '.join(_BUILDERS)} is on the PATH"
        next_step = (
            "install buildah or docker; or build it elsewhere, and name the archive of 'docker save NAME -o FILE'"
        )
        raise HostLacks(_TRIED, file, said, next_step)
    program, builder = found
    with tempfile.TemporaryDirectory(prefix="waypoint-build-", dir=os.environ.get("TMPDIR") or "/var/tmp") as place:
        ids, archive = f"{place}/id", f"{place}/image.tar"
        _run([program, *builder.build(file, ids, os.path.dirname(file))], file)
        with open(ids) as opened:
            image = opened.read().strip()
        _run([program, *builder.save(image, archive)], file)
        yield archive


def _run(command: list[str], file: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, check=False)
    if done.returncode:
        said = f"'{os.path.basename(command[0])} {command[1]}' has ended with status {done.returncode}"
        raise Failed(_TRIED, file, said, "see its messages above")
