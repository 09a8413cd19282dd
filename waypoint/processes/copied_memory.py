"""Copying the memory of a large session before its dump, so that the pause copies only what was written since.

For each large process, a userfaultfd tracks which pages are written (linux/tasks/write_tracking.py). The pages are
protected while the session is frozen for a moment, so that no system call is just filling them, and are copied while it
runs. In the pause CRIU leaves out the pages that are protected still (criu/patches/54-unwritten-memory.patch). The copy
becomes their parent images, to which the next captures of the process link, as long as little has been written: so
their pauses and their images contain only that. Then the memory is copied anew.

The kernel knows which pages are unwritten, and this knowledge ends with the descriptor in this process. So whatever is
lost (the copy, the descriptor, the mapping) makes the next dump larger, never wrong. Shared memory and files are not
tracked, and processes with asynchronous I/O, which writes to memory at any time.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path

from waypoint.linux.storage import files
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import cgroups, mappings, procfs, write_tracking
from waypoint.linux.tasks.ptrace_stop import NotTraceable, stopped
from waypoint.linux.tasks.stages import OpenStage, stage
from waypoint.linux.tasks.states import task_state
from waypoint.linux.tasks.write_tracking import Span, Tracker
from waypoint.model.stages import Stage
from waypoint.processes.criu.page_maps import PARENT, add_parent, map_name, pages_name, without, write_map

log = logging.getLogger(__name__)

LARGE_BYTES = 64 << 20
"""Less memory of a session is not worth a second freeze: copying it takes 50 ms of a pause."""
_PROCESS_BYTES = 16 << 20
_MAPPING_BYTES = 256 << 10
_MOST_SPACE = 1 << 40  # a restore with parent images needs as much address space again
_MOST_TASKS = 200  # stopping each takes some 50 microseconds
_WRITTEN_PART = 8  # the memory is copied anew if more than this part of it has been written, and _PROCESS_BYTES
_RESTS = 4  # captures, after a copy most of which was written over before the dump

Freeze = Callable[[], AbstractContextManager[object]]


class _Process:
    """One tracked process. `copied`: the pages in its copy, which is in the folder `holder`. `unwritten`: those that
    the present dump leaves out. `rests`: for how many captures it is not copied.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.start_ticks = procfs.start_ticks(pid)
        self.inner_pid = procfs.inner_pid(pid)
        self.tracker: Tracker | None = None
        self.tracked: list[Span] = []
        self.copied: list[Span] = []
        self.unwritten: list[Span] = []
        self.holder = Path()
        self.rests = 0

    def forget(self) -> None:
        """End the tracking: the process has no protected pages any more."""
        if self.tracker is not None:
            self.tracker.close()
        self.tracker, self.tracked, self.copied, self.unwritten = None, [], [], []

    def look(self) -> int:
        """Note the pages that are unwritten now; return their bytes. Raises OSError."""
        self.unwritten = []
        if self.tracker is not None:
            for mapping in self.tracked:
                self.unwritten += self.tracker.unwritten(mapping)
        return _bytes_of(self.unwritten)

    def protect(self) -> list[Span]:
        """Track and protect all memory that can be tracked, and return it. Raises OSError."""
        assert self.tracker is not None
        self.tracked, self.copied, found = [], [], []
        for mapping in _trackable(self.pid):
            with contextlib.suppress(OSError):  # the process has its own userfaultfd there
                self.tracker.register(mapping)
                self.tracked.append(mapping)
                found += self.tracker.protect(mapping)
        return found

    def copy(self, spans: list[Span], folder: Path, on_progress: Callable[[int], None]) -> None:
        """Write the parent images of the process. Raises OSError."""
        self.holder = folder
        with open_folder(folder) as images_fd:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            pages_fd = os.open(pages_name(self.inner_pid), flags, 0o600, dir_fd=images_fd)
            try:
                copied = write_tracking.copy(self.pid, spans, pages_fd, on_progress)
            finally:
                os.close(pages_fd)
            write_map(images_fd, self.inner_pid, self.inner_pid, copied)
        self.copied = copied

    def names(self) -> tuple[str, str]:
        return pages_name(self.inner_pid), map_name(self.inner_pid)

    def remove(self, folder: Path) -> None:
        """Remove the parent images of the process from `folder`."""
        for name in self.names():
            (folder / name).unlink(missing_ok=True)


