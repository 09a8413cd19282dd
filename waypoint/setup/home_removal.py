"""Removing a home with its daemon and sessions: `waypoint setup --remove`. Also removes the temporary homes of
trials.
"""

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from waypoint.capture.layers.hot_memory import unmount
from waypoint.egress import router
from waypoint.linux.storage import btrfs, files, mounts
from waypoint.linux.storage.deep import remove_path
from waypoint.linux.tasks import cgroups, lock_holder, process_groups
from waypoint.model.errors import Failed, StateConflict
from waypoint.model.ids import is_id
from waypoint.model.paths import (
    RUNTIME_LINK,
    daemon_lock_path,
    home_id,
    is_config_of_home,
    runtime_folder,
    start_lock_path,
    supervisor_lock_path,
)
from waypoint.setup import criu_install
from waypoint.setup.config import CONFIG

TRIAL_PREFIX = "waypoint-trial-"  # the prefix of a trial's temporary home, a folder in the home that is tried
# All that Waypoint makes in a home, besides the pool and config.json. Other files are the user's and are not removed.
OURS = (
    "names.db*",
    "reserve",
    "hot",
    "applied",
    "store",
    "keys",
    "pool.img*",
    "criu",
    "criu-*",
    "criu.lock",
    ".criu-build-*",
    "daemon.*",
    RUNTIME_LINK,
)
POOL = "pool"
MEMORY = "hot/.memory"  # the mount point of the hot area in memory, which outlives a killed daemon
SCOPES = "system.slice"  # the slice in which systemd makes the requested scopes (waypoint/launch/ground/places.py)
# Seconds for the supervisor to end: more than the supervisor waits before it kills its daemon. A daemon without a
# supervisor gets the same time. Afterwards they are killed, and must end within KILL_S.
STOP_S = 25.0
KILL_S = 5.0


def remove(home: Path, say: Callable[[str], None]) -> None:
    """Stop the daemon, end all sessions, remove the home and the runtime folder. Does nothing if none of them exists.

    May be repeated after a failure or a kill: config.json, which makes a folder a home, is removed last. Raises
    StateConflict if `home` is not a home, if something is mounted in it, or if it contains files that Waypoint has not
    made (then everything else has been removed); Failed if a system call fails.
    """
    check(home)
    runtime = Path(runtime_folder(str(home)))
    try:
        with contextlib.ExitStack() as locks:
            _stop(home, locks, say)
            for trial in home.glob(f"{TRIAL_PREFIX}*"):  # left by a trial that was killed
                discard(trial)
            _end_sessions(home, say)
            if home.exists():
                _remove_home(home, say)
            _remove_runtime(runtime)
            criu_install.known(home).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # missing, or used by other homes
            runtime.parent.rmdir()
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
    own = os.path.join(os.path.realpath(home), MEMORY)
    mounted = [point for point in mounts.list_mount_points_in(os.path.realpath(home)) if point != own]
    if mounted:
        said = f"something is mounted in it: {', '.join(mounted)}"
        raise StateConflict("remove", str(home), said, "unmount it first (umount)")


def _is_home(home: Path) -> bool:
    try:
        return is_config_of_home(json.loads((home / CONFIG).read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError:  # a home whose config.json is damaged can be removed, too
        return True


def discard(home: Path) -> None:
    """Remove the temporary home of a trial with everything in it, and end all processes that use it. May be repeated
    after a failure or a kill.
    """
    _end_sessions(home, lambda _: None)
    _remove_runtime(Path(runtime_folder(str(home))))
    _remove_pool(home)
    remove_path(home)  # last, so that the next trial finds the folder if this removal is killed, and repeats it


def _stop(home: Path, locks: contextlib.ExitStack, say: Callable[[str], None]) -> None:
    """End supervisor and daemon, and put their locks into `locks`, so that neither can start again.

    A daemon may run without a supervisor: a killed supervisor is replaced only after a while, or never if several were
    killed. Raises TimeoutError if one of the two does not end even after SIGKILL.
    """
    name = str(home)
    paths = (start_lock_path(name), supervisor_lock_path(name), daemon_lock_path(name))
    is_running = False
    for path in [path for path in paths if os.path.isdir(os.path.dirname(path))]:
        try:
            lock = files.lock(path, wait=False)
            os.ftruncate(lock, 0)  # so that its content is not taken for the pid of the present holder
        except BlockingIOError:
            lock = lock_holder.take_over(path, patience_s=STOP_S, kill_s=KILL_S)
            is_running = True
        locks.callback(os.close, lock)
    if is_running:
        say("stopped the daemon")


def _end_sessions(home: Path, say: Callable[[str], None]) -> None:
    """Kill all processes in the home's cgroups, and remove the cgroups."""
    if os.path.islink(home / RUNTIME_LINK):  # a home without root
        groups = [path for path in [Path(runtime_folder(str(home))) / process_groups.FOLDER] if path.is_dir()]
    else:
        groups = groups_of(home_id(str(home)))
    sessions = sum(is_id(path.name) for group in groups for path in group.glob("*/"))
    if sessions:
        say(f"ended {sessions} {'session' if sessions == 1 else 'sessions'}")
    end_groups(groups)


def end_groups(groups: Iterable[Path]) -> None:
    """Kill all processes in the cgroups; remove the cgroups and, if it is empty then, Waypoint's cgroup above them."""
    for parent in groups:
        cgroups.end(str(parent))
        if process_groups.is_one(str(parent)):
            continue
        for above in (*cgroups.twins(str(parent.parent)), str(parent.parent)):
            with contextlib.suppress(OSError):  # EBUSY: another home uses the group above
                cgroups.remove(above)


def groups_of(home: str) -> list[Path]:
    """The existing cgroup2 groups that a daemon of the home with the id `home` may have made. All processes of the home
    are below them.
    """
    try:
        root = Path(cgroups.find_hierarchies().unified)
    except FileNotFoundError:
        return []
    return [path for path in (root / "waypoint" / home, root / SCOPES / f"waypoint-{home}.scope") if path.is_dir()]


def _remove_home(home: Path, say: Callable[[str], None]) -> None:
    unmount(home / MEMORY)
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
            # remove_path cannot remove files of a read-only subvolume. ENOTTY: a folder on another file system, which
            # happens to have the inode number of a subvolume.
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
