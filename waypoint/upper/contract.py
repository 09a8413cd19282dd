"""What every pool of upper trees promises, whichever driver is under it.

A tree is a folder with a name; what lies in it is the session's business. A name is any file name of at most 200
bytes that does not start with a dot (those are the drivers' own). One process at a time has a home's pool open; in
it, several threads may call, for different names. Every call blocks: an event loop makes them in a thread.

Errors of every call: StateConflict (the name is taken), UnknownName (there is no such tree), Failed (the machine
refused: disk full, I/O error; the OSError or CalledProcessError is its `__cause__`), ValueError (not a name; a bug
of the caller). A call that raises has changed nothing that `list` shows.
"""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from waypoint.model.errors import Failed, StateConflict

GIB = 1 << 30
MAX_NAME_BYTES = 200
NEXT_STEPS = {
    errno.ENOSPC: "free some disk space, or discard branches that are not needed",
    errno.EROFS: "see the kernel's log (dmesg): the file system has become read-only",
    errno.EIO: "see the kernel's log (dmesg): the disk has failed",
}


class GrowthOutcome(StrEnum):
    """What came of asking a pool to grow.

    ENOUGH: nothing to do. GROWN: there is more now. REFUSED: the disk under the pool has not enough to spare (go on,
    but tell the user). FIXED: this driver's space is the disk's own and cannot be made to grow.
    """

    ENOUGH = "enough"
    GROWN = "grown"
    REFUSED = "refused"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Growth:
    """What `grow_if_needed` found and did. `free_bytes`: free in the pool afterwards. `said`: why not, for people."""

    outcome: GrowthOutcome
    free_bytes: int
    added_bytes: int = 0
    said: str = ""


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Sizes of a pool that is a file, in bytes.

    `initial`: of a new file. `step`: growth comes in whole steps. `headroom`: it grows when less than this is free
    in it. `floor`: what making or growing the file must leave free on the file system around it.
    """

    initial_bytes: int
    step_bytes: int
    headroom_bytes: int
    floor_bytes: int


def usual_sizes(host_total_bytes: int, host_free_bytes: int) -> PoolSizes:
    """The sizes for real use on a file system of that size with that much free."""
    return PoolSizes(
        initial_bytes=min(2 * GIB, host_free_bytes // 4),
        step_bytes=GIB,
        headroom_bytes=GIB,
        floor_bytes=max(GIB, host_total_bytes // 20),
    )


class Pool(Protocol):
    """An open pool. Made by `open_pool.open_pool`."""

    @property
    def driver(self) -> str:
        """`btrfs` or `copy`: what to give to `open_pool` the next time."""
        ...

    def path(self, name: str) -> str:
        """Where the tree `name` is or would be. It stays the same as long as the tree exists."""
        ...

    def create(self, name: str) -> str:
        """Make an empty writable tree and return its path. Atomic."""
        ...

    def snapshot(self, source: str, name: str, *, sealed: bool = False) -> str:
        """Make tree `name` with the content of tree `source`, return its path. With `sealed` it is so from the start.

        Kept is all that overlayfs and the files' owners need: attributes of any kind, whiteouts, hard links, holes.
        The copy is of one moment if nothing writes meanwhile: stop or freeze the writers first. What is written to the
        page cache before the call is in it, memory maps included.
        btrfs: takes the time that the source's dirty data needs to be written out and one commit, whatever the tree's
        size; durable on return. If something does write, names and folders are of one moment, but a file written to
        during the call may have old, new or no content (measured: a third of such snapshots were torn).
        copy: takes a walk and, without reflinks, the tree's size; durable only after `sync`; if something writes, the
        call may fail.
        After a crash `name` is there as a whole or not at all. On a full pool this fails, and so does `create`.
        """
        ...

    def seal(self, name: str) -> None:
        """Declare that the tree does not change any more, for good. Only of a tree that nothing has open for writing.

        btrfs: the kernel refuses to open anything in it for writing. copy: recorded, for `is_sealed`; the caller keeps
        the promise. Sealing again is fine. A snapshot of a sealed tree is not sealed. Works on a full pool.
        """
        ...

    def is_sealed(self, name: str) -> bool: ...

    def remove(self, name: str) -> None:
        """Remove a tree, sealed or not; removing a missing one is fine. On return the name is free, also after a crash.

        btrfs: takes the same short time for any tree; the space comes back some seconds later (a minute on a native
        btrfs). copy: takes a walk. Works on a full pool.
        Raises StateConflict if something is mounted in it, in the caller's view (copy would remove what is mounted).
        """
        ...

    def list(self) -> tuple[str, ...]:
        """The names of all trees, sorted. None of them is half made or half removed."""
        ...

    def usage(self, name: str) -> int:
        """Bytes on disk that the tree refers to, those shared with other trees included.

        Costs a process and a walk over the tree (some ms, and about 1 ms per 1,000 files); the tree may be in use.
        """
        ...

    def free_bytes(self) -> int:
        """What can still be written to the pool as it is now (without growing)."""
        ...

    def sync(self, name: str) -> None:
        """Make the tree's files as they are now durable: they survive a power loss.

        btrfs: writes out this tree's dirty data and no neighbour's. Called just before a snapshot it makes that one
        fast. copy: writes out all dirty data of the file system. Works on a full pool.
        """
        ...

    def grow_if_needed(self) -> Growth:
        """Make the pool larger if less than the headroom is free in it. Meant to be called now and then.

        Never raises for want of space, and never takes more than leaves the floor free on the file system around it.
        """
        ...

    def close(self) -> None:
        """Let go of the pool, which goes out of the caller's mount namespace. Only `close` may be called after that.

        Sessions that still use the pool keep its file system alive; opening it again finds that very file system.
        """
        ...


def checked_name(name: str) -> str:
    """`name`, or ValueError if it is not a tree's name."""
    encoded = os.fsencode(name)
    if not 0 < len(encoded) <= MAX_NAME_BYTES or encoded.startswith(b".") or b"/" in encoded or b"\0" in encoded:
        raise ValueError(f"not the name of an upper tree: {name!r}")
    return name


@contextmanager
def refusals(tried: str, on: str) -> Iterator[None]:
    """Turn what the kernel or a program says inside into Failed, or into StateConflict if a name is taken."""
    try:
        yield
    except FileExistsError as err:
        raise StateConflict(tried, on, "the name is taken", "remove that one first, or use another name") from err
    except OSError as err:
        raise Failed(tried, on, err.strerror or str(err), NEXT_STEPS.get(err.errno or 0, "")) from err
    except subprocess.CalledProcessError as err:
        lines = os.fsdecode(err.stderr).strip().splitlines() or [f"exit status {err.returncode}"]
        raise Failed(tried, on, lines[-1]) from err