class CopiedMemory:
    """The copies of one live session's memory. For each capture `prepare`, then `look` in the pause, and `complete`
    after the dump. All methods block, and are called by one thread at a time.
    """

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}
        self._used: list[_Process] = []  # by the present capture
        self._folder = Path()  # of its parent images

    def close(self) -> None:
        """End the tracking of all processes."""
        for process in self._processes.values():
            process.forget()
        self._processes.clear()

    def is_useful(self, cgroup: str) -> bool:
        """Whether the session has large processes."""
        return write_tracking.is_supported() and bool(self._large_processes(cgroups.members(cgroup)))

    def is_current(self, cgroup: str) -> bool:
        """Whether `prepare` could use a present copy of one of the session's processes again."""
        return any(_is_current(process) for process in self._large_processes(cgroups.members(cgroup)))

    def prepare(self, cgroup: str, folder: Path, freeze: Freeze | None) -> bool:
        """Make parent images of the large processes in the new folder `folder`. Return False if there are none: then
        nothing must be left out of the dump.

        `freeze`: freezes the session in a `with` block, in a state in which its tasks can be traced; None: only present
        copies are used. Raises OSError if the disk is full, and what `freeze` raises.
        """
        self._used, self._folder = [], folder
        large = self._large_processes(cgroups.members(cgroup))
        files.make_folder(str(folder), 0o711)
        stale: list[_Process] = []
        for process in large:
            (self._used if self._link(process) else stale).append(process)
        if freeze is not None:
            self._copy(cgroup, stale, freeze)
        for process in self._processes.values():
            if process not in self._used:
                process.forget()
        if not self._used:
            folder.rmdir()
        return bool(self._used)

    def look(self) -> None:
        """Note which pages CRIU will leave out. To be called when the session is frozen, before CRIU sees it: what is
        written after that, by CRIU's code in the tasks, is in its images, too.
        """
        for process in self._used:
            try:
                process.look()
                is_whole = not any(without(process.unwritten, process.copied))
            except OSError as error:
                log.warning("the written memory of %s cannot be read: %s", process.pid, error)
                is_whole = False
            if not is_whole:
                process.forget()  # so that CRIU leaves out nothing
                process.remove(self._folder)

    def complete(self, images: Path) -> None:
        """Give CRIU's images in the folder `images` their parent images. Raises OSError; ValueError if they are
        malformed.
        """
        with open_folder(images) as images_fd:
            for process in self._used:
                if process.unwritten:
                    add_parent(images_fd, process.inner_pid, process.unwritten)
        self._folder.rename(images / PARENT)
        for process in self._used:
            process.holder = images / PARENT

    def _large_processes(self, pids: Collection[int]) -> list[_Process]:
        """Forget the processes that have ended; return those that are worth it."""
        for pid, process in list(self._processes.items()):
            if pid not in pids or not procfs.is_same(pid, process.start_ticks):
                self._processes.pop(pid).forget()
        sizes = {pid: procfs.own_bytes(pid) for pid in pids}
        if sum(sizes.values()) < LARGE_BYTES:
            return []
        found = []
        for pid, size in sizes.items():
            if size >= _PROCESS_BYTES:
                with contextlib.suppress(OSError):  # it has ended
                    found.append(self._processes.setdefault(pid, _Process(pid)))
        return found

    def _link(self, process: _Process) -> bool:
        """Use the present copy again. Returns False if too much has been written since, or there is none."""
        if not _is_current(process):
            return False
        try:
            for name in process.names():
                os.link(process.holder / name, self._folder / name)
        except OSError as error:
            log.info("the copy of the memory of %s is lost: %s", process.pid, error)
            process.remove(self._folder)
            return False
        return True

    def _copy(self, cgroup: str, stale: list[_Process], freeze: Freeze) -> None:
        processes = [process for process in stale if not process.rests]
        for process in stale:
            process.rests = max(0, process.rests - 1)
        if not processes or len(cgroups.threads(cgroup)) > _MOST_TASKS:
            return
        for process in processes:
            process.forget()  # pages that stayed protected, in mappings that are too small now, would not be copied
        with freeze():
            _track(cgroup, processes)
            tracked = [process for process in processes if process.tracker is not None]
            protected = [(process, _protected(process)) for process in tracked]
        total = sum(_bytes_of(spans) for _, spans in protected)
        with stage(Stage.COPY_MEMORY, total=total, unit="bytes") as under_way:
            for process, spans in protected:
                self._copy_one(process, spans, under_way)

    def _copy_one(self, process: _Process, spans: list[Span], under_way: OpenStage) -> None:
        before = under_way.done
        process.copy(spans, self._folder, lambda done: under_way.report(before + done))
        if process.look() >= _bytes_of(process.copied) // 2 and process.copied:
            self._used.append(process)
        else:
            log.info("process %s writes its memory faster than it is copied", process.pid)
            process.rests = _RESTS
            process.remove(self._folder)


def _is_current(process: _Process) -> bool:
    """Whether there is a copy of the process, and little has been written since."""
    try:
        unwritten = process.look()
        written = procfs.own_bytes(process.pid) - unwritten
    except OSError as error:
        log.info("the copy of the memory of %s is lost: %s", process.pid, error)
        return False
    if not unwritten:  # perhaps the process has executed another program
        process.forget()
    return bool(process.copied) and written <= max(_PROCESS_BYTES, _bytes_of(process.copied) // _WRITTEN_PART)


def _bytes_of(spans: Collection[Span]) -> int:
    return sum(span.end - span.start for span in spans)


def _track(cgroup: str, processes: list[_Process]) -> None:
    """Let processes of the frozen group make their userfaultfds. Those that cannot stay without one."""
    processes = [process for process in processes if task_state(process.pid).state not in "Tt"]
    if not processes:
        return
    try:
        with stopped(cgroup, [tid for tid in cgroups.threads(cgroup) if task_state(tid).state not in "ZX"]):
            for process in processes:
                try:
                    process.tracker = Tracker(process.pid)
                except OSError as error:
                    log.info("the memory of %s cannot be tracked: %s", process.pid, error)
    except NotTraceable as error:
        log.info("the memory of the session cannot be tracked: %s", error)


def _protected(process: _Process) -> list[Span]:
    try:
        return process.protect()
    except OSError as error:
        log.info("the memory of %s cannot be tracked: %s", process.pid, error)
        process.forget()
        return []


def _trackable(pid: int) -> list[Span]:
    """The private anonymous mappings of the process that are large enough. Raises OSError."""
    found = mappings.read_mappings(pid)
    space = sum(one.end - one.start for one in found if one.rights.endswith("p"))
    if space > _MOST_SPACE or any(one.path.startswith("/[aio]") for one in found):
        return []
    return [
        Span(one.start, one.end)
        for one in found
        if one.rights.endswith("p")
        and not one.inode
        and (one.path in ("", "[heap]") or one.path.startswith("[anon:"))
        and one.end - one.start >= _MAPPING_BYTES
    ]
