"""Building CRIU with Waypoint's patches (`criu/` of the project), once for each machine (criu/README.md).

    /var/cache/waypoint/criu-4.2.1-<key>/    criu (a static program), criu_4.2.1.orig.tar.xz, SHA256SUMS

The key is a digest of the source, the patches and the recipe below. The compiler and the libraries come from Debian's
packages, unpacked below the cache and removed after the build, so nothing of the machine is used or changed. The
program names its key as CRIU's GitID, which tells it from other CRIUs. Standard library only: `dev` imports this file.
"""

import contextlib
import datetime
import hashlib
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

from waypoint.linux.storage import files, filesystem, ownership
from waypoint.model.errors import HostLacks, WaypointError
from waypoint.setup import debian_packages
from waypoint.setup.debian_packages import OWN_CRIU, Archive

VERSION = "4.2.1"
TARBALL = f"criu_{VERSION}.orig.tar.xz"
TARBALL_SHA256 = "29ec0ee09e296479fe7048c80980e8ef1d0684d0b0204c2b101dfea19f6725b9"
PATCHES = Path(__file__).resolve().parent / "criu_source/patches"  # a checkout has a link to its folder criu here
CACHE = Path("/var/cache/waypoint")
GITID = "waypoint-"  # the prefix of the key in the program's GitID; also in processes/criu/rpc.py, which imports much
WHEEL = "waypoint_criu"  # the module of the package waypoint-criu
KEPT = 8  # how many programs stay in the cache, for other versions of Waypoint on this machine

SUITE = "forky"
PACKAGES = """
base-files bash coreutils dash findutils gcc grep libc6-dev libcap-dev libnet1-dev libnl-3-dev libprotobuf-c-dev
libprotobuf-dev make mawk patch pkgconf protobuf-c-compiler protobuf-compiler sed tar uuid-dev xz-utils
"""
# Applies patches in order, and stops at the first that does not apply. Arguments: the source's folder, the patches.
APPLY = """
cd "$1" && shift
for patch do
    patch -p1 -F1 -N -s --no-backup-if-mismatch <"$patch" || { echo "${patch##*/} does not apply" >&2; exit 1; }
done
"""
# Arguments: the folder with the source, the GitID. The program is static, so that it starts in 1 ms and needs nothing.
MAKE = """
cd "$1" && make -s -j"$(nproc)" NO_GNUTLS=1 WERROR=0 GMONLDOPT=-static GITID="$2" criu && strip -o ../criu criu/criu
"""
# Runs a script in the root $0, inside mounts of its own. protoc needs /proc: it finds its files by /proc/self/exe.
_ENTER = """
mount --bind /dev "$0/dev"
mount --bind /proc "$0/proc"
exec chroot "$0" /usr/bin/env -i PATH=/usr/bin HOME=/ LC_ALL=C sh -ec "$@"
"""
_ROOM_BYTES = 800 << 20  # for the packages, their unpacked files, and the objects of the build
_WORK_PREFIX = ".criu-build-"
_FOLDER_PREFIX = "criu-"
_TELLING = re.compile(r"\berror\b|not found|No rule|No space left|does not apply")
_SUMS = "SHA256SUMS"

Say = Callable[[str], None]


def key() -> str:
    """The key of the program that this Waypoint builds: 12 hex digits."""
    digest = hashlib.sha256("\n".join([TARBALL_SHA256, SUITE, PACKAGES, APPLY, MAKE, _ENTER]).encode())
    for patch in patches():
        digest.update(patch.name.encode() + b"\0" + patch.read_bytes())
    return digest.hexdigest()[:12]


def patches() -> list[Path]:
    """The patches in the order in which they are applied."""
    return sorted(PATCHES.glob("*.patch"))


def built() -> Path | None:
    """The program in the machine's cache; None if there is none with our key, if it is damaged, or if a user other than
    root could have changed it.
    """
    folder = _folder()
    try:
        ownership.check_home(str(folder))
        if (folder / "criu").stat().st_mode & 0o022:
            return None
        lines = (folder / _SUMS).read_text().splitlines()
        return folder / "criu" if lines and lines == list(sums(folder)) else None
    except (OSError, WaypointError):
        return None


