"""The layer `processes`: CRIU's images of all tasks of the session, with their memory."""

import contextlib
import functools
import os
import shutil
import socket
import struct
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from waypoint.capture.layers import base_files
from waypoint.capture.layers.files import damaged, images_lost
from waypoint.capture.layers.layer import Area, Layer, Part, RestoreTarget, StoredFolder, Taking
from waypoint.capture.layers.subject import Subject
from waypoint.capture.steps import Step, reach
from waypoint.linux.calls import hard_limits, machine
from waypoint.linux.net import sockets, tcp_connections
from waypoint.linux.storage import btrfs, idmapped
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import cgroups, procfs, removed
from waypoint.linux.tasks.removed import RemovedFolder
from waypoint.model.conditions import Degradation, degradation, some_of
from waypoint.model.errors import CannotCapture, Failed, WaypointError
from waypoint.model.paths import is_below
from waypoint.model.records import Capture, IdMap, LeftOut, Machine, ProcessesLayer
from waypoint.processes import (
    certain,
    changed_mappings,
    left_out,
    locks,
    moved_sockets,
    narrow_limits,
    nested_shells,
    ports,
    tcp_repair,
    terminal_queues,
)
from waypoint.processes.certain import Program
from waypoint.processes.criu import comparison, inodes, linked_files, timeless
from waypoint.processes.criu.causes import CriuFailed
from waypoint.processes.criu.comparison import Difference
from waypoint.processes.criu.image_files import NAMES, add_names
from waypoint.processes.criu.linked_files import Place
from waypoint.processes.criu.memory_plan import MemoryPlan, make_plan
from waypoint.processes.criu.options import ERRORS_ONLY, DumpOptions, Notice, OnNotice, RestoreOptions, name_externals
from waypoint.processes.criu.page_maps import PARENT
from waypoint.processes.criu.rpc import Criu, Dump
from waypoint.processes.stopped import stopped
from waypoint.processes.watches import OverlayLayers, Watches
from waypoint.upper import layout
from waypoint.upper.placing import Where

# CRIU gives up a dump if a task does not stop within this time, in which the session is frozen.
STOP_S = 5
# A CRIU that is inactive for this time counts as hung. More than STOP_S, so that CRIU can report the reason itself.
HUNG_S = 7.0
# Memory that a restore leaves free for the rest of the machine.
_SPARE_BYTES = 64 << 20
# The clock of file systems may be behind by some milliseconds.
_COARSE_NS = 20_000_000
_MOST_PROGRAMS = 1000  # a session may make as many as it likes
_READ_AGAIN = 500  # watched files; listing a thousand takes 5 ms


