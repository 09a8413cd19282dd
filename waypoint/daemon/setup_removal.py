"""Taking a home away, with everything that runs from it: `waypoint setup --remove`."""

import contextlib
import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from waypoint.linux import btrfs, cgroups, files, mounts, pidfd
from waypoint.model.errors import Failed, StateConflict
from waypoint.model.ids import is_id
from waypoint.model.paths import RUNTIME, daemon_lock_path, home_id, runtime_folder, supervisor_lock_path

# Everything that Waypoint makes in a home. What else is there was put there by somebody, and is not ours to remove.
OURS = ("names.db*", "hot", "pool.img*", "criu", "criu-*", "criu.lock", ".criu-build-*", "daemon.*", "waypoint-trial-*")
POOL = "pool"
CONFIG = "config.json"
STOP_S = 60.0


def remove(home: Path, say: Callable[[str], None]) -> None:
    """Stop the daemon, end all sessions, remove the home and the runtime folder. Fine if there is none of it.

    May be done again after it failed or was killed: config.json, which says that it is a home, goes last. Raises
    StateConflict if it is no home, if something is mounted in it, or (having removed the rest) if it holds things that
    are not Waypoint's; Failed if the machine refuses.
    """
    if home.exists() and not (home / CONFIG).exists():
        raise StateConflict("remove", str(home), f"without a {CONFIG} it is no home of Waypoint", "look at it yourself")
    mounted = mounts.list_mount_points_in(home)
    if mounted:
        raise StateConflict("remove", str(home), f"something is mounted: {', '.join(mounted)}", "umount it first")
    try:
        with contextlib.ExitStack() as locks:
            _stop(home, locks, say)
            _end_sessions(home, say)
            if home.exists():
                _remove_home(home, say)
        _remove_runtime(Path(runtime_folder(str(home))))
    except OSError as error:
        where = error.filename or str(home)
        raise Failed("remove", str(where), error.strerror or str(error), "run it again") from error


def _stop(home: Path, locks: contextlib.ExitStack, say: Callable[[str], None]) -> None:
    """Stop supervisor and daemon, and take their locks, so that none can start. Raises TimeoutError."""
    lock_path = supervisor_lock_path(str(home))
    if os.path.exists(lock_path):
        try:
            lock = files.lock(lock_path, wait=False)
        except BlockingIOError:
            _ask_to_end(lock_path)
            say("stopped the daemon")
            lock = files.lock(lock_path, wait=True)
        locks.callback(os.close, lock)
    if home.exists():
        locks.callback(os.close, files.lock(daemon_lock_path(str(home)), wait=True))


def _ask_to_end(lock_path: str) -> None:
    """Tell the supervisor that holds the lock to stop, which stops its daemon first, and wait for its end."""
    with contextlib.suppress(ProcessLookupError, ValueError):  # it ends just now
        holder = pidfd.open(int(Path(lock_path).read_text()))
        try:
            with contextlib.suppress(BlockingIOError):
                # Held still, after its pid was opened: so the pid is the holder's and not somebody else's by now.
                os.close(files.lock(lock_path, wait=False))
                return
            pidfd.send_signal(holder, signal.SIGTERM)
            if not pidfd.wait_ended(holder, STOP_S):
                raise TimeoutError(errno.ETIMEDOUT, f"the supervisor did not end in {STOP_S:g} s", lock_path)
        finally:
            os.close(holder)


def _end_sessions(home: Path, say: Callable[[str], None]) -> None:
    """SIGKILL whatever is in the home's control groups, and remove these."""
    found = cgroups.find_hierarchies()
    parents = [Path(root) / "waypoint" / home_id(str(home)) for root in {found.unified, *found.legacy.values()}]
    for parent in parents:
        groups = [path for path in parent.glob("*") if path.is_dir()]
        sessions = sum(is_id(path.name) for path in groups)
        if sessions and parent.is_relative_to(found.unified):
            say(f"ended {sessions} {'session' if sessions == 1 else 'sessions'}")
        for group in groups:
            if parent.is_relative_to(found.unified):
                cgroups.kill(str(group))
                cgroups.wait_empty(str(group))
    for parent in parents:
        for group in [*parent.glob("*/"), parent, parent.parent]:
            with contextlib.suppress(OSError):  # EBUSY: another home's, which stays
                cgroups.remove(str(group))


def _remove_home(home: Path, say: Callable[[str], None]) -> None:
    if (home / POOL).is_dir():
        for path in (home / POOL).iterdir():
            if path.is_dir() and not path.is_symlink() and btrfs.is_subvolume(str(path)):
                # Sealed ones could not be emptied. ENOTTY: not on btrfs, a folder that happens to have that inode.
                with suppress_errno(errno.ENOTTY):
                    btrfs.destroy_subvolume(str(path))
        shutil.rmtree(home / POOL)
    for path in [found for pattern in OURS for found in home.glob(pattern)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    left = sorted(path.name for path in home.iterdir() if not path.name.startswith(CONFIG))
    if left:
        said = f"what Waypoint has not made stays: {', '.join(left)}"
        raise StateConflict("remove", str(home), said, "remove or move it, and run this again")
    for path in home.iterdir():
        path.unlink()
    home.rmdir()
    say(f"removed {home}")


@contextlib.contextmanager
def suppress_errno(number: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != number:
            raise


def _remove_runtime(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # not there, or other homes use it
        Path(RUNTIME).rmdir()
