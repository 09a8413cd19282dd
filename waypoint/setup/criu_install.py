"""Installing a private CRIU below the home, with its own loader and libraries, from Debian's packages.

    <home>/criu                      symbolic link to the folder below; replaced by rename
    <home>/criu-4.2.1-1-<hash>/      bin/criu, lib/, share/MANIFEST (the packages), share/FILES (digests of all files)
    /var/cache/waypoint/private-<id of the home>     the digest of share/FILES, by which the machine knows its own CRIU

A home may come from elsewhere, with another program in it: one whose digest is not in the machine's cache is not run.
The folder's real path is stored in the program (its loader and RPATH, ld.so(8)), so a folder is built for its final
path and cannot be moved. After the home was moved, CRIU must be installed again.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from waypoint.linux.storage import files, filesystem
from waypoint.model.errors import HostLacks
from waypoint.model.paths import home_id, sha256_hex
from waypoint.processes.own_libraries import find_patchelf, give_libraries
from waypoint.setup import debian_packages
from waypoint.setup.criu_build import CACHE
from waypoint.setup.debian_packages import OWN_CRIU, Archive

SUITE = "forky"
PACKAGE = "criu"
PROGRAM = "usr/sbin/criu"
# Since Linux 6.16 the kernel refuses SO_PASSCRED on sockets that are not Unix sockets. CRIU up to 4.1.1 reads this
# option, so it cannot dump a process with a TCP or UDP socket on these kernels (checkpoint-restore/criu, issue 2705).
FLOOR = (4, 2)
_ROOM_BYTES = 160 << 20  # for the list of packages, the packages, their unpacked files, and the installed files

_LINK = "criu"
_LOCK = "criu.lock"
_BUILD_PREFIX = ".criu-build-"
_FOLDER = re.compile(r"criu-[0-9][^/]*")


def installed(home: Path) -> Path | None:
    """The program of the home's private CRIU; None if there is none, one of its files has changed, or it was not
    installed on this machine.
    """
    program = home / _LINK / "bin/criu"
    with contextlib.suppress(OSError, ValueError):
        folder = (home / _LINK).resolve(strict=True)
        listed = (folder / "share/FILES").read_bytes()
        is_known = known(home).read_text() == sha256_hex(listed)
        lines = listed.decode().splitlines()
        if is_known and lines == list(_iter_digests(folder)) and f"{folder}/lib/".encode() in program.read_bytes():
            return program
    return None


def install(home: Path, say: Callable[[str], None], *, mirror: str | None = None) -> Path:
    """Install a private CRIU in `home`, unless it has an intact one; return the path of its program.

    `say` is called with short sentences about the progress. `mirror`: the URL of a Debian mirror to use instead of the
    one that the machine's apt uses.

    If the install fails or is killed, the home keeps the CRIU that it had, if any; the next install removes the files
    of the killed one. Installs at the same time wait for each other. Raises HostLacks: no apt, no network, no such
    package, disk full.
    """
    present = installed(home)
    if present is not None:
        return present
    debian_packages.require_tools()
    find_patchelf()  # raises HostLacks before anything is downloaded
    keyring = debian_packages.find_keyring()
    made_home = not home.exists()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with files.locked(str(home / _LOCK)):
            try:
                present = installed(home)  # another process may have installed it while this one waited for the lock
                if present is None:
                    _sweep(home)
                    _require_room(home)
                    archive_uri = mirror or debian_packages.find_mirror()
                    present = _build_and_publish(home, archive_uri, keyring, say)
            finally:
                _sweep(home)
                (home / _LOCK).unlink()
                if made_home:
                    with contextlib.suppress(OSError):  # not empty: CRIU was installed
                        home.rmdir()
    except OSError as error:
        raise _host_lacks(home, error) from error
    return present


def _require_room(home: Path) -> None:
    """Raise HostLacks if the disk has too little free space. This is checked first, because apt does not always report
    a full disk as such (apt 3.0 reports "404 Not Found" for the next file that it tries).
    """
    free = filesystem.free_bytes(home)
    if free < _ROOM_BYTES:
        said = f"no space left: {free >> 20} MiB are free there, {_ROOM_BYTES >> 20} MiB are needed during the install"
        raise HostLacks("install CRIU in", str(home), said, "free some space on that file system")


def _build_and_publish(home: Path, mirror: str, keyring: Path, say: Callable[[str], None]) -> Path:
    work = Path(tempfile.mkdtemp(prefix=_BUILD_PREFIX, dir=home))
    apt = work / "apt"
    apt.mkdir()
    archive = Archive(apt, mirror=mirror, suite=SUITE, keyring=keyring)
    say(f"downloading CRIU from {mirror} (Debian {SUITE})")
    archive.update(say)
    packages = archive.download(PACKAGE)
    say(f"unpacking {len(packages)} packages")
    debian_packages.unpack(packages, work / "root")
    manifest = "".join(f"{p.name} {p.version} {p.architecture} {p.sha256}\n" for p in packages)
    version = next(package.version for package in packages if package.name == PACKAGE)
    digest = hashlib.sha256(f"{home.resolve()}\n{manifest}".encode(errors="surrogateescape")).hexdigest()[:8]
    final = home.resolve() / f"criu-{version}-{digest}"
    made = work / "made"
    _assemble(work / "root", made, final)
    (made / "share").mkdir()
    (made / "share/MANIFEST").write_text(manifest)
    (made / "share/FILES").write_text("".join(f"{line}\n" for line in _iter_digests(made)))
    _make_durable(made)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(final)  # a damaged install: `installed` would have found an intact one
    made.rename(final)
    say("trying this CRIU")
    _try(final / "bin/criu")
    listed = (final / "share/FILES").read_bytes()
    for folder in (CACHE.parent, CACHE):
        files.make_folder(str(folder), 0o755)
    files.publish(str(known(home)), sha256_hex(listed).encode())
    link = work / "link"
    link.symlink_to(final.name)
    link.rename(home / _LINK)
    files.sync_folder(str(home))
    say(f"installed CRIU {version} in {final}")
    return home / _LINK / "bin/criu"


def _assemble(root: Path, made: Path, final: Path) -> None:
    """Copy CRIU's program, loader and libraries from the unpacked packages in `root` to `made`. The paths stored in
    them are for `final`, to which `made` is renamed later.
    """
    (made / "bin").mkdir(parents=True)
    (made / "lib").mkdir()
    loader = next((root / "usr/lib").glob("*/ld-linux-*.so.*"), None)
    if loader is None:
        raise HostLacks(
            "install", "CRIU", "Debian's packages for this architecture contain no dynamic loader", OWN_CRIU
        )
    program = Path(shutil.copy(root / PROGRAM, made / "bin/criu"))
    give_libraries(program, loader, loader.parent, made / "lib", str(final / "lib"))


def known(home: Path) -> Path:
    """The file outside of the home with the digest of the list of digests of its private CRIU."""
    return CACHE / f"private-{home_id(str(home))}"


def _iter_digests(folder: Path) -> Iterable[str]:
    for path in sorted([*folder.glob("bin/*"), *folder.glob("lib/*"), folder / "share/MANIFEST"]):
        with path.open("rb") as file:
            yield f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(folder)}"


def _make_durable(made: Path) -> None:
    for path in made.rglob("*"):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _try(program: Path) -> None:
    words = _output([str(program), "--version"])
    match = re.search(r"^Version: (\d+)\.(\d+)", words, re.MULTILINE)
    if match is None or (int(match[1]), int(match[2])) < FLOOR:
        raise HostLacks(
            "install", "CRIU", f"Debian {SUITE} has {words.strip()}, but Waypoint needs 4.2 or newer", OWN_CRIU
        )


def _output(command: list[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise HostLacks("install", "CRIU", f"{command[0]}: {words}", OWN_CRIU)
    return done.stdout


def _sweep(home: Path) -> None:
    """Remove the folders of killed installs and of earlier versions of CRIU."""
    in_use = (home / _LINK).readlink().name if (home / _LINK).is_symlink() else ""
    for path in home.iterdir():
        left_over = path.name.startswith(_BUILD_PREFIX) or (_FOLDER.fullmatch(path.name) and path.name != in_use)
        if left_over and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _host_lacks(home: Path, error: OSError) -> HostLacks:
    said = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    return HostLacks("install CRIU in", str(home), said, "repair this, and run setup again")
