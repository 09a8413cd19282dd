"""The kit: Waypoint's own files and folders in every session, built once per daemon on a tmpfs.

The kit is on a tmpfs because overlayfs refuses a lower layer that lies inside another lower layer's file system tree
(ELOOP), and the home usually lies below `/`. The kit holds:

* `dev-...`: device nodes, and an empty folder for masks, bound read-only over `/dev` of every session. The root overlay
  itself is `nodev`: a node anywhere else in the base does not open.
* a *skeleton* per base and per map of ids, the topmost lower layer of the root overlay: an empty `/dev`, `/run`,
  `/proc`, `/sys`; `/.waypoint` with the script of pid 1, setsid and shell hooks; empty folders that hide all homes.
* `criu-run`: becomes `/run` of CRIU, which keeps its cache of kernel features only on a tmpfs.
* `layers`: mount points for what sessions get through idmapped mounts, each in a mount namespace of its own.

The files that a session sees of the kit are made with its shifted ids as their owners, because a tmpfs can be idmapped
only since Linux 6.3. The folders that lead there have mode 0711, so that a session's root can pass.
"""

import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from waypoint.launch.ground.apart import WHOLE, Apart
from waypoint.launch.ground.base import is_below
from waypoint.launch.ground.leader import place_setsid
from waypoint.linux.calls import powers
from waypoint.linux.storage import beneath, files, mounts
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import HostLacks
from waypoint.model.paths import COMMAND_FOLDER, OWN_FOLDER, sha256_hex
from waypoint.model.records import NOBODY, IdMap

