"""The interface of a pool of upper trees, which every driver implements.

A pool holds trees: folders that serve as upper directories of sessions, and snapshots of those. A tree's name is a file
name of at most 200 bytes without a leading dot; names with a dot belong to the drivers. One process at a time may have
a home's pool open. Its threads may make calls at the same time, for different names. Every call blocks.

Errors of every call: StateConflict (the name is taken), UnknownName (there is no such tree), Failed (disk full, I/O
error; the OSError or CalledProcessError is its `__cause__`), ValueError (not a name: a bug of the caller). After a call
that raises, `list` shows the same trees as before.
"""

import errno
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from waypoint.model.errors import DISK_FAILED, MAKE_ROOM, READ_ONLY, Failed, StateConflict, of_machine

GIB = 1 << 30
UNLIMITED = (1 << 64) - 1
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
    """ENOUGH: the headroom is free, nothing was done. GROWN: the pool is larger now. REFUSED: the disk under the pool
    has too little free space; the pool still works. FIXED: the pool lies directly on the disk's file system, which
    Waypoint cannot enlarge.
    """

    ENOUGH = "enough"
    GROWN = "grown"
    REFUSED = "refused"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Growth:
    """`free_bytes`, `size_bytes`: free space and size of the pool afterwards; the size is 0 if the pool is no file.
    `said`: why it did not grow.
    """

    outcome: GrowthOutcome
    free_bytes: int
    size_bytes: int = 0
    said: str = ""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The state of a pool's space.

    `headroom_bytes`: what should be free in the pool. `growth_bytes`: by how much it could grow; None if it lies
    directly on the disk's file system. `floor_bytes`: what growing leaves free on the disk. `is_readonly`: nothing can
    be written, as after a disk error. `errors`: failed reads, writes and checksums so far.
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
        """Whether captures must be removed: the pool has less free than the headroom and cannot grow enough, or the
        disk is low. False if the pool is read-only, since nothing can be removed.
        """
        return not self.is_readonly and (self.left_bytes < self.headroom_bytes or self.is_disk_low)

    @property
    def is_disk_low(self) -> bool:
        """Whether less than half of the floor is free: files other than the pool's, such as memory images, took it."""
        return 2 * self.disk_free_bytes < self.floor_bytes

    @property
    def left_bytes(self) -> int:
        """What sessions can still write."""
        return self.free_bytes + (self.growth_bytes or 0)


@dataclass(frozen=True, slots=True)
class Shares:
    """Bytes of a tree on disk: all of them, and those that removing it would free."""

    total_bytes: int
    own_bytes: int


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """`trees`: the sizes of trees. `failed`: why other trees have not been measured. Trees that do not exist are in
    neither. `unique_bytes`: of all trees of the pool, counting each shared block once.
    """

    trees: dict[str, Shares]
    failed: dict[str, Failed]
    unique_bytes: int

    def of(self, name: str) -> Shares | Failed | None:
        """The sizes of a tree; or why they are not known; None if there is no such tree."""
        return self.trees.get(name) or self.failed.get(name)