class ProcessesPart(Part):
    """CRIU starts, and examines the kernel, while the session still runs. The dump begins in the pause.

    With `dump_later`, and if CRIU will certainly dump the processes (processes/certain.py), everything but the dump is
    done: the record that `record` returns is `awaited` (capture/dumping_later.py).
    """

    def __init__(self, taking: Taking) -> None:
        super().__init__(taking)
        self._is_later = False
        self._open = contextlib.ExitStack()
        self._dump: Dump | None = None
        self._work_fd = self._images_fd = -1
        self._programs: list[str] = []
        self._ports: list[str] = []
        self._hard_limits: dict[str, int] = {}
        self._versions: set[Program] = set()
        self._tasks = 0
        self._watched = (0, 0)
        self._removed: tuple[RemovedFolder, ...] = ()
        self._watches: Watches | None = None
        self._left_out = left_out.Found([], [], {})
        self._narrow: list[narrow_limits.Narrow] = []
        self._before = self._dumped = 0  # the time in nanoseconds
        self._table: socket.socket | None = None  # lists the sockets of the session's network

    def prepare(self) -> None:
        """Start CRIU, and pass it the removed folders that the processes hold now. If they hold others when they are
        frozen, CRIU refuses, and the second try (taking.py) passes the new list.
        """
        taking = self.taking
        self._before = time.time_ns() - _COARSE_NS
        images = taking.area.hot.images(taking.capture_id)
        facts = taking.subject.facts
        self._removed = _find_removed(taking.subject)
        with contextlib.suppress(ProcessLookupError):  # the session ended: CRIU reports it
            self._table = self._open.enter_context(sockets.open_table(facts.init_pid))
        self._watches = self._open.enter_context(find_watches(taking.area, taking.subject))
        self._watches.look(taking.subject.processes())
        self._work_fd = self._open.enter_context(open_folder(taking.area.hot.work(taking.capture_id)))
        self._images_fd = self._open.enter_context(open_folder(images))
        add_names(self._work_fd, self._watches.take_new())
        self._is_later = taking.copied is None and can_wait(taking) and _is_certain(taking, self._removed)
        if not self._is_later:
            self._start_criu()

    def _start_criu(self) -> None:
        taking = self.taking
        assert taking.criu is not None
        facts = taking.subject.facts
        options = DumpOptions(
            tree_pid=facts.init_pid,
            images_fd=self._images_fd,
            work_fd=self._work_fd,
            freeze_cgroup=facts.cgroup,
            timeout_s=STOP_S,
            externals=name_externals(facts.fixed.outside, "").dump,
            removed=self._removed,
            own_network=facts.setting.net != "host",
            close_connections=facts.setting.net == "host",
            leave_unwritten=taking.copied is not None,
            log_level=taking.log_level,
            deadline_s=HUNG_S,
        )
        self._dump = self._open.enter_context(taking.criu.dumping(options))

    def ready(self) -> None:
        self._note_warnings()
        if not self._is_later:
            self._wait_ready()

    def _wait_ready(self) -> None:
        assert self._dump is not None
        with self._diagnosed():
            self._dump.wait_ready()

    def begin(self) -> None:
        assert self._watches is not None
        processes = self.taking.subject.processes()
        if self._is_later and not _is_certain(self.taking, self._removed):  # it has changed since `prepare`
            self._is_later = False
            self._start_criu()
            self._wait_ready()
        self.taking.is_awaited = self._is_later
        # Listing many costs too much of the pause: if the list has grown, the dump fails and the second try has it.
        if self._watches.number <= _READ_AGAIN or self.taking.log_level != ERRORS_ONLY:
            self._watches.look(processes)
        self._watches.check()
        add_names(self._work_fd, self._watches.take_new())
        if self._table is not None:  # before CRIU connects to its own code in the processes
            self.taking.degraded += ports.outside_unix(self._table, processes)
        narrow_limits.widen(self._narrow)
        if self.taking.copied is not None:
            self.taking.copied.look()
        if self._dump is not None:
            self._dump.go()
            with contextlib.suppress(OSError):  # a zombie has no program
                self._versions = certain.programs(processes)
        self._programs = sorted(procfs.stat(pid).name for pid in processes)
        if self._dump is not None:
            with _opened_root(self.taking.subject) as root:
                self._dump.moved = moved_sockets.find(processes, root)
        self._note_losses(processes)

    def finish(self) -> None:
        """Wait until CRIU has written the images.

        If the name of an open file was removed while another link to the file stays, a CRIU without Waypoint's patches
        gives the file a new name until CRIU ends (criu/linked_files.py). The snapshot is then taken once more.
        """
        if self._is_later:
            return
        assert self._dump is not None
        with self._diagnosed():
            self._dump.wait_written()
        self._dumped = time.time_ns()
        # CRIU has thawed the group for its own code in the tasks. If CRIU were killed now, the tasks would run, with
        # their connections in repair mode.
        cgroups.hold_frozen(self.taking.subject.facts.cgroup)
        for one in locks.lost(self._images_fd, self.taking.subject.processes()):
            self.taking.degraded.append(degradation("lock-not-copied", one))
        if self._removed:
            self._dump.removed = _with_free_names(self._removed, self.taking.subject)
        reach(Step.DUMPED)
        self.taking.files_changed |= linked_files.needs_names(self._images_fd)

    def release(self) -> None:
        if self._is_later:
            return
        assert self._dump is not None
        with self._diagnosed():
            self._dump.let_go()
        narrow_limits.restore(self._narrow)

    def record(self) -> ProcessesLayer:
        with self._diagnosed():
            self._open.close()  # waits until CRIU has written its images, and has ended
        return self._layer(size_bytes=_estimate(self.taking.subject), frozen_us=0) if self._is_later else self._record()

    def _record(self) -> ProcessesLayer:
        taking, dump = self.taking, self._dump
        assert dump is not None
        facts, images = taking.subject.facts, taking.area.hot.images(taking.capture_id)
        tree = taking.area.pool.path(taking.capture_id)
        if taking.copied is not None:
            taking.copied.complete(images)
        _use_names(images, tree)
        _note_inodes(images, tree, facts.fixed.overlays)
        if timers := self._left_out.timers:
            with open_folder(images) as images_fd:
                found = left_out.wall_timers(comparison.wall_timers(images_fd), self._dumped, timers)
            self._left_out.settings.extend(found)
        for name in ("dump.log", "stats-dump", NAMES):
            (taking.area.hot.work(taking.capture_id) / name).unlink(missing_ok=True)
        if len(taking.dumped) > _MOST_PROGRAMS:
            taking.dumped.clear()
        taking.dumped.update(self._versions)
        keep = functools.partial(base_files.keep, taking.area, taking.capture_id, taking.subject, self._before)
        taking.afterwards.append(keep)
        for clocks in images.glob("timens-*.img"):
            clocks.chmod(0o644)  # see `open_for_root_of`
        return self._layer(size_bytes=image_bytes(images), frozen_us=dump.stats.frozen_us)

    def _layer(self, size_bytes: int, frozen_us: int) -> ProcessesLayer:
        assert self.taking.program is not None
        return ProcessesLayer(
            size_bytes=size_bytes,
            count=len(self._programs),
            programs=self._programs,
            frozen_us=frozen_us,
            criu=self.taking.program.version,
            ports=self._ports,
            hard_limits=self._hard_limits,
            tasks=self._tasks,
            watchers=self._watched[0],
            watches=self._watched[1],
            awaited=self._is_later,
            left_out=self._left_out.settings,
            **self.taking.subject.facts.fixed.fixed_fields(),
        )

    def cancel(self) -> None:
        with contextlib.suppress(WaypointError, OSError, ValueError):
            self._open.close()  # CRIU has ended on return
        narrow_limits.restore(self._narrow)
        with contextlib.suppress(OSError):  # the session has ended, and its group is gone
            tcp_repair.end(self.taking.subject.processes())

    def _note_warnings(self) -> None:
        """Note what the images will lack, as far as a running session shows it."""
        taking = self.taking
        processes = taking.subject.processes()
        self._left_out = left_out.find(taking.subject.facts.init_pid, processes)
        taking.degraded += self._left_out.lost
        taking.degraded += _restarted_clocks(taking.subject.facts.init_pid, processes)
        taking.degraded += changed_mappings.find(processes, _overlays(taking.area, taking.subject))
        self._narrow = [one for one in narrow_limits.find(processes) if not one.is_hard]
        self._left_out.settings.extend(narrow_limits.to_keep(self._narrow))
        self._hard_limits = hard_limits.highest(processes)
        self._tasks = _count_tasks(processes)
        self._watched = self._watches.totals() if self._watches is not None else (0, 0)
        taking.degraded += [degradation("nested-shell", name) for name in nested_shells.find(processes)]
        if taking.subject.facts.setting.net == "host":
            self._ports, connections = ports.held_by(processes)
            if self._ports:
                taking.degraded.append(degradation("host-ports", ", ".join(self._ports)))
            if connections:
                taking.degraded.append(degradation("host-connections", ", ".join(connections)))

    def _note_losses(self, processes: list[int]) -> None:
        """Note what the images lack, which is known only in the pause."""
        degraded = self.taking.degraded
        net = self.taking.subject.facts.setting.net
        if self._table is not None:
            degraded += ports.unread(self._table, processes, share_network=net == "host")
            if net != "host":
                connections = list(tcp_connections.listed(self._table))
                degraded += ports.unsent(connections)
                degraded += ports.outside(connections) if net == "private" else []
        degraded += self._watches.unread() if self._watches is not None else []

    @contextlib.contextmanager
    def _diagnosed(self) -> Iterator[None]:
        """If CRIU fails, keep its log."""
        try:
            yield
        except CriuFailed as error:
            taking = self.taking
            name, user = f"{taking.capture_id}-dump.log", taking.subject.facts.setting.user
            raise error.moved(taking.area.hot.keep_log(error.log, name, user.uid)) from error


