"""The kit: Waypoint's own files and folders in every session, built once per daemon on a tmpfs.

The kit is on a tmpfs because overlayfs refuses a lower layer that lies inside another lower layer's file system tree
(ELOOP), and the home usually lies below `/`. The kit holds:

* `dev`: device nodes, bound read-only over `/dev` of every session. The root overlay itself is `nodev`: a node anywhere
  else in the base does not open.
* a *skeleton* per base, the topmost lower layer of the root overlay: an empty `/dev`, `/run`, `/proc`, `/sys`;
  `/.waypoint` with the script of pid 1, setsid and shell hooks; an empty folder that hides the home.
* `criu-run`: becomes `/run` of CRIU, which keeps its cache of kernel features only on a tmpfs.
"""

import os
import shutil
from pathlib import Path

from waypoint.launch.ground.leader import place_setsid
from waypoint.linux.storage import mounts
from waypoint.model.paths import COMMAND_FOLDER, OWN_FOLDER, sha256_hex

_NODES = (("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0))
_PROC = "/proc"  # in the session
_LINKS = (
    ("ptmx", "pts/ptmx"),
    ("fd", f"{_PROC}/self/fd"),
    ("stdin", "fd/0"),
    ("stdout", "fd/1"),
    ("stderr", "fd/2"),
)
# wrapper.sh: for captures of earlier versions, whose pid 1 has it open.
_SCRIPTS = ("init.sh", "wrapper.sh", "run.sh")
_COMMANDS = {"bin": "waypoint.sh", COMMAND_FOLDER: "ask.sh"}
"""The folders with a command `waypoint`, and the script that it is. `bin` is in the PATH of sessions that earlier
versions have captured.
"""
_PROGRAMS = ("setsid", *_SCRIPTS, "waypoint")
_HOOKS = Path(__file__).resolve().parents[3] / "shellwrap"


class Kit:
    """The kit at `folder`, in a mount namespace of the daemon's own; it vanishes with the last process that uses it."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self._home = home
        self.dev = folder / "dev"
        self.criu_run = folder / "criu-run"

    def mount(self) -> None:
        """Mount the tmpfs and make `dev` and `criu-run` in it. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        mounts.mount("tmpfs", self.folder, "tmpfs", mounts.MS_NOSUID, "mode=0711")
        os.umask(0)
        try:
            self._make_dev()
            self.criu_run.mkdir(mode=0o700)
        finally:
            os.umask(0o022)

    def _make_dev(self) -> None:
        self.dev.mkdir(mode=0o755)
        for name, major, minor in _NODES:
            os.mknod(self.dev / name, 0o020666, os.makedev(major, minor))
        for name, target in _LINKS:
            (self.dev / name).symlink_to(target)
        (self.dev / "pts").mkdir(mode=0o755)
        (self.dev / "shm").mkdir(mode=0o1777)

    def skeleton(self, base: str, target: str) -> str | None:
        """The skeleton for the overlay at `target` of `base`: a host folder that is its topmost lower layer, or None
        if that overlay needs none. Built at first use. Raises HostLacks if the machine has no setsid, OSError.
        """
        inside = str(Path(base) / target.lstrip("/"))
        if target != "/" and not _is_below(str(self._home), inside):
            return None
        name = sha256_hex(f"{base}\0{target}".encode(errors="surrogateescape"))[:16]
        place = self.folder / f"skeleton-{name}"
        if not place.exists():
            aside = self.folder / f"new-{name}"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(mode=0o755)
            if target == "/":
                self._fill_root(aside, base)
            if _is_below(str(self._home), inside):
                _hide(aside, inside, self._home)
            aside.rename(place)
        return str(place)

    def _fill_root(self, place: Path, base: str) -> None:
        for name in ("dev", "run", "proc", "sys"):
            (place / name).mkdir(mode=0o755)
        for name in ("dev", "run"):
            os.setxattr(place / name, "trusted.overlay.opaque", b"y")
        if not (Path(base) / "tmp").is_dir():
            (place / "tmp").mkdir()
            (place / "tmp").chmod(0o1777)
        (place / "run/lock").mkdir()
        (place / "run/lock").chmod(0o1777)
        _keep_resolver(place, Path(base))
        own = place / OWN_FOLDER
        own.mkdir(mode=0o755)
        place_setsid(own, f"/{OWN_FOLDER}", base)
        for name in (*_SCRIPTS, "hooks.bash"):
            shutil.copy(_HOOKS / name, own / name)
        for folder, script in _COMMANDS.items():
            (own / folder).mkdir()
            shutil.copy(_HOOKS / script, own / folder / "waypoint")
        shutil.copytree(_HOOKS / "zdotdir", own / "zdotdir")
        for path in (own, *own.rglob("*")):
            is_program = path.name in _PROGRAMS or path.parent.name == "lib"  # a loader is executed
            path.chmod(0o755 if path.is_dir() or is_program else 0o644)


def _hide(place: Path, inside: str, home: Path) -> None:
    """Put an opaque empty folder over the home into the skeleton `place`. The folders above it get the modes and
    owners of the base, because a session sees those of the topmost layer.
    """
    folder = place
    origin = Path(inside)
    for part in home.relative_to(inside).parts:
        folder, origin = folder / part, origin / part
        folder.mkdir(exist_ok=True)
        found = origin.stat()
        os.chown(folder, found.st_uid, found.st_gid)
        folder.chmod(found.st_mode & 0o7777)
    os.setxattr(folder, "trusted.overlay.opaque", b"y")


def _keep_resolver(place: Path, base: Path) -> None:
    """Copy the file that the base's /etc/resolv.conf links to, if that is in /run: the session's /run is empty
    otherwise.
    """
    link = base / "etc/resolv.conf"
    if not link.is_symlink():
        return
    target = os.path.normpath(os.path.join("/etc", link.readlink()))
    source = base / target.lstrip("/")
    if target.startswith("/run/") and source.is_file():
        copy = place / target.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
