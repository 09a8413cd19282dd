"""Unpacking a container image: from a layout or a `docker save` archive to a folder with the files of its layers."""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from waypoint.linux.storage import filesystem
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import MAKE_ROOM, Failed, StoreDamaged, UsageProblem, of_machine
from waypoint.model.records import ImageConfig
from waypoint.store.archives.layout import BadLayout
from waypoint.store.oci import manifests
from waypoint.store.oci.files import AsUser, Files, opened_files
from waypoint.store.oci.layers import LayerFile, Tree

_TRIED = "unpack the image"
_ANOTHER = "save the image again ('docker save NAME -o FILE', 'skopeo copy ... oci-archive:FILE'), and name that file"
_SHOWN = 3


class Source(NamedTuple):
    """`fd`: an open folder or regular file. `path`: for errors. `as_user`: gives the thread the rights of the user who
    named the source; files in a folder are opened with them.
    """

    fd: int
    path: str
    as_user: AsUser = contextlib.nullcontext


class OciImage(msgspec.Struct, frozen=True, kw_only=True):
    """`digest`: of the manifest, or of the configuration in an archive of an old `docker save`. `name`: as the source
    states it. `size_bytes`: of the layers, decompressed. `degraded`: what the folder lacks.
    """

    digest: str
    name: str
    platform: str
    config: ImageConfig
    size_bytes: int
    degraded: list[Degradation] = []


def unpack_oci(
    source: Source,
    destination: int,
    scratch: str,
    *,
    platform: str = "",
    on_progress: Callable[[int], None] = lambda _: None,
) -> OciImage:
    """Fill the open, empty folder `destination`, which nobody else may change, with the files of the image.

    `scratch`: a folder on the same disk, for nameless files. `platform`: "linux/arm64" or the like; "": this machine's.
    `on_progress`: gets the bytes unpacked so far. Raises UsageProblem for a source that is no
    image, StoreDamaged for a damaged or refused image, Failed; a part is there then.
    """
    max_bytes = filesystem.free_bytes(destination)
    try:
        with contextlib.ExitStack() as held:
            files = _opened(held, source, scratch, max_bytes)
            image = manifests.choose(files, platform or manifests.machine_platform())
            tree = Tree(destination)
            done = 0

            def report(size: int) -> None:
                on_progress(done + size)

            for layer in image.layers:
                with files.open(layer.file) as part:
                    content = LayerFile(part, layer, max_bytes - done, report)
                    tree.apply(content)
                    done += content.finish()
            tree.finish()
    except BadLayout as error:
        raise StoreDamaged(_TRIED, source.path, str(error), _ANOTHER, code="image-refused") from error
    except OSError as error:
        code = of_machine(error.errno)
        next_step = MAKE_ROOM if code == "disk-full" else ""
        raise Failed(_TRIED, source.path, error.strerror or str(error), next_step, code=code) from error
    return OciImage(
        digest=image.digest,
        name=image.name,
        platform=platform or manifests.machine_platform(),
        config=image.config,
        size_bytes=done,
        degraded=_degraded(tree),
    )


def _opened(held: contextlib.ExitStack, source: Source, scratch: str, max_bytes: int) -> Files:
    """The files of the image. Raises UsageProblem for a source that is something else."""
    try:
        files = held.enter_context(opened_files(source.fd, source.as_user, scratch, max_bytes))
        if manifests.is_image(files):
            return files
        said = "it has neither the file oci-layout of an image layout nor the manifest.json of docker"
    except BadLayout as error:
        said = str(error)
    raise UsageProblem(_TRIED, source.path, said, _ANOTHER)


def _degraded(tree: Tree) -> list[Degradation]:
    found = []
    if tree.devices:
        found.append(degradation("devices-left-out", ", ".join(tree.devices[:_SHOWN]), str(len(tree.devices))))
    if tree.attributes:
        names = ", ".join(sorted(tree.attributes)[:_SHOWN])
        found.append(degradation("attributes-left-out", names, str(tree.attributes.total())))
    return found