def can_wait(taking: Taking) -> bool:
    """Whether CRIU may dump the session after `take` has returned. A CRIU without Waypoint's patches may change the
    session's files (`ProcessesPart.finish`), and elsewhere than on x86-64 only its images tell which locks are lost.
    """
    is_own = taking.program is not None and bool(taking.program.key)
    return taking.options.dump_later and is_own and locks.can_take()


def will_wait(taking: Taking) -> bool:
    """Whether CRIU would dump the session, as it is now, after `take` has returned."""
    return can_wait(taking) and _is_certain(taking, _find_removed(taking.subject))


def _is_certain(taking: Taking, removed: Collection[RemovedFolder]) -> bool:
    processes = taking.subject.processes()
    if removed or narrow_limits.find(processes):
        return False
    with contextlib.suppress(OSError):  # a process has ended
        return certain.is_dumped(processes, taking.dumped)
    return False


def _restarted_clocks(init: int, pids: Collection[int]) -> list[Degradation]:
    """Of the programs besides pid 1 and its shell, which leads the session of a terminal."""
    names = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            one = procfs.stat(pid)
            is_shell = one.parent == init and one.session == pid and one.foreground > 0
            if pid != init and not is_shell:
                names.add(one.name)
    return [degradation("clocks-restart", some_of(sorted(names)))] if names else []


