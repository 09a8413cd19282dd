"""The kit: Waypoint's own files and folders in every session, built once per daemon on a tmpfs.

The kit is on a tmpfs because overlayfs refuses a lower layer inside the file system tree of another lower layer
(ELOOP), and the home usually is below `/`. The kit contains:

* `own-...`, one for each session: `dev`, with device nodes and an empty folder that covers masked folders, and `sys`,
  with empty folders and the mount points of the shown parts of sysfs. They are bound read-only over the session's
  `/dev` and `/sys`. If sessions shared them, a session could watch and lock (inotify, flock) the `/dev/null` of others.
  The root overlay is `nodev`, so device nodes elsewhere in the base cannot be opened.
* a *skeleton* per base and id map, the topmost lower layer of the root overlay: an empty `/dev`, `/run`, `/proc`,
  `/sys`; `/.waypoint` with the script of pid 1, setsid and shell hooks; empty folders that hide all homes.
* `criu-run`: the `/run` of CRIU, which caches kernel features only on a tmpfs.
* `layers`: mount points for the idmapped layers, which each session's start mounts in its own mount namespace.

The owners of the kit's files are shifted ids, because a tmpfs can be idmapped only since Linux 6.3. The folders that
contain them have mode 0711, so that a session's root can enter them.
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from waypoint.launch.externals import SHOWN_OF_SYS
from waypoint.launch.ground.frame import Frame
from waypoint.launch.ground.leader import place_setsid
from waypoint.launch.spec import BindMount
from waypoint.launch.walls import masks
from waypoint.linux.calls import abilities
from waypoint.linux.storage import beneath, files, mounts
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.storage.filesystem import make_whiteout
from waypoint.model.paths import COMMAND_FOLDER, OWN_FOLDER, is_below, sha256_hex
from waypoint.model.records import NOBODY, IdMap
from waypoint.upper.marks import OPAQUE

_NODES = (("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0))
_PROC = "/proc"  # the path in the session
_LINKS = (
    ("ptmx", "pts/ptmx"),
    ("fd", f"{_PROC}/self/fd"),
    ("stdin", "fd/0"),
    ("stdout", "fd/1"),
    ("stderr", "fd/2"),
)
# Processes in captures of earlier versions have init.sh, wrapper.sh and run.sh open, so these must stay.
_SCRIPTS = ("first.sh", "init.sh", "wrapper.sh", "run.sh", "child.sh")
_COMMANDS = {"bin": "waypoint.sh", "command": "ask.sh", "request": "request.sh", COMMAND_FOLDER: "asking.sh"}
"""The folders with a command `waypoint`, each with the script that becomes this command. New sessions have only the
last folder in their PATH; sessions captured by earlier versions have the others.
"""
_PROGRAMS = ("setsid", *_SCRIPTS, "waypoint")
_MOST_RESOLVER_BYTES = 1 << 20
_HOOKS = Path(__file__).resolve().parents[3] / "shellwrap"


class Kit:
    """The kit at `folder`, in the daemon's mount namespace."""

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
        os.umask(0o022)  # stays set for the files that are built later: every user of a session must read them
        for folder in (self.criu_run, self.layers):
            files.make_folder(str(folder), 0o711)

    def own(self, session: str, ids: IdMap) -> str:
        """Return the host folder with `dev` and `sys`, which are bound over `/dev` and `/sys` of the session. It is
        built at first use; `forget` removes it. Raises OSError.
        """
        return str(self._built(f"own-{session}-{ids.first}", ids, _fill_own))

    def forget(self, session: str) -> None:
        """Remove what `own` has made. The mounts of a session that lives keep their files."""
        for folder in self.folder.glob(f"own-{session}-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def skeleton(
        self,
        base: str,
        target: str,
        ids: IdMap,
        known: Sequence[str],
        resolver: str = "",
        frame: Frame | None = None,
    ) -> str | None:
        """Return the skeleton for the overlay at `target` of `base`: the host folder that becomes its topmost lower
        layer, or None if the overlay needs none. It is built at first use.

        `ids`: the id map of the session. `known`: the homes to hide (homes.py). `resolver`: the address of the name
        server, or "" for that of the base. `frame`: what the root overlay shows of the base, if the base is no layer of
        it. Raises OSError, and HostLacks if the host has no setsid.
        """
        inside = str(Path(base) / target.lstrip("/"))
        hidden = [home for home in sorted({str(self._home), *known}) if is_below(home, inside)]
        if not is_below("/etc", target):
            resolver = ""  # the file is in another overlay
        if target != "/" and not hidden and not resolver:
            return None
        frame = frame if target == "/" else None
        about = "\0".join((base, target, ids.lines(), resolver, *hidden, *(frame.about() if frame else ())))
        name = sha256_hex(about.encode(errors="surrogateescape"))[:16]

        def fill(place: Path) -> None:
            if target == "/":
                self._fill_root(place, base, frame)
            if resolver:
                _name_resolver(place, base, target, resolver)
            for home in hidden:
                with contextlib.suppress(FileNotFoundError):  # the home has just been removed
                    _hide(place, inside, Path(home))

        return str(self._built(f"skeleton-{name}", ids, fill))

    def _built(self, name: str, ids: IdMap, fill: Callable[[Path], None]) -> Path:
        """Return the folder `name` of the kit. If it is missing, make it, call `fill` to fill it, and shift the owners
        of its content by `ids`.
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
                below = (
                    f"{folder}/{name}" for folder, folders, others in os.walk(aside) for name in (*folders, *others)
                )
                for path in (str(aside), *below):
                    found = os.lstat(path)
                    os.lchown(path, _outside(ids, found.st_uid), _outside(ids, found.st_gid))
            aside.rename(place)
        return place

    def _fill_root(self, place: Path, base: str, frame: Frame | None) -> None:
        for name in ("dev", "run", "proc", "sys"):
            (place / name).mkdir(mode=0o755)
        if frame is not None:
            frame.fill(place)
        else:
            for name in ("dev", "run"):
                os.setxattr(place / name, OPAQUE, b"y")
        if not beneath.is_in_root(base, "tmp/"):
            (place / "tmp").mkdir(exist_ok=True)
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


def _outside(ids: IdMap, number: int) -> int:
    try:
        return ids.outside(number)
    except ValueError:  # the session has no such id
        return ids.outside(NOBODY)


def _fill_own(place: Path) -> None:
    for name in ("dev", "sys"):
        os.mkdir(place / name, 0o755)
    _fill_dev(f"{place}/dev")
    for path in (*masks.EMPTY_IN_SYS, *SHOWN_OF_SYS):
        os.makedirs(f"{place}/sys/{path}", 0o755, exist_ok=True)


def _fill_dev(place: str) -> None:
    for name, major, minor in _NODES:
        if abilities.own().device_nodes:
            os.mknod(f"{place}/{name}", 0o020600, os.makedev(major, minor))
            os.chmod(f"{place}/{name}", 0o666)
        else:  # a mount point (`device_binds`)
            os.close(os.open(f"{place}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for name, target in _LINKS:
        os.symlink(target, f"{place}/{name}")
    for name in ("pts", ".empty", "shm"):
        os.mkdir(f"{place}/{name}", 0o755)
    os.chmod(f"{place}/shm", 0o1777)


def device_binds() -> list[BindMount]:
    """The nodes of a session's /dev, where the kit cannot make them: the machine's own."""
    if abilities.own().device_nodes:
        return []
    names = (f"/dev/{name}" for name, _, _ in _NODES)
    return [BindMount(source=one, target=one, readonly=True, device_nodes=True, ours=True) for one in names]


def _hide(place: Path, inside: str, home: Path) -> None:
    """Put an opaque empty folder over the home into the skeleton `place`, or, without root, the mark of a removed one:
    a tmpfs may have no attributes user.* (before Linux 6.6). The folders above it get the modes and owners of the base,
    because a session sees those of the topmost layer.
    """
    folder = place
    origin = Path(inside)
    *above, last = home.relative_to(inside).parts
    for part in above:
        folder, origin = folder / part, origin / part
        folder.mkdir(exist_ok=True)
        _make_alike(folder, origin.stat())
    if not abilities.own().owners:
        if not os.path.lexists(folder / last):  # else it is the empty copy of it in a split folder (frame.py)
            make_whiteout(folder / last)
        return
    (folder / last).mkdir(exist_ok=True)
    _make_alike(folder / last, home.stat())
    os.setxattr(folder / last, OPAQUE, b"y")


def _make_alike(folder: Path, found: os.stat_result) -> None:
    if abilities.own().owners:
        os.chown(folder, found.st_uid, found.st_gid)
    folder.chmod(found.st_mode & 0o7777)


def _name_resolver(place: Path, base: str, target: str, resolver: str) -> None:
    """Put a resolv.conf that names the server `resolver` into the skeleton `place`. It hides the base's."""
    folder = place / os.path.relpath("/etc", target)
    with contextlib.suppress(FileNotFoundError):  # a base without /etc
        with open_folder(base) as root, beneath.opened(root, "etc") as etc:
            found = os.fstat(etc)
        folder.mkdir(exist_ok=True)
        _make_alike(folder, found)
        (folder / "resolv.conf").write_text(f"nameserver {resolver}\n")


def _keep_resolver(place: Path, base: str) -> None:
    """If the base's /etc/resolv.conf is a link to a file in /run, copy that file, since the session's /run is empty."""
    try:
        with open_folder(base) as root, beneath.opened(root, "etc") as etc:
            link = os.readlink("resolv.conf", dir_fd=etc)
    except OSError:  # it is a regular file, or does not exist
        return
    target = os.path.normpath(os.path.join("/etc", link))
    if not target.startswith("/run/"):
        return
    content = beneath.read_in_root(base, target, _MOST_RESOLVER_BYTES, across=base == "/")
    if content is not None:
        copy = place / target.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
