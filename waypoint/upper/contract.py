"""The contract of every pool of upper trees, whichever driver implements it.

A pool holds trees: folders that serve as upper directories of sessions and as snapshots of those. A tree's name is any
file name of at most 200 bytes that does not start with a dot; names with a dot are the drivers' own. One process at a
time may have a home's pool open. Several threads of that process may make calls at once, for different names. Every
call blocks, so an event loop must make the calls in a thread.

Errors of every call: StateConflict (the name is taken), UnknownName (there is no such tree), Failed (the machine
refused: disk full, I/O error; the OSError or CalledProcessError is its `__cause__`), ValueError (not a name: a bug
of the caller). After a call that raises, `list` shows the same trees as before.
"""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from waypoint.model.errors import DISK_FAILED, MAKE_ROOM, READ_ONLY, Failed, StateConflict

GIB = 1 << 30
MAX_NAME_BYTES = 200
NAME_TAKEN = "the name is taken"
_LOOK = "see the kernel's log (dmesg), and try again"
NEXT_STEPS = {
    errno.ENOSPC: MAKE_ROOM,
    errno.EDQUOT: MAKE_ROOM,
    errno.EROFS: READ_ONLY,
    errno.EIO: DISK_FAILED,
}


class GrowthOutcome(StrEnum):
    """The outcome of `grow_if_needed`.

    ENOUGH: the headroom is free, nothing was done. GROWN: the pool is larger now. REFUSED: the disk under the pool has
    not enough free space; the pool still works, but tell the user. FIXED: the pool lies directly on the disk's file
    system, which Waypoint cannot enlarge.
    """

    ENOUGH = "enough"
    GROWN = "grown"
    REFUSED = "refused"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Growth:
    """The result of `grow_if_needed`. `free_bytes`: free in the pool afterwards. `size_bytes`: the pool's size
    afterwards, 0 if it has no size of its own. `said`: why the pool did not grow.
    """

    outcome: GrowthOutcome
    free_bytes: int
    size_bytes: int = 0
    said: str = ""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The state of a pool's space.

    `headroom_bytes`: what should be free in it. `growth_bytes`: by how much it could grow; None if it lies directly on
    the disk's file system, which Waypoint cannot enlarge. `floor_bytes`: what growing leaves free on the disk.
    `disk_free_bytes`: what is free there. `is_readonly`: nothing can be written, as after a failure of the disk.
    `errors`: how many reads, writes and checks of data have failed so far.
    """

    free_bytes: int
    headroom_bytes: int
    growth_bytes: int | None = None
    floor_bytes: int = 0
    disk_free_bytes: int = 0
    is_readonly: bool = False
    errors: int = 0

    @property
    def is_short(self) -> bool:
        """Whether room has to be made: in the pool, which has less than the headroom and cannot grow by what is
        missing, or on the disk under it. Never if nothing can be removed.
        """
        if self.is_readonly:
            return False
        return self.free_bytes + (self.growth_bytes or 0) < self.headroom_bytes or self.is_disk_low

    @property
    def is_disk_low(self) -> bool:
        """Whether others than the pool, such as the memory of captures, have taken half of what growing leaves them."""
        return 2 * self.disk_free_bytes < self.floor_bytes


@dataclass(frozen=True, slots=True)
class Shares:
    """Bytes that a tree has on disk: all of them, and those that would be free without it."""

    total_bytes: int
    own_bytes: int


def mib(size_bytes: int) -> str:
    """A size of a pool, in words. A negative size is none."""
    return f"{max(0, size_bytes) >> 20} MiB"


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Sizes of a pool that is a btrfs in a file.

    `initial_bytes`: size of a new file. `step_bytes`: the file grows by multiples of this; by less, but no less than a
    sixteenth, if the disk has no room for a whole step. `headroom_bytes`: the file grows when less than this is free in
    it. `floor_bytes`: creating or growing the file must leave this much free on the file system that the file lies on.
    """

    initial_bytes: int
    step_bytes: int
    headroom_bytes: int
    floor_bytes: int