def _estimate(subject: Subject) -> int:
    """About how many bytes the images will have."""
    return sum(map(procfs.own_bytes, subject.processes()))


def _count_tasks(pids: Collection[int]) -> int:
    count = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            count += len(procfs.threads(pid))
    return count


def _use_names(images: Path, tree: str) -> None:
    def places(inode: int) -> Iterator[Place]:
        with contextlib.suppress(OSError):  # no btrfs
            for path in map(os.fsdecode, btrfs.paths_of_inode(tree, inode)):
                if in_session := _in_session(path):
                    yield Place(path, in_session)

    with open_folder(images) as images_fd, open_folder(tree) as tree_fd:
        linked_files.use_names(images_fd, tree_fd, places)


def _in_session(path: str) -> str:
    """The path in the session of a path in its upper tree, or ""."""
    folder, _, rest = path.partition("/upper/")
    return os.path.join(layout.target_of(folder), rest) if rest else ""


def _changed_inodes(images: Path, tree: Path) -> list[Degradation]:
    with open_folder(images) as images_fd, open_folder(tree) as tree_fd:
        paths = [_in_session(path) for path in inodes.changed(images_fd, tree_fd)]
    return [degradation("inodes-changed", some_of(paths))] if paths else []


def _note_inodes(images: Path, tree: str, overlays: Collection[str]) -> None:
    def below(path: str) -> str:
        target = max((one for one in overlays if is_below(path, one)), key=len, default="/")
        return os.path.relpath(layout.upper_of(tree, target), tree) + "/" + os.path.relpath(path, target)

    with open_folder(images) as images_fd, open_folder(tree) as tree_fd:
        inodes.note(images_fd, tree_fd, below)


def _find_removed(subject: Subject) -> tuple[RemovedFolder, ...]:
    with contextlib.suppress(FileNotFoundError), _opened_root(subject) as root:  # the session ended: CRIU reports it
        ids, found = subject.facts.fixed.ids, removed.find(subject.processes(), root)
        return tuple(one._replace(uid=ids.inside(one.uid), gid=ids.inside(one.gid)) for one in found)
    return ()


def find_watches(area: Area, subject: Subject) -> Watches:
    """The watched files of the session, for a `with` block."""
    return Watches(subject.facts.init_pid, _overlays(area, subject))