_NODES = (("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0))
_PROC = "/proc"  # in the session
_LINKS = (
    ("ptmx", "pts/ptmx"),
    ("fd", f"{_PROC}/self/fd"),
    ("stdin", "fd/0"),
    ("stdout", "fd/1"),
    ("stderr", "fd/2"),
)
# wrapper.sh, init.sh, run.sh: for captures of earlier versions, which have them open.
_SCRIPTS = ("first.sh", "init.sh", "wrapper.sh", "run.sh", "child.sh")
_COMMANDS = {"bin": "waypoint.sh", "command": "ask.sh", "request": "request.sh", COMMAND_FOLDER: "asking.sh"}
"""The folders with a command `waypoint`, and the script that it is. All but the last are in the PATH of sessions that
earlier versions have captured.
"""
_PROGRAMS = ("setsid", *_SCRIPTS, "waypoint")
_MOST_RESOLVER_BYTES = _MOST_COPIED_BYTES = 1 << 20
_HOOKS = Path(__file__).resolve().parents[3] / "shellwrap"


class Kit:
    """The kit at `folder`, in a mount namespace of the daemon's own; it vanishes with the last process that uses it."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self._home = home
        self.criu_run = folder / "criu-run"
        self.layers = folder / "layers"
        self._building = threading.Lock()  # sessions are planned in several threads

    def mount(self) -> None:
        """Mount the tmpfs and make `criu-run` and `layers` in it. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        mounts.mount("tmpfs", self.folder, "tmpfs", mounts.MS_NOSUID, "mode=0711")
        os.umask(0o022)  # also for what is built later: it is for every user of a session
        for folder in (self.criu_run, self.layers):
            files.make_folder(str(folder), 0o711)
        if not powers.is_machines():
            _try_overlay(self.folder)

    def dev(self, ids: IdMap) -> str:
        """The host folder that is bound over `/dev` of the sessions with `ids`. Built at first use. Raises OSError."""
        return str(self._built(f"dev-{ids.first}", ids, _fill_dev))

    def skeleton(
        self, base: str, target: str, ids: IdMap, known: Sequence[str], resolver: str = "", apart: Apart = WHOLE
    ) -> str | None:
        """The skeleton for the overlay at `target` of `base`: a host folder that is its topmost lower layer, or None
        if that overlay needs none. `ids`: the session's. `known`: the homes that it hides (homes.py). `resolver`: the
        address that is asked for names, "": as on the machine. Built at first use. Raises HostLacks if the machine has
        no setsid, OSError.

        `apart`: as in apart.py; if it names this overlay a stand-in, the skeleton is its only lower layer.
        """
        inside = str(Path(base) / target.lstrip("/"))
        hidden = _outermost(home for home in (str(self._home), *known) if is_below(home, inside))
        if not is_below("/etc", target):
            resolver = ""  # the file is in another overlay
        is_stand_in = target in apart.stand_ins
        ways = [way for way in apart.ways if is_below(way, target)]
        if target != "/" and not hidden and not resolver and not is_stand_in and not ways:
            return None
        stamp = str(os.stat(inside).st_mtime_ns) if is_stand_in else ""
        about = "\0".join((base, target, ids.lines(), resolver, *hidden, stamp, *ways))
        name = sha256_hex(about.encode(errors="surrogateescape"))[:16]

        def fill(place: Path) -> None:
            if target == "/":
                self._fill_root(place, base)
            if resolver:
                _name_resolver(place, base, target, resolver)
            if is_stand_in:
                _stand_in(place, inside)
            for way in ways:
                with contextlib.suppress(FileNotFoundError):
                    _lead_to(place, inside, Path(way))
            for home in hidden:
                with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                    _hide(_lead_to(place, inside, Path(home)))

        return str(self._built(f"skeleton-{name}", ids, fill))

    def _built(self, name: str, ids: IdMap, fill: Callable[[Path], None]) -> Path:
        """The folder `name` of the kit. If it is missing, it is made, `fill` fills it, and its content gets the owners
        that it must have by `ids`.
        """
        place = self.folder / name
        with self._building:
            if place.exists():
                return place
            aside = self.folder / f"new-{name}"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(mode=0o755)
            fill(aside)
            if ids.is_shifted:
                for path in (aside, *aside.rglob("*")):
                    found = path.lstat()
                    os.chown(path, *(_outside(ids, own) for own in (found.st_uid, found.st_gid)), follow_symlinks=False)
            aside.rename(place)
        return place

    def _fill_root(self, place: Path, base: str) -> None:
        for name in ("dev", "run", "proc", "sys"):
            (place / name).mkdir(mode=0o755)
        if powers.is_machines():  # else this is a stand-in: proc is mounted below /
            for name in ("dev", "run"):
                _hide(place / name)
        if not beneath.is_in_root(base, "tmp/"):
            (place / "tmp").mkdir()
            (place / "tmp").chmod(0o1777)
        (place / "run/lock").mkdir()
        (place / "run/lock").chmod(0o1777)
        _keep_resolver(place, base)
        own = place / OWN_FOLDER
        own.mkdir(mode=0o755)
        place_setsid(own, f"/{OWN_FOLDER}", base)
        for name in (*_SCRIPTS, "hooks.bash", "state.bash"):
            shutil.copy(_HOOKS / name, own / name)
        for folder, script in _COMMANDS.items():
            (own / folder).mkdir()
            shutil.copy(_HOOKS / script, own / folder / "waypoint")
        shutil.copytree(_HOOKS / "zdotdir", own / "zdotdir")
        for path in (own, *own.rglob("*")):
            is_program = path.name in _PROGRAMS or path.parent.name == "lib"  # a loader is executed
            path.chmod(0o755 if path.is_dir() or is_program else 0o644)


def _try_overlay(folder: Path) -> None:
    """Raise HostLacks if the kernel gives an ordinary user no overlay that hides things, on the tmpfs at `folder`."""
    place, lower, below = (folder / name for name in ("trial", "trial-lower", "trial-below"))
    for one in (place, lower / "hidden", below):
        one.mkdir(parents=True, exist_ok=True)
    try:
        _hide(lower / "hidden")
        mounts.mount("overlay", place, "overlay", mounts.MS_RDONLY, f"lowerdir={lower}:{below},userxattr")
    except OSError as error:
        said = f"{powers.WITHOUT_ROOT}, and the kernel gives no overlay then: {error.strerror or error}"
        next_step = f"a kernel of at least 5.11; or {powers.AS_ROOT}"
        raise HostLacks("start", "sessions", said, next_step) from error
    mounts.umount(place, mounts.MNT_DETACH)


def _outside(ids: IdMap, number: int) -> int:
    try:
        return ids.outside(number)
    except ValueError:  # the session has no such id, and sees a nobody
        return ids.outside(NOBODY)


def _fill_dev(place: Path) -> None:
    for name, major, minor in _NODES:
        if powers.is_machines():
            os.mknod(place / name, 0o020600, os.makedev(major, minor))
            (place / name).chmod(0o666)
        else:  # a node of the machine's; read-only as all of /dev, which does not keep it from being written to
            (place / name).touch()
            mounts.bind(f"/dev/{name}", place / name)
            mounts.remount_bind(place / name, mounts.MS_RDONLY | mounts.MS_NOSUID)
    for name, target in _LINKS:
        (place / name).symlink_to(target)
    for name in ("pts", ".empty"):
        (place / name).mkdir(mode=0o755)
    (place / "shm").mkdir()
    (place / "shm").chmod(0o1777)


def _lead_to(place: Path, inside: str, path: Path) -> Path:
    """Make the folder at `path` of the base in the skeleton `place`, and return it. It and the folders above it get the
    modes and owners of the base, because a session sees those of the topmost layer. Raises OSError if a part of `path`
    is a link, which may be of the session's user.
    """
    folder = place
    with open_folder(inside) as root:
        for part in path.relative_to(inside).parts:
            folder /= part
            with beneath.opened(root, str(folder.relative_to(place))) as fd:
                facts = os.fstat(fd)
            folder.mkdir(exist_ok=True)
            take_owner(folder, facts)
    return folder


def _outermost(folders: Iterable[str]) -> list[str]:
    """The folders, sorted, without those that are below another."""
    found: list[str] = []
    for folder in sorted(set(folders)):
        if not any(is_below(folder, other) for other in found):
            found.append(folder)
    return found


def _hide(folder: Path) -> None:
    """Let the folder of a lower layer hide what is under it: by a mark; without root by a whiteout in its place, which
    makes it missing instead of empty, as a tmpfs takes no marks of users before Linux 6.6 (overlayfs.rst; whiteouts are
    for everybody since Linux 5.8).
    """
    if powers.is_machines():
        os.setxattr(folder, powers.overlay_mark("opaque"), b"y")
    else:
        folder.rmdir()
        os.mknod(folder, stat.S_IFCHR, os.makedev(0, 0))


def take_owner(folder: Path, facts: os.stat_result) -> None:
    """Give `folder` owner and mode by `facts`; the owner only if the caller may give it away."""
    with contextlib.suppress(*() if powers.is_machines() else (OSError,)):
        os.chown(folder, facts.st_uid, facts.st_gid)
    folder.chmod(facts.st_mode & 0o7777)


def _stand_in(place: Path, inside: str) -> None:
    """Fill `place` with the names that are in the folder `inside`: folders are empty, large files are left out."""
    with os.scandir(inside) as entries:
        for entry in entries:
            target = place / entry.name
            with contextlib.suppress(OSError):  # it was removed meanwhile, or cannot be read
                if target.exists():
                    continue
                if entry.is_symlink():
                    target.symlink_to(os.readlink(entry.path))
                elif entry.is_dir():
                    target.mkdir()
                    target.chmod(entry.stat().st_mode & 0o7777)
                elif entry.is_file() and entry.stat().st_size <= _MOST_COPIED_BYTES:
                    shutil.copy2(entry.path, target)


def _name_resolver(place: Path, base: str, target: str, resolver: str) -> None:
    """Put a resolv.conf into the skeleton `place` that names `resolver`, whatever the base's is."""
    folder = place / os.path.relpath("/etc", target)
    with contextlib.suppress(FileNotFoundError):  # a base without /etc
        with open_folder(base) as root, beneath.opened(root, "etc") as etc:
            found = os.fstat(etc)
        folder.mkdir(exist_ok=True)
        take_owner(folder, found)
        (folder / "resolv.conf").write_text(f"nameserver {resolver}\n")


def _keep_resolver(place: Path, base: str) -> None:
    """Copy the file that the base's /etc/resolv.conf links to, if that is in /run: the session's /run is empty
    otherwise.
    """
    try:
        with open_folder(base) as root, beneath.opened(root, "etc") as etc:
            link = os.readlink("resolv.conf", dir_fd=etc)
    except OSError:  # a file, or none
        return
    target = os.path.normpath(os.path.join("/etc", link))
    if not target.startswith("/run/"):
        return
    content = beneath.read_in_root(base, target, _MOST_RESOLVER_BYTES, across=base == "/")
    if content is not None:
        copy = place / target.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
