"""Removing a home with its daemon and its sessions: `waypoint setup --remove`; and the throw-away homes of trials."""

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from waypoint.egress import router
from waypoint.linux.storage import btrfs, files, mounts
from waypoint.linux.storage.deep import remove_path
from waypoint.linux.tasks import cgroups, lock_holder
from waypoint.model.errors import Failed, StateConflict
from waypoint.model.ids import is_id
from waypoint.model.paths import (
    RUNTIME,
    daemon_lock_path,
    home_id,
    is_config_of_home,
    runtime_folder,
    start_lock_path,
    supervisor_lock_path,
)
from waypoint.setup.config import CONFIG

TRIAL_PREFIX = "waypoint-trial-"  # begins the name of a throw-away home, which lies in the home that it was made for
# Everything that Waypoint makes in a home, besides the pool and config.json. Other files are the user's and stay.
OURS = ("names.db*", "reserve", "hot", "pool.img*", "criu", "criu-*", "criu.lock", ".criu-build-*", "daemon.*")
POOL = "pool"
SCOPES = "system.slice"  # where systemd has the scopes that it was asked for (waypoint/launch/ground/places.py)
# How long the supervisor may take to end: more than it waits itself before it kills its daemon. A daemon without a
# supervisor gets as long. What has not ended by then is killed, and has KILL_S to be gone.
STOP_S = 25.0
KILL_S = 5.0


def remove(home: Path, say: Callable[[str], None]) -> None:
    """Stop the daemon, end all sessions, remove the home and the runtime folder. Does nothing if none of them exists.

    May be repeated after a failure or a kill: config.json, by which a folder is known as a home, is removed last.
    Raises StateConflict if `home` is no home, if something is mounted in it, or if it holds files that are not
    Waypoint's (then everything else has been removed); Failed if a system call fails.
    """
    check(home)
    try:
        with contextlib.ExitStack() as locks:
            _stop(home, locks, say)
            for trial in home.glob(f"{TRIAL_PREFIX}*"):  # left by a trial that was killed
                discard(trial)
            _end_sessions(home, say)
            if home.exists():
                _remove_home(home, say)
            _remove_runtime(Path(runtime_folder(str(home))))
        with contextlib.suppress(OSError):  # not there, or other homes use it
            Path(RUNTIME).rmdir()
    except OSError as error:
        where = error.filename or str(home)
        raise Failed(
            "remove", str(where), error.strerror or str(error), "repair this, and run the command again"
        ) from error


def check(home: Path) -> None:
    """Raise StateConflict if `home` is no home, or if something is mounted in it."""
    if os.path.lexists(home) and not _is_home(home):
        said = f"it has no {CONFIG} of Waypoint, so it is not a home"
        raise StateConflict("remove", str(home), said, "name the home: waypoint --home DIR setup --remove")
    mounted = mounts.list_mount_points_in(home)
    if mounted:
        said = f"something is mounted in it: {', '.join(mounted)}"
        raise StateConflict("remove", str(home), said, "umount it first")


def _is_home(home: Path) -> bool:
    try:
        return is_config_of_home(json.loads((home / CONFIG).read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError:  # broken, as that of a home may be, too
        return True


def discard(home: Path) -> None:
    """Remove the throw-away home of a trial whole, whatever is in it, with all that runs from it.

    May be done again after it failed or was killed.
    """
    _end_sessions(home, lambda _: None)
    _remove_runtime(Path(runtime_folder(str(home))))
    _remove_pool(home)
    remove_path(home)  # last: by the folder the next trial finds what is left


def _stop(home: Path, locks: contextlib.ExitStack, say: Callable[[str], None]) -> None:
    """End supervisor and daemon, and take their locks into `locks`, so that neither can start.

    A daemon may run without a supervisor: one that was killed is replaced after a while only, or never if several were
    killed. Raises TimeoutError if one of the two has ended neither when asked nor when killed.
    """
    name = str(home)
    paths = (start_lock_path(name), supervisor_lock_path(name), daemon_lock_path(name))
    is_running = False
    for path in [path for path in paths if os.path.isdir(os.path.dirname(path))]:
        try:
            lock = files.lock(path, wait=False)
            os.ftruncate(lock, 0)  # nobody takes what lies in it for the pid of the holder
        except BlockingIOError:
            lock = lock_holder.take_over(path, patience_s=STOP_S, kill_s=KILL_S)
            is_running = True
        locks.callback(os.close, lock)
    if is_running:
        say("stopped the daemon")


def _end_sessions(home: Path, say: Callable[[str], None]) -> None:
    """SIGKILL all processes in the home's cgroups, and remove the cgroups."""
    groups = groups_of(home_id(str(home)))
    sessions = sum(is_id(path.name) for group in groups for path in group.glob("*/"))
    if sessions:
        say(f"ended {sessions} {'session' if sessions == 1 else 'sessions'}")
    end_groups(groups)


def end_groups(groups: Iterable[Path]) -> None:
    """SIGKILL all processes in the cgroups, and remove the cgroups, with Waypoint's own above them if it is empty."""
    for parent in groups:
        cgroups.end(str(parent))
        for above in (*cgroups.twins(str(parent.parent)), str(parent.parent)):
            with contextlib.suppress(OSError):  # EBUSY: another home uses the group above
                cgroups.remove(above)


def groups_of(home: str) -> list[Path]:
    """The present cgroup2 groups of those that a daemon of a home may have made. `home`: the home's id."""
    try:
        root = Path(cgroups.find_hierarchies().unified)
    except FileNotFoundError:
        return []
    return [path for path in (root / "waypoint" / home, root / SCOPES / f"waypoint-{home}.scope") if path.is_dir()]


def _remove_home(home: Path, say: Callable[[str], None]) -> None:
    _remove_pool(home)
    for path in [found for pattern in OURS for found in home.glob(pattern)]:
        if path.is_dir() and not path.is_symlink():
            remove_path(path)
        else:
            path.unlink()
    left = sorted(path.name for path in home.iterdir() if not path.name.startswith(CONFIG))
    if left:
        said = f"it contains files that Waypoint did not make and does not remove: {', '.join(left)}"
        raise StateConflict("remove", str(home), said, "remove or move these files, and run the command again")
    for path in home.iterdir():
        path.unlink()
    home.rmdir()
    say(f"removed {home}")


def _remove_pool(home: Path) -> None:
    pool = home / POOL
    if not pool.is_dir():
        return
    for path in pool.iterdir():
        if path.is_dir() and not path.is_symlink() and btrfs.is_subvolume(str(path)):
            # remove_path could not empty a sealed (read-only) subvolume. ENOTTY: a folder of another file system that
            # happens to have a subvolume's inode number.
            with suppress_errno(errno.ENOTTY):
                btrfs.destroy_subvolume(str(path))
    remove_path(pool)


@contextlib.contextmanager
def suppress_errno(number: int) -> Iterator[None]:
    """Suppress an OSError that has errno `number`."""
    try:
        yield
    except OSError as error:
        if error.errno != number:
            raise


def _remove_runtime(folder: Path) -> None:
    if folder.exists():
        router.end(folder)
        remove_path(folder)