def _overlays(area: Area, subject: Subject) -> Iterator[OverlayLayers]:
    facts = subject.facts
    tree, base = area.pool.path(facts.tree), area.base_folder(facts.setting.base).rstrip("/")
    for target in facts.fixed.overlays:
        yield OverlayLayers(target, layout.upper_of(tree, target), f"{base}{target}")


def _with_free_names(folders: tuple[RemovedFolder, ...], subject: Subject) -> tuple[RemovedFolder, ...]:
    """The folders with unused names. To be called in the pause."""
    with _opened_root(subject) as root:
        return tuple(removed.with_free_names(folders, root))


@contextlib.contextmanager
def _opened_root(subject: Subject) -> Iterator[int]:
    root = procfs.open_root(subject.facts.init_pid)
    try:
        yield root
    finally:
        os.close(root)


class Processes(Layer):
    kind = "processes"
    tiers = frozenset(["live"])

    def part(self, taking: Taking) -> ProcessesPart:
        return ProcessesPart(taking)

    def check(self, area: Area, origin: Capture, copies: int, leaving: Collection[int] | None) -> None:
        """Truncated images are refused: CRIU would wait for ever for the rest of their memory."""
        layer = self.of(origin)
        _check_memory(origin, layer, copies)
        if leaving is not None:
            _check_ports(origin, layer, copies, leaving)
        images = area.hot.images(origin.id)
        if area.hot.is_lost(origin.id):
            raise images_lost("restore the processes of", origin)
        try:
            size = image_bytes(images)
        except FileNotFoundError as error:
            raise damaged(origin, f"{images} is missing") from error
        if (images / PARENT).is_symlink():  # CRIU would follow it
            raise damaged(origin, f"{images / PARENT} is a link")
        if size != layer.size_bytes:
            raise damaged(origin, f"{images} has {size} bytes, written were {layer.size_bytes}")

    def check_machine(self, origin: Capture) -> None:
        """Raise CannotCapture if this machine has another kernel than the capture's, a processor without its features,
        or lacks a path that the session masks: the images have a mount there. Some masked paths exist only with a
        kernel module loaded or a CPU online.
        """
        if said := _other_machine(origin.machine):
            next_step = "restore it on the machine of the capture"
        elif gone := [path for path in self.of(origin).masked if not os.path.lexists(path)]:
            said = f"this machine has no {', '.join(gone)}, which the session hides by a mask"
            next_step = "make this path exist again: load the kernel module, or bring the processor online"
        else:
            return
        raise CannotCapture("restore the processes of", origin.id[:12], said, next_step, code="other-machine")

    def of(self, origin: Capture) -> ProcessesLayer:
        found = origin.layer(ProcessesLayer)
        assert found is not None
        return found

    def make_names(self, area: Area, origin: Capture, tree: str) -> None:
        """Prepare the upper tree `tree` for `restore`, before it is mounted (processes/criu/linked_files.py,
        base_files.py).
        """
        layer, where = self.of(origin), area.pool.path(tree)
        there = Where(where, layer.overlays, area.base_folder(origin.setting.base))
        base_files.put_differing(area, origin, there, is_shifted=layer.ids.is_shifted)
        with open_folder(area.hot.images(origin.id)) as images_fd, open_folder(where) as tree_fd:
            linked_files.make_names(images_fd, tree_fd)

    def differences(self, area: Area, origin: Capture, pids: Collection[int]) -> list[Difference]:
        """Compare the restored processes `pids`, which are frozen, with the capture. Raises StoreDamaged."""
        with _reading(area, origin) as images_fd:
            return comparison.differences(images_fd, pids)

    def changed_outside(self, area: Area, origin: Capture) -> list[str]:
        """The paths in the session, on bind mounts, whose files a restore of the processes changes. Even a FIFO or a
        lease on a read-only bind mount counts. Raises StoreDamaged.
        """
        folders = [bind.target for bind in origin.setting.binds]
        with _reading(area, origin) as images_fd:
            return comparison.changed_outside(images_fd, folders) if folders else []

    def is_timeless(self, area: Area, origin: Capture) -> bool:
        """Whether restored processes notice nothing of the time in which they stand frozen. Raises StoreDamaged."""
        with _reading(area, origin) as images_fd:
            return timeless.is_timeless(images_fd)

    def has_connections(self, area: Area, origin: Capture) -> bool:
        """Whether the processes have TCP connections. Raises StoreDamaged."""
        with _reading(area, origin) as images_fd:
            return timeless.has_connections(images_fd)

    @contextlib.contextmanager
    def memory_plan(self, area: Area, origin: Capture) -> Iterator[tuple[MemoryPlan, int]]:
        """The plan of a template, and a descriptor of the images. Raises StoreDamaged."""
        with _reading(area, origin) as images_fd:
            plan = make_plan(images_fd, huge_pages=machine.has_huge_pages())
        with open_folder(area.hot.images(origin.id)) as images_fd:
            yield plan, images_fd

    def folders(self, area: Area, origin: Capture, kind: str) -> dict[str, StoredFolder]:
        return {
            "images": StoredFolder(area.hot.images(origin.id), "pages"),
            "base": StoredFolder(area.hot.base(origin.id), "named"),
        }

    def facts(self, record: dict[str, Any]) -> dict[str, Any]:
        found = msgspec.convert(record, ProcessesLayer)
        return {
            "size_bytes": found.size_bytes,
            "count": found.count,
            "programs": found.programs,
            "frozen_ms": found.frozen_us / 1000,
            "criu": found.criu,
            "ids": "shifted" if found.ids.is_shifted else "host",
            "seccomp": found.seccomp,
        }

    def restore(self, area: Area, origin: Capture, target: RestoreTarget) -> None:
        """Have CRIU restore the tasks. On return they run, unless `target.stays_frozen`. After a failure, incomplete
        tasks may be left in CRIU's cgroup.
        """
        assert target.spawn is not None
        work = target.folder / "criu"
        work.mkdir(mode=0o700)
        layer = self.of(origin)
        shares_files = bool(origin.setting.binds) and locks.can_take()  # CRIU would wait for the locks of others
        with (
            open_for_root_of(layer.ids, area.hot.images(origin.id)) as images_fd,
            open_folder(work) as work_fd,
            _held_until_complete(target, images_fd, layer.left_out, shares_files=shares_files) as on_notice,
        ):
            options = RestoreOptions(
                images_fd=images_fd,
                work_fd=work_fd,
                root=target.root,
                externals=target.externals,
                deadline_s=HUNG_S,
                empty_network=origin.setting.net != "host",
                close_connections=origin.setting.net == "host",
                file_locks=not target.stays_frozen and not shares_files,
                on_notice=on_notice,
            )
            try:
                target.pid = Criu(target.criu_path, target.spawn).restore(options).pid
            except CriuFailed as error:
                name = f"{target.folder.name}-restore.log"
                raise error.moved(area.hot.keep_log(error.log, name, origin.setting.user.uid)) from error
        shutil.rmtree(work)
        target.lost += base_files.changed_on_machine(area, origin)
        target.lost += _changed_inodes(area.hot.images(origin.id), target.tree)