def usual_sizes(host_total_bytes: int, host_free_bytes: int) -> PoolSizes:
    """The default sizes of a pool file on a file system with these total and free bytes."""
    return PoolSizes(
        initial_bytes=min(2 * GIB, host_free_bytes // 4),
        step_bytes=GIB,
        headroom_bytes=GIB,
        floor_bytes=max(GIB, host_total_bytes // 20),
    )


class Room(Protocol):
    """The part of an open pool that is about its space."""

    def disk_bytes(self) -> int:
        """Bytes of the disk that the pool takes: reserved for its file, or used by its trees."""
        ...

    def unique_bytes(self) -> int:
        """Bytes of all trees, each shared block counted once."""
        ...

    def free_bytes(self) -> int:
        """Bytes that can still be written to the pool at its present size.

        btrfs: less than statvfs(3) says by what has been written to the page cache only.
        """
        ...

    def outlook(self) -> Outlook:
        """The state of the pool's space; changes nothing."""
        ...

    def grow_if_needed(self, ahead_bytes: int = 0) -> Growth:
        """Enlarge the pool if less than the headroom (see PoolSizes) and `ahead_bytes` are free in it.

        `ahead_bytes`: what may be written in the time that growing takes: some milliseconds, but seconds while much is
        being written. Call it periodically. If the disk has too little space, nothing is raised, and the outcome is
        REFUSED if the headroom is missing, else ENOUGH. The pool never grows so far that less than the floor is left
        free on the file system that it lies on.
        """
        ...

    def settle(self) -> None:
        """Wait until the space of removed trees is free, at most ten seconds: until then it counts as used."""
        ...

    def spare_bytes(self) -> int:
        """About how many bytes `compact` can give back to the disk: those beyond the size of a new pool, the content
        and the headroom.
        """
        ...

    def compact(self) -> int:
        """Give free space back to the disk, down to the size of a new pool; returns how many bytes. Call it only while
        no session lives: it takes seconds or minutes, in which a session would be slow.

        A call that has to change the pool, such as `create`, breaks it off: what was given back by then stays so.
        """
        ...

    def stop_compacting(self) -> None:
        """Break off a `compact` that runs in another thread, and wait until it has ended."""
        ...

    def why_stays(self) -> str:
        """In words, why the pool's free space stays in it for good; "" if `compact` gives it back."""
        ...

    def in_room(self, act: Callable[[], None]) -> None:
        """Call `act`, which writes into trees. If that fails for want of room (OSError ENOSPC), call it again with a
        little more, as far as that can be made. Raises what `act` raises.
        """
        ...

    def check_writable(self) -> None:
        """Raise Failed, which says how to go on, if the pool's file system has become read-only: what lies in it can be
        read, sessions end as usual, and every other call that changes something fails.
        """
        ...


class Pool(Room, Protocol):
    """An open pool, as `open_pool.open_pool` returns it."""

    @property
    def driver(self) -> str:
        """`btrfs` or `copy`: the driver's name, as `open_pool` takes it."""
        ...

    @property
    def folder(self) -> str:
        """The path of the folder in which the trees are. Files in it whose names start with a dot are no trees."""
        ...

    def path(self, name: str) -> str:
        """The path of the tree `name`, which need not exist. A tree's path never changes."""
        ...

    def create(self, name: str) -> str:
        """Make an empty writable tree and return its path. Atomic."""
        ...

    def snapshot(self, source: str, name: str, *, sealed: bool = False) -> str:
        """Make tree `name` with the content of tree `source` and return its path. With `sealed`, `name` is sealed.

        The copy keeps owners, modes, all extended attributes, whiteouts, hard links and holes. Data that was written
        before the call is in the copy, also data in the page cache and in shared memory maps. The copy shows one moment
        only if nobody writes to `source` during the call: stop or freeze the writers first.
        btrfs: takes the time to write out the source's dirty data and one commit, whatever the tree's size; durable on
        return. If somebody does write, names and folders show one moment, but a file that is written to may have old,
        new or no content (measured: a third of such snapshots were torn).
        copy: walks the tree and, without reflinks, copies all its data; durable only after `sync`; may fail if somebody
        writes.
        After a crash, `name` exists as a whole or not at all. On a full pool the call fails, and so does `create`.
        """
        ...

    def seal(self, name: str) -> None:
        """Declare for good that the tree will not change any more. Nobody may have a file of the tree open for writing.

        btrfs: the kernel refuses to open the tree's files for writing. copy: the tree is marked by an attribute, and
        the caller must not change it. No error if the tree is sealed already. A snapshot of a sealed tree is not
        sealed. Works on a full pool. On a read-only one the tree stays as it is, and the caller must not change it.
        """
        ...

    def limit(self, name: str, most_bytes: int) -> str:
        """Limit what the writable tree has written itself, including what its snapshots keep of that, to `most_bytes`
        from now on. Writing more fails with EDQUOT. Returns "", or in words why the pool cannot hold the limit.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a tree, sealed or not. No error if it is missing. On return the name is free, also after a crash.

        btrfs: takes the same short time for any tree; the space is freed some seconds later (up to a minute on the
        machine's own btrfs). copy: walks the tree. Works on a full pool.
        Raises StateConflict if something is mounted in the tree in the caller's mount namespace: the driver `copy`
        would remove the mounted files.
        """
        ...

    def list(self) -> tuple[str, ...]:
        """The names of all trees, sorted. None of them is half made or half removed."""
        ...

    def usage(self, name: str) -> int:
        """Bytes on disk that the tree's files use, including blocks that are shared with other trees.

        Runs `du` (some ms, and about 1 ms per 1,000 files). The tree may be in use.
        """
        ...

    def shares(self, name: str) -> Shares:
        """As `usage`, and what of it the tree shares with other trees; only what has reached the disk counts.

        btrfs: runs `btrfs filesystem du`, as long as `du`. copy: without looking, nothing counts as shared.
        """
        ...

    def sync(self, name: str) -> None:
        """Make the tree's files as they are now durable: they survive a power loss.

        btrfs: writes out this tree's dirty data only. A snapshot that follows at once is fast, as little is left to
        write. copy: writes out all dirty data of the file system. Works on a full pool.
        """
        ...

    def close(self) -> None:
        """Unmount the pool from the caller's mount namespace. Only `close` may be called after that.

        Sessions that still use the pool keep its file system mounted; opening the pool again finds the same one.
        """
        ...


def checked_name(name: str) -> str:
    """Return `name`. Raises ValueError if `name` cannot be the name of a tree."""
    encoded = os.fsencode(name)
    if not 0 < len(encoded) <= MAX_NAME_BYTES or encoded.startswith(b".") or b"/" in encoded or b"\0" in encoded:
        raise ValueError(f"not the name of an upper tree: {name!r}")
    return name


@contextmanager
def refusals(tried: str, on: str) -> Iterator[None]:
    """Turn an OSError or CalledProcessError of the `with` into Failed; FileExistsError into StateConflict.

    `tried`, `on`: the first two parts of the error's message.
    """
    try:
        yield
    except FileExistsError as err:
        raise StateConflict(tried, on, NAME_TAKEN) from err
    except OSError as err:
        raise Failed(tried, on, err.strerror or str(err), NEXT_STEPS.get(err.errno or 0, _LOOK)) from err
    except subprocess.CalledProcessError as err:
        lines = os.fsdecode(err.stderr).strip().splitlines() or [f"exit status {err.returncode}"]
        raise Failed(tried, on, lines[-1], _LOOK) from err