def packaged() -> tuple[Path, str] | None:
    """The program of the installed package waypoint-criu, and the key from which it was built; None without it."""
    for place in [str(Path(__file__).resolve().parents[2]), *sys.path]:
        with contextlib.suppress(OSError):
            folder = Path(place) / WHEEL
            return folder / "criu", (folder / "KEY").read_text().strip()
    return None


def build(say: Say, *, mirror: str | None = None) -> Path:
    """Build the program into the machine's cache, unless it is there; return its path. Takes about a minute.

    `say` prints the progress. `mirror`: the URL of a Debian mirror to use instead of the
    one that the machine's apt uses. Builds at the same time wait for each other. After a failure or a kill nothing
    usable remains, and the next build removes the remains. Raises HostLacks.
    """
    present = built()
    if present is not None:
        with contextlib.suppress(PermissionError):  # not root
            os.utime(_folder())  # for `sweep`
        return present
    if os.geteuid() != 0:
        raise HostLacks("build", f"CRIU in {CACHE}", "only root may do this", "sudo criu/build")
    debian_packages.require_tools()
    keyring = debian_packages.find_keyring()
    try:
        for folder in (CACHE.parent, CACHE):
            files.make_folder(str(folder), 0o755)
        try:
            ownership.check_home(str(CACHE))
        except HostLacks as error:
            raise HostLacks("build CRIU in", str(CACHE), error.said, error.next_step) from error
        lock = files.lock_folder(str(CACHE))
        try:
            sweep()
            if built() is None:
                _require_room()
                _build_and_publish(say, mirror or debian_packages.find_mirror(), keyring)
            return _folder() / "criu"
        finally:
            sweep()
            with contextlib.suppress(OSError):  # not empty
                CACHE.rmdir()
            os.close(lock)
    except OSError as error:
        said = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        raise HostLacks("build CRIU in", str(CACHE), said, "repair this, and run setup again") from error


def write_wheel(target: Path) -> Path:
    """Write the package waypoint-criu, a wheel with the built program and its source, into the folder `target`."""
    program = _folder() / "criu"
    version = f"{VERSION}.post{datetime.datetime.now(datetime.UTC):%Y%m%d%H%M%S}"
    tag = f"py3-none-manylinux_2_17_{os.uname().machine}.musllinux_1_1_{os.uname().machine}"
    info = f"{WHEEL}-{version}.dist-info"
    with tarfile.open(_folder() / TARBALL) as source:
        licence = source.extractfile(f"criu-{VERSION}/COPYING")
        assert licence is not None
        content = {
            f"{WHEEL}/criu": program.read_bytes(),
            f"{WHEEL}/KEY": f"{key()}\n".encode(),
            f"{WHEEL}/source/{TARBALL}": (_folder() / TARBALL).read_bytes(),
            **{f"{WHEEL}/source/patches/{patch.name}": patch.read_bytes() for patch in patches()},
            f"{info}/licenses/COPYING": licence.read(),
            f"{info}/METADATA": _METADATA.format(version=version).encode(),
            f"{info}/WHEEL": _WHEEL.format(
                tags="".join(f"Tag: py3-none-{one}\n" for one in tag[9:].split("."))
            ).encode(),
        }
    record = "".join(f"{name},sha256={_base64(data)},{len(data)}\n" for name, data in content.items())
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = target / f"{WHEEL}-{version}-{tag}.whl"
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name == f"{WHEEL}/criu" else 0o100644) << 16
            archive.writestr(entry, data)
    return wheel


_METADATA = """\
Metadata-Version: 2.4
Name: waypoint-criu
Version: {version}
Summary: CRIU with the patches of Waypoint, a static program with its source
License-Expression: GPL-2.0-only
License-File: COPYING
"""
_WHEEL = """\
Wheel-Version: 1.0
Generator: criu/build
Root-Is-Purelib: false
{tags}"""


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def _folder() -> Path:
    return CACHE / f"{_FOLDER_PREFIX}{VERSION}-{key()}"


def sums(folder: Path) -> Iterator[str]:
    """The lines of SHA256SUMS for the files in `folder`."""
    for name in ("criu", TARBALL):
        with (folder / name).open("rb") as file:
            yield f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}"


