"""What has changed in a folder, where the file system cannot say it: by the stamp of each file, which is its inode,
time of change (ctime) and size, and was noted earlier.

The kernel sets ctime at each change of content, attributes or name, and no program can choose it. What is written
through a memory map sets it when the page is first written to since it was last written to the disk. So a stamp that is
older than the beginning of the last writing out (syncfs) before it was noted is trusted, and no other: two changes
within a tick of the kernel's clock have the same ctime.

The stamps of a folder lie beside it, in `.stamps/NAME`, also when it is gone: the newest ones, as far as there is room.
Each begins with the time up to which it is trusted, in nanoseconds since the epoch, or `newest`: a little before the
newest time in it; then come its files as find(1) prints them: kind, inode, ctime, size and path. Who notes stamps is in
a hurry, so only who compares them reads them.
"""

import contextlib
import functools
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from waypoint.linux.calls import programs
from waypoint.linux.calls.paths import StrPath
from waypoint.linux.snapshots.btrfs_send import Differences
from waypoint.linux.storage import files, mounts

MOST_BYTES = 16 << 20
"""Of all stamps beside each other: those of 200,000 files."""
_FOLDER = ".stamps"
_TICK_NS = 20_000_000
"""Two ticks of the slowest clock that a kernel has (CONFIG_HZ=100)."""
_NEWEST = b"newest"
_PRINTED = r"%y %i %C@ %s %P\0"


@functools.cache
def are_told(folder: StrPath) -> bool:
    """Whether every change of a file in the folder shows in its stamp, which is so if it was written out before. What
    is in memory alone is never written out, so who writes through a map writes without a further sign (mm/shmem.c).
    """
    return mounts.holding(folder)[0].fstype not in ("tmpfs", "ramfs")


def note(folder: StrPath, *, of: StrPath = "", trusted_ns: int | None = None) -> None:
    """Note the stamps of all that is in the folder, which does not change meanwhile; `of`: it is a copy of this one,
    which stands still and has the stamps. `trusted_ns`: when the last writing out began; None: the folder is a
    snapshot, in which all is that was written before it was made: then those are trusted that are older than its newest
    one. Without room or find(1), or of too many files, nothing is noted, and nothing raised.
    """
    place = _place(folder)
    with contextlib.suppress(OSError, ValueError, subprocess.CalledProcessError):
        place.parent.mkdir(mode=0o700, exist_ok=True)
        found = _found(of or folder)
        until = _NEWEST if trusted_ns is None else b"%d" % (trusted_ns - _TICK_NS)
        files.publish(str(place), until + b"\0" + found, durable=trusted_ns is None)  # in a pause nothing waits for it
        _forget_oldest(place.parent)


def writing_out_begins_ns() -> int:
    """The time to be given to `note`."""
    return time.time_ns()


def differences(before: StrPath, now: StrPath) -> Differences | None:
    """What is different in the folder `now` from the folder `before`, of which the stamps were noted, and which may be
    gone. The stamps of `now` are those that were noted of it, else those that its files have. None if this cannot be
    told: nothing was noted of `before`, a power loss has spoilt it, find(1) is missing or fails, or
    there are too many files.
    """
    with contextlib.suppress(OSError, ValueError, subprocess.CalledProcessError):
        until, _, rest = _place(before).read_bytes().partition(b"\0")
        try:
            present = _place(now).read_bytes().partition(b"\0")[2]
        except FileNotFoundError:
            present = _found(now)
        then = dict(_parsed(rest))
        trusted_ns = max(map(_ctime_ns, then.values())) - _TICK_NS if until == _NEWEST else int(until)
        return _compared(then, trusted_ns, _parsed(present))
    return None


def _compared(before: dict[bytes, bytes], trusted_ns: int, now: Iterator[tuple[bytes, bytes]]) -> Differences:
    """`before` is used up."""
    found = Differences()
    whole: set[bytes] = set()  # folders that are new here, with all that is in them
    for path, facts in now:
        then = before.pop(path, b"")
        is_folder = facts.startswith(b"d ")
        if path and path.rpartition(b"/")[0] in whole:
            whole |= {path} if is_folder else set()
            continue
        if then == facts and _ctime_ns(facts) < trusted_ns:
            continue
        found.touched.add(path)
        if is_folder and path and then.split(b" ")[:2] != facts.split(b" ")[:2]:
            found.moved.add(path)
            whole.add(path)
            found.left.add(path)
    found.touched |= before.keys()
    found.left |= before.keys()
    return found


def _place(folder: StrPath) -> Path:
    above, name = os.path.split(os.path.abspath(folder))
    return Path(above, _FOLDER, name)


def _found(folder: StrPath) -> bytes:
    """Raises OSError also if there are too many, CalledProcessError: a session chooses how many files it has."""
    return programs.run_up_to(MOST_BYTES, "find", folder, "-xdev", "-printf", _PRINTED)


def _parsed(printed: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each path, "" for the folder itself, with its facts: kind, inode, ctime, size. A folder before what is in it."""
    for row in printed.split(b"\0")[:-1]:
        kind, inode, ctime, size, path = row.split(b" ", 4)
        yield path, b" ".join((kind, inode, ctime, size if kind != b"d" else b""))


def _ctime_ns(facts: bytes) -> int:
    seconds, _, rest = facts.split(b" ")[2].partition(b".")
    return int(seconds) * 1_000_000_000 + int(rest[:9])


def _forget_oldest(folder: Path) -> None:
    noted = sorted((one.stat().st_mtime_ns, one.stat().st_size, one) for one in folder.iterdir())
    total = sum(size for _, size, _ in noted)
    for _, size, one in noted:
        if total <= MOST_BYTES:
            return
        one.unlink(missing_ok=True)
        total -= size