@contextlib.contextmanager
def _held_until_complete(
    target: RestoreTarget, images_fd: int, settings: list[LeftOut], *, shares_files: bool
) -> Iterator[OnNotice | None]:
    """Before the restored tasks run, put unread bytes back into their terminals, make the `settings` again, and have
    the tasks take their locks again: with `shares_files` all of them. Yields CRIU's listener.
    """
    locks_of = [] if target.stays_frozen else locks.to_take(images_fd, all_kinds=shares_files)
    has_unread = terminal_queues.are_taken(target.folder)
    if not (locks_of or has_unread or settings or target.stays_frozen or target.stands_by):
        yield target.on_notice
        return

    def hear(notice: Notice) -> None:
        if target.on_notice is not None:
            target.on_notice(notice)
        if notice.stage == "pre-resume":  # freezes the tasks when CRIU releases them, but not CRIU itself
            cgroups.create(target.aside)
            for pid in cgroups.members(target.cgroup):
                if procfs.inner_pid(pid) == pid:
                    cgroups.write(target.aside, "cgroup.procs", str(pid))
            cgroups.hold_frozen(target.cgroup)

    try:
        yield hear
        if has_unread or settings or target.stays_frozen:
            cgroups.freeze(target.cgroup)
            terminal_queues.put_back(cgroups.members(target.cgroup), target.folder)
        if target.stays_frozen:
            return
        target.lost += left_out.set_again(settings, cgroups.members(target.cgroup))
        calls = left_out.needs_calls(settings)
        if locks_of or calls:
            with stopped(target.cgroup, then_frozen=target.stands_by) as pids:
                lost = locks.take_again(locks_of, pids, mapped_only=not shares_files)
                target.lost += [degradation("lock-lost", one) for one in lost]
                target.lost += left_out.call_again(calls, pids)
        (cgroups.freeze if target.stands_by else cgroups.thaw)(target.cgroup)
    finally:
        cgroups.end(target.aside)