def _require_room() -> None:
    free = filesystem.free_bytes(CACHE)
    if free < _ROOM_BYTES:
        said = f"no space left: {free >> 20} MiB are free there, {_ROOM_BYTES >> 20} MiB are needed during the build"
        raise HostLacks("build CRIU in", str(CACHE), said, "free some space on that file system")


def _build_and_publish(say: Say, mirror: str, keyring: Path) -> None:
    say(f"building CRIU {VERSION} with Waypoint's patches from {mirror}: takes about a minute, once for each machine")
    work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=CACHE))
    made, root = work / "made", work / "root"
    for folder in (work / "apt", made, root):
        folder.mkdir()
    archive = Archive(work / "apt", mirror=mirror, suite=SUITE, keyring=keyring)
    archive.update(say)
    archive.fetch(f"pool/main/c/criu/{TARBALL}", TARBALL_SHA256, made / TARBALL)
    debian_packages.unpack(archive.download(*PACKAGES.split()), root)
    program = compile_in(root, made / TARBALL, patches(), GITID + key())
    shutil.copy(program, made / "criu")
    _try(made / "criu")
    (made / _SUMS).write_text("".join(f"{line}\n" for line in sums(made)))
    for path in (*made.iterdir(), made):
        path.chmod(0o644 if path.suffix or path.name == _SUMS else 0o755)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.fsync(fd)
        os.close(fd)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(_folder())  # the present program is damaged, or could have been changed by another user
    made.rename(_folder())
    files.sync_folder(str(CACHE))
    say(f"built CRIU {VERSION} in {_folder()}")


def compile_in(root: Path, tarball: Path, series: list[Path], gitid: str) -> Path:
    """Build CRIU from `tarball` with the patches `series` in the build root `root`. Returns the program's path."""
    place = root / "tmp"
    (root / "usr/bin/awk").symlink_to("mawk")  # the link of Debian's alternatives, which a script of the package makes
    for path in (tarball, *series):
        shutil.copy(path, place)
    _in_root(root, 'cd /tmp && mkdir source && tar -xf "$0" --strip-components=1 -C source', tarball.name)
    _in_root(root, APPLY, "apply", "/tmp/source", *(f"/tmp/{patch.name}" for patch in series))
    _in_root(root, MAKE, "make", "/tmp/source", gitid)
    return place / "criu"


def _in_root(root: Path, script: str, *args: str) -> None:
    """Run `script` in `root`, without a network. If this process is killed, all processes of the script end."""
    own = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-ec", _ENTER, str(root)]
    done = debian_packages.run([*own, script, *args])
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit status {done.returncode}"]
        # Errors of the compiler come before make's own; a patch that does not apply is named last.
        telling = [line for line in lines if _TELLING.search(line)] or lines[-2:]
        raise HostLacks("build", f"CRIU {VERSION} with Waypoint's patches", "; ".join(telling[:3]), OWN_CRIU)


def _try(program: Path) -> None:
    done = debian_packages.run([str(program), "--version"])
    if f"Version: {VERSION}\nGitID: {GITID}{key()}\n" not in done.stdout:
        said = (done.stdout + done.stderr).strip() or f"exit status {done.returncode}"
        raise HostLacks("run", f"the new CRIU {VERSION}", said, OWN_CRIU)


def sweep() -> None:
    """Remove the remains of killed builds, and all programs but the KEPT that were built or requested last. A running
    CRIU is not disturbed.
    """
    found = sorted(CACHE.glob(f"{_FOLDER_PREFIX}*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in [*CACHE.glob(f"{_WORK_PREFIX}*"), *found[KEPT:]]:
        shutil.rmtree(path, ignore_errors=True)


def main(argv: list[str]) -> int:
    """The program criu/build: build, then print the path of the program or, with --wheel [FOLDER], of the wheel."""
    if argv[:1] not in ([], ["--wheel"]) or len(argv) > 2:
        print("usage: criu/build [--wheel [FOLDER]]", file=sys.stderr)
        return 2
    try:
        program = build(lambda text: print(text, file=sys.stderr))
        print(write_wheel(Path(argv[1] if argv[1:] else "dist")) if argv else program)
    except WaypointError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0