def mib(size_bytes: int) -> str:
    """A size as text, such as `12 MiB`; a negative size counts as 0."""
    return f"{max(0, size_bytes) >> 20} MiB"


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Sizes of a pool that is a btrfs in a file.

    `initial_bytes`: size of a new file. `step_bytes`: the file grows by multiples of this; on a disk with too little
    space, by less, down to a sixteenth. `headroom_bytes`: the file grows when less than this is free in the pool.
    `floor_bytes`: creating or growing the file must leave this much free on the disk.
    """

    initial_bytes: int
    step_bytes: int
    headroom_bytes: int
    floor_bytes: int


def usual_sizes(host_total_bytes: int, host_free_bytes: int) -> PoolSizes:
    return PoolSizes(
        initial_bytes=min(2 * GIB, host_free_bytes // 4),
        step_bytes=GIB,
        headroom_bytes=GIB,
        floor_bytes=max(GIB, host_total_bytes // 20),
    )


class Pool(Protocol):
    """An open pool, as `open_pool.open_pool` returns it."""

    @property
    def driver(self) -> str:
        """The driver's name, as `open_pool` takes it: `btrfs` or `copy`."""
        ...

    @property
    def folder(self) -> str:
        """The folder of the trees. Entries with a leading dot are no trees."""
        ...

    def disk_bytes(self) -> int:
        """Bytes of the disk that the pool takes: reserved for its file, or used by its trees."""
        ...

    def unique_bytes(self) -> int:
        """Bytes of all trees, counting each shared block once."""
        ...

    def free_bytes(self) -> int:
        """Bytes that can still be written to the pool at its present size. Data in the page cache counts as written."""
        ...

    def outlook(self) -> Outlook:
        """The state of the pool's space."""
        ...

    def grow_if_needed(self, ahead_bytes: int = 0) -> Growth:
        """Enlarge the pool if less than the headroom (see PoolSizes) and `ahead_bytes` are free in it.

        `ahead_bytes`: what may be written while the pool grows. Call this periodically. On a disk with too little space
        the outcome is REFUSED if the headroom is missing, else ENOUGH. Growing leaves the floor free on the disk.
        """
        ...

    def settle(self) -> None:
        """Wait until the space of removed trees is free, at most ten seconds."""
        ...

    def spare_bytes(self) -> int:
        """About how many bytes `compact` can give back to the disk: those beyond the size of a new pool, the content
        and the headroom.
        """
        ...

    def compact(self, is_idle: Callable[[], bool]) -> int:
        """Give free space back to the disk, down to the size of a new pool; returns how many bytes. Takes seconds or
        minutes, in which a session would be slow, so it does nothing unless `is_idle` returns True: no session lives or
        is being started.

        A call that has to change the pool, such as `create`, interrupts the compaction; space given back by then stays
        given back.
        """
        ...

    def stop_compacting(self) -> None:
        """Interrupt a `compact` that runs in another thread, and wait until it has ended."""
        ...

    def why_stays(self) -> str:
        """Return the reason, as text, why `compact` cannot give all of the pool's free space back to the disk; "" if
        it can.
        """
        ...

    def retry_if_full(self, act: Callable[[], None]) -> None:
        """Call `act`, which writes into trees. After ENOSPC, enlarge the pool a little, if possible, and call `act`
        again.
        """
        ...

    def check_writable(self) -> None:
        """Raise Failed with advice if the pool's file system has become read-only. Trees can be read then, and sessions
        end as usual; every other call that changes something fails.
        """
        ...

    def path(self, name: str) -> str:
        """The path of the tree `name`, which need not exist. A tree's path never changes."""
        ...

    def create(self, name: str) -> str:
        """Make an empty writable tree and return its path. Atomic."""
        ...

    def snapshot(self, source: str, name: str, *, sealed: bool = False) -> str:
        """Make tree `name` with the content of tree `source` and return its path. With `sealed`, `name` is sealed.

        The copy keeps owners, modes, extended attributes, whiteouts, hard links and holes. It has all data written
        before the call, also in the page cache and in shared memory maps. Stop or freeze the writers of `source` first.
        btrfs: writes out the source's dirty data and makes one commit, whatever the tree's size; durable on return. A
        file that is written to meanwhile may have old, new or no content (measured in a third of such snapshots).
        copy: walks the tree and, without reflinks, copies all its data; durable only after `sync`; may fail if a file
        is written to meanwhile.
        After a crash, `name` exists as a whole or not at all. On a full pool this call and `create` fail.
        """
        ...

    def seal(self, name: str) -> None:
        """Make the tree unchangeable for good. No file of the tree may be open for writing.

        btrfs: the kernel refuses to open the tree's files for writing. copy, and any read-only pool: the caller must
        not change it. No error if the tree is sealed already. A snapshot of a sealed tree is not sealed. Works on a
        full pool.
        """
        ...

    def limit(self, name: str, most_bytes: int) -> str:
        """Limit what the tree has written itself, including what only its snapshots still keep, to `most_bytes`.
        Writing more fails with EDQUOT. Returns "", or the reason, as text, why the pool cannot enforce a limit.
        """
        ...

    @property
    def limits(self) -> Mapping[str, int]:
        """The limits of trees that have one, by tree, as far as this process has set them."""
        ...

    def written_bytes(self, name: str) -> int | None:
        """The bytes of the tree that count for `limit`. None if the pool does not count (yet)."""
        ...

    def remove(self, name: str) -> None:
        """Remove a tree, sealed or not. No error if it is missing. On return the name is free, also after a crash.

        btrfs: takes the same short time for any tree; the space is free some seconds later (up to a minute on the
        machine's own btrfs). copy: walks the tree. Works on a full pool.
        Raises StateConflict if something is mounted in the tree in the caller's mount namespace: `copy` would remove
        the mounted files.
        """
        ...

    def list(self) -> tuple[str, ...]:
        """The names of all trees, sorted, without those that are half made or half removed."""
        ...

    def usage(self, name: str, limit_s: float | None = None) -> int:
        """Bytes of the tree's files on disk, including blocks shared with other trees. The tree may be in use. Runs
        `du`: some ms, and about 1 ms per 1,000 files. Raises Failed after `limit_s`.
        """
        ...

    def measure(self, names: Iterable[str], limit_s: float | None = None) -> PoolUsage:
        """Bytes of each tree on disk, and how many of them other trees of the pool do not share.

        btrfs: one pass over all trees, which reads shared metadata once: 0.2 s for 30 snapshots of 40,000 files. Where
        the disk cannot be read, it walks over the files of each tree. Metadata counts, too. copy: walks over the files
        of trees that are not sealed, and of sealed ones the first time; nothing counts as shared. The pass, and each
        walk, is given up after `limit_s`.
        """
        ...

    def sync(self, name: str) -> None:
        """Make the tree's present content durable, so that it survives a power loss. Works on a full pool.

        btrfs: writes out this tree's dirty data only, so a snapshot that follows is fast. copy: writes out all dirty
        data of the file system.
        """
        ...

    def mark(self, name: str) -> int | None:
        """Make the tree's present content durable; return a number by which `views.touched_after` finds all later
        changes. None if the driver cannot tell them.
        """
        ...

    def close(self) -> None:
        """Unmount the pool from the caller's mount namespace; sessions that use it keep its file system mounted. Only
        `close` may be called afterwards.
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
    """Turn an OSError, CalledProcessError or TimeoutExpired of the `with` into Failed; FileExistsError into
    StateConflict. `tried` and `on` begin the error's message.
    """
    try:
        yield
    except FileExistsError as err:
        raise StateConflict(tried, on, NAME_TAKEN) from err
    except OSError as err:
        next_step = NEXT_STEPS.get(err.errno or 0, _LOOK)
        raise Failed(tried, on, err.strerror or str(err), next_step, code=of_machine(err.errno)) from err
    except subprocess.TimeoutExpired as err:
        raise Failed(tried, on, f"it takes longer than {err.timeout:g} s", _LOOK) from err
    except subprocess.CalledProcessError as err:
        lines = os.fsdecode(err.stderr).strip().splitlines() or [f"exit status {err.returncode}"]
        raise Failed(tried, on, lines[-1], _LOOK) from err


@contextmanager
def more_space(pool: Pool, name: str, usual_bytes: int | None, more_bytes: int = GIB << 20) -> Iterator[None]:
    """Raise the limit of a tree by `more_bytes` in the `with` block. `usual_bytes`: its limit if this process has set
    none; None: no limit.
    """
    most_bytes = pool.limits.get(name, usual_bytes)
    if most_bytes is None:
        yield
        return
    pool.limit(name, most_bytes + more_bytes)
    try:
        yield
    finally:
        if pool.limits.get(name) == most_bytes + more_bytes:  # else it was limited, or no longer is, meanwhile
            pool.limit(name, most_bytes)