@contextlib.contextmanager
def open_for_root_of(ids: IdMap, folder: Path) -> Iterator[int]:
    """A descriptor of the images in `folder`, owned there by the session's root: CRIU reads them as that user.

    Only the image of the clocks is read before CRIU has become that user, and perhaps before its user namespace has a
    map (restore_task_with_children in CRIU's cr-restore.c), so everybody may read it.
    """
    userns = idmapped.namespace(ids.lines()) if ids.is_shifted else None
    with idmapped.opened(folder, userns) as fd:
        yield fd


@contextlib.contextmanager
def _reading(area: Area, origin: Capture) -> Iterator[int]:
    """A descriptor of the images. What the `with` block raises because an image is malformed becomes StoreDamaged."""
    images = area.hot.images(origin.id)
    try:
        with open_folder(images) as images_fd:
            yield images_fd
    except (ValueError, KeyError, struct.error, FileNotFoundError) as error:
        raise damaged(origin, f"an image in {images} is missing or malformed: {error}") from error


def image_bytes(images: Path) -> int:
    """The size in bytes of CRIU's images in the folder `images`. Raises FileNotFoundError."""
    folders = [images, images / PARENT] if (images / PARENT).is_dir() else [images]
    return sum(entry.stat().st_size for folder in folders for entry in os.scandir(folder) if not entry.is_dir())


def _check_ports(origin: Capture, layer: ProcessesLayer, copies: int, leaving: Collection[int]) -> None:
    if not layer.ports:
        return
    found = ports.taken(layer.ports, leaving) if copies == 1 else layer.ports
    if found:
        is_one = copies == 1
        whose = "other programs have them now" if is_one else "only one copy could have them"
        said = f"it uses ports of the machine's network ({', '.join(found)}), and {whose}"
        next_step = (
            "end the other programs"
            if is_one
            else "make one copy only; a session with --net private can be copied any number of times"
        )
        raise CannotCapture("restore the processes of", origin.id[:12], said, next_step, code="ports-taken")


def _other_machine(captured: Machine | None) -> str:
    """How this machine differs from that of the capture, if processes may not survive the difference; else ""."""
    if captured is None:
        return ""
    release, here = machine.kernel_release(), machine.architecture()
    if captured.kernel != release:
        return f"it was captured with the kernel {captured.kernel}, and this machine runs {release}"
    lacking = sorted({*captured.cpu_features} - {*machine.cpu().features})
    if captured.architecture != here or lacking:
        which = f"{here} {machine.cpu().model}".rstrip()
        more = f", which lacks {' '.join(lacking)}" if captured.architecture == here else ""
        return f"it was captured on a processor {captured.architecture} {captured.cpu}, and this one is {which}{more}"
    return ""


def _check_memory(origin: Capture, layer: ProcessesLayer, copies: int) -> None:
    available = machine.available_memory_bytes()
    needed = layer.size_bytes * copies
    if needed + _SPARE_BYTES > available:
        what = "its processes need" if copies == 1 else f"{copies} copies of its processes need"
        said = f"{what} {needed >> 20} MiB of memory, {available >> 20} MiB are available"
        next_step = "end other sessions" + ("" if copies == 1 else ", or make fewer copies")
        raise Failed("restore the processes of", origin.id[:12], said, next_step, code="out-of-memory")


PROCESSES = Processes()
