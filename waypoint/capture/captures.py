"""The captures of a home. Only this package knows where a capture is stored and which upper tree belongs to it.

The life of a capture: `take` makes it, the caller of `take` records it (`records/names`), `hold` keeps it on disk while
it is read or restored, `drop` removes it. The files of an ended session become a capture, too (sealing.py).
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import filterfalse
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from shellwrap.ring import Ring
from waypoint.capture import bounds, sealing, survey
from waypoint.capture.bases import Bases
from waypoint.capture.dumping_later import Completion, FrozenSession, dump, is_awaited, without_processes
from waypoint.capture.layers import base_files
from waypoint.capture.layers.attached import ATTACHED
from waypoint.capture.layers.files import FILES, damaged
from waypoint.capture.layers.hot import Hot
from waypoint.capture.layers.hot_memory import SHARE, Within
from waypoint.capture.layers.layer import Area, Attachment, CaptureOptions, RestoreTarget, Taking
from waypoint.capture.layers.processes import PROCESSES
from waypoint.capture.layers.programs import PROGRAMS
from waypoint.capture.layers.shell import SHELL, KeptShell, ask_shell_with_space
from waypoint.capture.layers.subject import Subject, SubjectFacts
from waypoint.capture.layers.table import LAYERS, layer_of
from waypoint.capture.layers.terminal import TERMINAL
from waypoint.capture.sealing import FinalShellState
from waypoint.capture.storing.archives import Archives
from waypoint.capture.storing.images import Images, Writing
from waypoint.capture.storing.orders import Ingested
from waypoint.capture.sweeping import Inventory
from waypoint.capture.taking import drop_layers, take
from waypoint.linux.calls import machine
from waypoint.linux.tasks.stages import stage
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import (
    CannotCapture,
    Failed,
    HostLacks,
    StateConflict,
    UnknownName,
    WaypointError,
    of_machine,
)
from waypoint.model.ids import new_id
from waypoint.model.records import (
    AttachedLayer,
    Capture,
    EndReason,
    Layers,
    LiveRow,
    ProcessesLayer,
    ShellLayer,
    User,
)
from waypoint.model.session_facts import SurveyedProcess
from waypoint.model.stages import Stage
from waypoint.processes.certain import Program
from waypoint.processes.copied_memory import CopiedMemory
from waypoint.processes.criu.comparison import Difference
from waypoint.processes.criu.memory_plan import MemoryPlan
from waypoint.processes.criu.rpc import Criu, CriuProgram
from waypoint.processes.criu.worker import Spawn
from waypoint.processes.profiles import Profiles
from waypoint.processes.respawn.manifest import Manifest
from waypoint.records.change import Change
from waypoint.records.names import Names
from waypoint.records.reading import content_removed
from waypoint.upper.contract import NEXT_STEPS, Pool, PoolUsage, Shares, refusals
from waypoint.upper.placing import Where

FindCriu = Callable[[], CriuProgram]
"""Finds the CRIU to use. Blocks, the first time for seconds. Raises HostLacks if no CRIU works, and Failed if the
search itself fails.
"""

AWAIT_S = 60.0  # how long `hold` waits for a dump, which takes milliseconds unless the disk is full


class SpawnBeside(Protocol):
    """Maps the host's pid of a session's pid 1 to a function that starts a CRIU for the dump of that session.
    `is_urgent`: whether somebody waits for the session.
    """

    def __call__(self, init_pid: int, *, is_urgent: bool = True) -> Spawn: ...


class MemoryUse(NamedTuple):
    """The hot area in memory. `why_not`: why captures are not written to it; "" if they are. `is_wanted`: whether they
    would be on another machine.
    """

    used_bytes: int
    size_bytes: int
    why_not: str
    is_wanted: bool


class Usage(NamedTuple):
    """Bytes on disk, outside of the store. `pool`: of the files of captures and live sessions. `hot`: by the id of a
    capture, of everything except its files, which no two captures share. `hot_bytes`: of all captures, and of what is
    left of removed ones. `live`: the upper trees of live sessions.
    """

    pool: PoolUsage
    hot: dict[str, int]
    hot_bytes: int
    live: frozenset[str]

    def files_of(self, capture: Capture) -> Shares | Failed | None:
        """Failed: why the files could not be measured. None if the capture has been removed."""
        return self.pool.of(capture.tree)

    def copies_bytes(self) -> int:
        """The bytes of all captures. What they share with a live session counts. So do all files of a live session that
        could not be measured.
        """
        own = sum(shares.own_bytes for tree, shares in self.pool.trees.items() if tree in self.live)
        return max(0, self.hot_bytes + self.pool.unique_bytes - own)


class Captures:
    """The captures of one home. All methods block and are thread-safe; none may be called in the event loop."""

    def __init__(  # noqa: PLR0913  # the parts of a home
        self,
        home: Path,
        pool: Pool,
        names: Names,
        find_criu: FindCriu,
        spawn_beside: SpawnBeside,
        writing: Writing = contextlib.nullcontext,
        *,
        profiles: Profiles | None = None,
    ) -> None:
        self.profiles = profiles or Profiles(home)
        self._area = Area(pool, Hot(home), self.profiles)
        self.images = Images(home / "store", self._area, names, writing)
        self.archives = Archives(self.images, self._area, names)
        self.bases = Bases(self.images, self._area, names, writing, self.readmit)
        self._names = names
        self._find_criu = find_criu
        self._spawn_beside = spawn_beside
        self._lock = threading.Lock()
        self._holders: dict[str, int] = {}
        self._drop_after_hold: set[str] = set()
        self._removing: set[str] = set()
        self._moving = threading.Lock()  # held while a capture is moved to the disk, or evicted
        self._executor = ThreadPoolExecutor(1)
        self._copies: dict[str, CopiedMemory] = {}  # by the cgroup of the session
        self._dumped: set[Program] = set()
        self._awaited: dict[str, threading.Event] = {}
        """By capture that CRIU has not dumped yet (dumping_later.py)."""
        self._unfinished: dict[str, Future[list[Degradation]]] = {}
        """By capture, the work that no answer waits for, until it has ended without a loss."""

    def take(self, subject: Subject, options: CaptureOptions) -> Capture:
        """Take a capture of a live session. The session continues, also after a failure. The caller must record the
        capture or call `drop`.

        Raises CannotCapture if the tier `live` was requested and the processes cannot be dumped, StateConflict if the
        session has just ended, and Failed for other causes (CRIU was killed, the disk is full).
        """
        self._area.pool.check_writable()
        capture_id = new_id()
        with self._names.change("capture") as change:
            change.add_disposable(capture_id)  # until it is recorded, the next daemon may remove it from disk
        try:
            memory_bytes = bounds.check(self._area, subject, options.tier)
            with ThreadPoolExecutor(2) as executor:
                taking = Taking(capture_id, subject, self._area, options, executor, self._dumped, memory_bytes)
                if options.tier not in ("files", "respawn"):
                    self._find_dumper(taking)
                taken = take(taking)
            if is_awaited(taken):
                self.await_dump(taken)
            else:
                self._area.hot.release(capture_id)
            self._finish(taken, taking.afterwards, at_once=options.keep_frozen and not options.goes_on)
            return taken
        except BaseException as error:
            drop_layers(self._area, capture_id)
            if isinstance(error, WaypointError | OSError) and not subject.processes():
                branch = subject.facts.branch
                next_step = f"its files are kept: 'waypoint shell {branch}' starts a session with them"
                raise StateConflict(
                    "capture", f"branch {branch}", "its session has just ended", next_step, code="not-live"
                ) from error
            if isinstance(error, OSError):
                said = f"{error.strerror} {os.fsdecode(error.filename or '')}".rstrip()
                next_step = NEXT_STEPS.get(error.errno or 0, "try again")
                raise Failed(
                    "capture", f"branch {subject.facts.branch}", said, next_step, code=of_machine(error.errno)
                ) from error
            raise

    @stage(Stage.ATTACH, "the layer")
    def attach(self, origin: Capture, one: Attachment) -> Capture:
        """Make a copy of `origin` with one more attached layer, or with another one of this kind. It shares its files
        with `origin`, where the disk can. The caller must record it or call `drop`.
        """
        origin = self.complete(origin)
        capture_id = new_id()
        with self._names.change("capture") as change:
            change.add_disposable(capture_id)
        try:
            with self.hold(origin), refusals("attach", f"{one.kind}={one.source}"):
                self._area.pool.snapshot(origin.tree, capture_id, sealed=True)
                self.images.fill(origin)
                self._area.hot.link(origin.id, capture_id)
                layer = ATTACHED.add(self._area, capture_id, one)
        except BaseException:
            drop_layers(self._area, capture_id)
            raise
        files = {**origin.layers["files"], "tree": capture_id}
        return msgspec.structs.replace(
            origin,
            id=capture_id,
            parents=[origin.id],
            created=time.time(),
            reason="attached",
            layers={**origin.layers, "files": files, one.kind: msgspec.to_builtins(layer)},
        )

    def _finish(self, taken: Capture, work: list[Callable[[], list[Degradation]]], *, at_once: bool) -> None:
        """Do the rest of the work in the background, or `at_once` if the session is about to end."""

        def run() -> list[Degradation]:
            return [one for part in work for one in part()]

        if at_once:
            taken.degraded.extend(run())
            return
        self._unfinished[taken.id] = future = self._executor.submit(run)
        future.add_done_callback(lambda done: None if done.result() else self._unfinished.pop(taken.id, None))

    def complete(self, capture: Capture) -> Capture:
        """Wait for the work that no answer has waited for, and record what the capture lacks because this failed.
        Returns the record.
        """
        capture = self.settled(capture)
        future = self._unfinished.pop(capture.id, None)
        lacking = future.result() if future is not None else base_files.lost(self._area, capture)
        if not lacking:
            return capture
        with self._names.change("capture") as change:
            return change.add_degraded(capture.id, lacking)

    def await_dump(self, capture: Capture) -> None:
        """Let `hold` wait until `dump_awaited` has completed the capture, which cannot be removed meanwhile."""
        with self._lock:
            self._awaited[capture.id] = threading.Event()
            self._holders[capture.id] = self._holders.get(capture.id, 0) + 1

    def dump_awaited(self, capture: Capture, facts: SubjectFacts) -> Completion:
        """Dump the frozen session, for a capture that `take` has returned `awaited`. The caller records the result and
        then calls `note_dumped`. Raises Failed, OSError if a later call may succeed.
        """
        if not self.images.is_hot(capture):
            raise damaged(capture, "its files are missing from the pool")
        try:
            program = self._find_criu()
        except HostLacks as error:
            return without_processes(capture, "no-criu", error.said)
        criu = Criu(program.path, self._spawn_beside(facts.init_pid, is_urgent=False))
        copied = self._copies_of(facts.cgroup) if program.key else None
        return dump(self._area, capture, FrozenSession(facts, copied), program, criu)

    def note_dumped(self, capture_id: str) -> None:
        """The capture is complete, or will be dropped."""
        with self._lock:
            event = self._awaited.pop(capture_id, None)
        if event is not None:
            self._area.hot.release(capture_id)
            event.set()
            self._let_go(capture_id)

    def settled(self, capture: Capture) -> Capture:
        """Wait until CRIU has dumped the processes of the capture. Returns its complete record."""
        if not is_awaited(capture):
            return capture
        event = self._awaited.get(capture.id)
        if event is not None and not event.wait(AWAIT_S):
            said = "the session that it keeps could not be dumped yet"
            raise Failed("use", f"capture {capture.id[:12]}", said, "see 'waypoint daemon logs', and try again")
        return self._names.captures_of([capture.id], may_lack=True).get(capture.id, capture)

    def _find_dumper(self, taking: Taking) -> None:
        """Set the CRIU of `taking`, or the reason why there is none. Raises Failed if the search itself fails."""
        facts = taking.subject.facts
        try:
            taking.program = self._find_criu()
        except HostLacks as error:
            taking.no_criu = survey.no_criu(error)
        else:
            taking.criu = Criu(taking.program.path, self._spawn_beside(facts.init_pid))
            taking.copied = self._copies_of(facts.cgroup) if taking.program.key else None

    def _copies_of(self, cgroup: str) -> CopiedMemory:
        """The copies of the memory of the session in `cgroup`. Forgets those of sessions that have ended."""
        with self._lock:
            for ended in [one for one in self._copies if not os.path.isdir(one)]:
                self._copies.pop(ended).close()
            return self._copies.setdefault(cgroup, CopiedMemory())

    def survey(self, subject: Subject) -> list[SurveyedProcess]:
        """The processes of a live session, each with the tier that a capture would reach."""
        try:
            self._find_criu()
        except HostLacks as error:
            return survey.survey(self._area, subject, survey.no_criu(error))
        return survey.survey(self._area, subject, None)

    def ask_shell(self, subject: Subject) -> ShellLayer | None:
        """Return the state of the shell of a session that is about to end, to be given to `seal`. Blocks."""
        return ask_shell_with_space(self._area.pool, subject)

    def seal(self, row: LiveRow, reason: EndReason, last: FinalShellState) -> Capture:
        """Make a capture of the files of the ended session `row`, and record it as the branch's tip."""
        return sealing.seal(self._area.pool, self._names, row, reason, last)

    @contextlib.contextmanager
    def hold(self, capture: Capture) -> "Iterator[HeldCapture]":
        """Keep a capture on disk during the `with` block, even if it is dropped, and the pinned base below it. If they
        are in the store only, they are extracted first. Raises UnknownName if it is removed already.
        """
        with contextlib.ExitStack() as held:
            for base in self._base_of(capture):
                held.enter_context(self._hold_alone(base))
            yield held.enter_context(self._hold_alone(capture))

    @contextlib.contextmanager
    def _hold_alone(self, capture: Capture) -> "Iterator[HeldCapture]":
        """Like `hold`, without the base, of which the store needs nothing."""
        with self._kept(capture):
            capture = self.settled(capture)
            self.images.make_hot(capture)
            self._area.hot.note_use(capture.id)
            yield HeldCapture(self._area, capture, self._find_criu, self.images)

    def _base_of(self, capture: Capture) -> list[Capture]:
        """The pinned base below the capture, if there is one. Raises UnknownName if this home does not have it."""
        pinned = capture.setting.pinned
        if pinned is None:
            return []
        found = list(self._names.captures_of([pinned], may_lack=True).values())
        if not found or self._names.standing(pinned).removed:
            said, next_step = "this home does not have the base below it", "import an archive that has it"
            raise UnknownName("read", f"capture {capture.id[:12]}", said, next_step)
        return found

    def is_ready(self, capture: Capture) -> bool:
        """Whether `hold` would return at once."""
        whole = [capture, *self._base_of(capture)]
        return all(self.images.is_hot(one) for one in whole) and not self.is_awaited(capture)

    def readmit(self, capture_id: str) -> None:
        """Let a base be held again that was removed, and is recorded once more (its id follows from its content)."""
        with self._lock:
            self._removing.discard(capture_id)

    @contextlib.contextmanager
    def _kept(self, capture: Capture) -> Iterator[None]:
        """Delay the removal of a capture until the end of the `with` block."""
        with self._lock:
            if capture.id in self._removing:
                raise content_removed(capture.id)
            self._holders[capture.id] = self._holders.get(capture.id, 0) + 1
        try:
            yield
        finally:
            self._let_go(capture.id, capture.layers)

    def _let_go(self, capture_id: str, layers: Layers | None = None) -> None:
        with self._lock:
            self._holders[capture_id] -= 1
            is_last = not self._holders[capture_id]
            if is_last:
                del self._holders[capture_id]
            is_dropped = is_last and capture_id in self._drop_after_hold
            self._drop_after_hold.discard(capture_id if is_last else "")
        if is_dropped:
            drop_layers(self._area, capture_id, layers)

    def is_awaited(self, capture: Capture) -> bool:
        """Whether `hold` would wait for a dump of the capture's session."""
        return capture.id in self._awaited

    def open_memory(
        self, size_bytes: int | None, within: Within[object] | None, why_not: Callable[[list[str]], str] | None
    ) -> None:
        """Open the hot area in memory (hot_memory.py). To be called once, before anything else. `size_bytes`: None: the
        usual size. `within` None: the machine's mount namespace is not known. `why_not`: returns which of these folders
        a session with shifted ids cannot read, and why; None if the sessions have the host's ids.
        """
        area = self._area.hot.memory_area

        def probe() -> str:
            return why_not([str(area.folder)]) if why_not is not None else ""

        area.open(machine.total_memory_bytes() // SHARE if size_bytes is None else size_bytes, within, probe)
        self._area.hot.recover()

    def close_memory(self) -> None:
        self._area.hot.memory_area.close()

    def memory(self) -> MemoryUse:
        area = self._area.hot.memory_area
        return MemoryUse(area.used_bytes(), area.size_bytes, area.why_not, area.is_wanted)

    def is_memory_short(self) -> bool:
        """Whether the hot area in memory is half full."""
        area = self._area.hot.memory_area
        return area.used_bytes() > area.size_bytes // 2

    def note_lost(self) -> None:
        """Record which captures have lost their processes, because they were in memory when the machine stopped. Those
        in the store have not: they are extracted when they are needed.
        """
        hot = self._area.hot
        if not hot.memory_area.is_known:
            return
        found = self._names.captures_of([one for one in hot.list() if hot.is_lost(one)], may_lack=True).values()
        lost = [one for one in found if all(each.code != "processes-lost" for each in one.degraded)]
        lost = [one for one in lost if self._names.standing(one.id).image is None and not is_awaited(one)]
        if lost:
            with self._names.change("capture") as change:
                for capture in lost:
                    change.add_degraded(capture.id, [degradation("processes-lost")])

    def in_memory(self) -> list[Capture]:
        """The recorded captures that are in memory and complete, the oldest first."""
        found = self._names.captures_of(list(self._area.hot.in_memory()), may_lack=True).values()
        return sorted(filterfalse(is_awaited, found), key=lambda capture: capture.created)

    def move_to_disk(self, capture: Capture) -> bool:
        """Move the parts of a capture that are in memory to the disk. Returns False if they stay in memory, too, since
        the capture is in use; to be repeated then, or after an error. Raises UnknownName, Failed.
        """

        @contextlib.contextmanager
        def unread() -> Iterator[bool]:
            with self.images.only_one(capture.id):  # who begins to read waits for this lock
                with self._lock:
                    others = self._holders[capture.id] - 1
                yield not others

        with self._moving, self._kept(capture), refusals("move to the disk", f"capture {capture.id[:12]}"):
            return self._area.hot.move_to_disk(capture.id, unread)

    def tree_on_disk(self, capture: Capture) -> str | None:
        """The path of the capture's upper tree, which may be removed at any time; None if it is not on disk."""
        return self._area.pool.path(capture.tree) if self.images.is_hot(capture) else None

    def check_machine(self, capture: Capture) -> None:
        """Raise CannotCapture if this machine cannot restore the processes: no CRIU works on it, or it has another
        kernel or processor. Reads nothing but the record. Raises Failed if the search for a CRIU fails.
        """
        try:
            self._find_criu()
        except HostLacks as error:
            said, on = f"cannot {error.tried} {error.on}: {error.said}", capture.id[:12]
            raise CannotCapture("restore the processes of", on, said, error.next_step, code="no-criu") from error
        PROCESSES.check_machine(capture)

    def ingest(self, capture: Capture, on_progress: Callable[[int, int | None], None]) -> Ingested:
        """Store the capture as an image, durably. The caller records that. `on_progress` gets the bytes so far, and
        about how many there are; None if that is not known. Raises Failed if the disk is short.
        """
        size = sum(int(record.get("size_bytes") or 0) for record in capture.layers.values())
        self._area.check_space(size, "an image", "store", f"capture {capture.id[:12]}")
        with self._hold_alone(capture):
            return self.images.ingest(self.complete(capture), on_progress)

    def evict(self, capture: Capture) -> bool:
        """Remove a capture from disk that is in the store. Returns False if it is in use, or not on disk. Raises
        StoreDamaged if the store cannot restore it.
        """

        def is_held() -> bool:
            with self._lock:
                return capture.id in self._holders or (capture.is_base and capture.id in self._names.bases_in_use())

        with self._moving:
            return self.images.evict(capture, is_held)

    def by_use(self) -> list[Capture]:
        """The durable captures, the least recently used first: taken, restored or otherwise read."""
        standings = self._names.standings(list(self._names.images()))
        durable = [capture for capture, standing in standings.items() if standing.durable]
        stored = self._names.captures_of(durable, may_lack=True).values()
        return sorted(stored, key=lambda capture: max(capture.created, self._area.hot.used_at(capture.id)))

    def copy_sizes(self) -> dict[str, int]:
        """The bytes on disk of each capture outside of the store, by id, without their files, which trees share, and
        files of the base, which captures share.
        """
        return self._area.hot.used_by_each()

    def exceed(self, budget: int) -> bool:
        """Whether all captures outside of the store take more than `budget`. Examines the files of live sessions only
        if they may.
        """
        return self._outside_bytes() > budget and self.usage([]).copies_bytes() > budget

    def _outside_bytes(self) -> int:
        return self._area.hot.used_bytes() + self._area.pool.unique_bytes()

    def drop(self, capture: Capture) -> None:
        """Remove a capture from disk, now or at the end of its last `hold`. The capture must not be recorded; a base
        that was recorded once more meanwhile (its id follows from its content) stays.
        """
        is_recorded = capture.is_base and bool(self._names.captures_of([capture.id], may_lack=True))
        if is_recorded and not self._names.standing(capture.id).removed:
            return
        self.note_dumped(capture.id)
        if (unfinished := self._unfinished.pop(capture.id, None)) is not None:
            unfinished.exception()  # waits for its end
        with self._lock:
            if capture.id in self._holders:
                self._drop_after_hold.add(capture.id)
                return
        drop_layers(self._area, capture.id, capture.layers)

    @contextlib.contextmanager
    def removing(self) -> "Iterator[Callable[[Iterable[str]], set[str]]]":
        """Yield a function for a transaction that deletes the records of captures. It takes ids of captures, returns
        those that no `hold` keeps, and makes any later `hold` of these fail. If the `with` block raises, they can be
        held again.
        """
        taken: set[str] = set()

        def take(capture_ids: Iterable[str]) -> set[str]:
            with self._lock:
                free = set(capture_ids) - self._holders.keys()
                self._removing |= free
            taken.update(free)
            return free

        try:
            yield take
        except BaseException:
            with self._lock:
                self._removing -= taken
            raise

    def add_disposable(self, change: Change, captures: Iterable[Capture]) -> None:
        """Allow the next daemon to remove these captures from disk. No other capture may have their upper trees."""
        for capture in captures:
            change.add_disposable(capture.id)
            change.add_disposable(capture.tree)

    def inventories(self, live: Iterable[LiveRow]) -> list[Inventory]:
        """Return the inventories of captures and upper trees on disk, for the sweep. `live`: the recorded sessions."""
        removed = self._names.removed()
        captures = [capture for capture in self._names.captures() if capture.id not in removed]
        trees = {row.tree for row in live} | {capture.tree for capture in captures}
        folders = {capture.id for capture in captures}
        pool, hot = self._area.pool, self._area.hot
        return [
            Inventory("files", Path(pool.folder), trees, pool.list, pool.path, pool.remove),
            Inventory("capture", hot.folder, folders, hot.list, lambda ident: str(hot.folder / ident), hot.remove),
        ]

    def measure(self, capture: Capture) -> dict[str, dict[str, object]]:
        """The size of each layer that is on disk, and the digest of each layer that is in the store, as facts by kind.
        Walks over all files.
        """
        found: dict[str, dict[str, object]] = {kind: {} for kind in capture.layers}
        for kind, record in capture.layers.items():
            with contextlib.suppress(UnknownName):  # the files are in the store only
                found[kind]["size_bytes"] = layer_of(kind).size(self._area, record)
        image = self._names.standing(capture.id).image
        for kind, digest in self.images.digests(image).items() if image is not None else ():
            found[kind]["digest"] = digest
        return found

    def usage(self, captures: Iterable[Capture], limit_s: float | None = None) -> Usage:
        """The bytes that live sessions and these captures occupy on disk. `limit_s`: as for `Pool.measure`."""
        live = frozenset(row.tree for row in self._names.live())
        pool = self._area.pool.measure([*live, *(one.tree for one in captures)], limit_s)
        return Usage(pool, self._area.hot.used_by_each(), self._area.hot.used_bytes(), live)

    def is_evicted(self, capture: Capture) -> bool:
        """Whether the capture is in the store only."""
        return not self.images.is_hot(capture) and self._names.standing(capture.id).image is not None

    def criu_log(self, name: str) -> tuple[int, str] | None:
        """The uid of the user whose session CRIU failed to dump or restore, and CRIU's log; None if no log `name`
        (without `.log`) is kept.
        """
        return self._area.hot.read_log(f"{name}.log")

    def logs_bytes(self) -> int:
        """The bytes on disk of the logs of failed dumps and restores."""
        return self._area.hot.logs_bytes()


class HeldCapture:
    """A capture during `Captures.hold`."""

    def __init__(self, area: Area, capture: Capture, find_criu: FindCriu, images: Images) -> None:
        self._area = area
        self._images = images
        self._find_criu = find_criu
        self.capture = capture

    @property
    def processes(self) -> ProcessesLayer:
        return PROCESSES.of(self.capture)

    @property
    def criu_path(self) -> Path:
        """The CRIU that restores. Raises HostLacks, Failed."""
        return self._find_criu().path

    @property
    def files(self) -> str:
        """The folder of the sealed, read-only upper tree (upper/layout.py describes its contents)."""
        return FILES.path(self._area, self.capture)

    @property
    def memory(self) -> str:
        """The path of the folder with the files of /dev/shm; "" if there were none."""
        return FILES.memory(self._area, self.capture)

    @property
    def criu(self) -> CriuProgram:
        """The CRIU that restores the processes. Raises HostLacks, Failed."""
        return self._find_criu()

    def is_timeless(self) -> bool:
        """Whether restored processes notice nothing of the time in which they stand frozen. Raises StoreDamaged."""
        return PROCESSES.is_timeless(self._area, self.capture)

    def has_changed_base(self) -> bool:
        """Whether the machine has other versions of files of the base that the processes have open. Raises
        StoreDamaged.
        """
        return bool(base_files.differing(self._area, self.capture))

    def has_connections(self) -> bool:
        """Whether the processes have TCP connections. Raises StoreDamaged."""
        return PROCESSES.has_connections(self._area, self.capture)

    def memory_plan(self) -> "contextlib.AbstractContextManager[tuple[MemoryPlan, int]]":
        """The plan of a template, and a descriptor of the images for it. Raises StoreDamaged."""
        return PROCESSES.memory_plan(self._area, self.capture)

    @property
    def memory_bytes(self) -> int:
        """A lower bound of the tmpfs memory that the files of /dev/shm take. Examines each file."""
        return FILES.memory_bytes(self._area, self.capture)

    def shell_state(self) -> KeptShell:
        """Return the layer `shell`. Raises CannotCapture if the capture lacks it, StoreDamaged if it cannot be read."""
        return SHELL.read(self._area, self.capture)

    def ring(self) -> Ring | None:
        """The scrollback, which the caller must close; None if the capture lacks it. Raises StoreDamaged."""
        return TERMINAL.ring(self._area, self.capture)

    def manifest(self) -> Manifest:
        """Return the programs to start again; empty if the capture lacks the layer. Raises StoreDamaged."""
        return PROGRAMS.read(self._area, self.capture)

    def check(self, copies: int, leaving: Collection[int] | None = ()) -> None:
        """Raise StoreDamaged, CannotCapture or Failed if it is certain that the processes cannot be restored `copies`
        times. `leaving`: pids of the processes that the restored ones replace; None: they are restored to be compared.
        """
        for layer in LAYERS:
            layer.check(self._area, self.capture, copies, leaving)

    @stage(Stage.PROVE)
    def differences(self, pids: Collection[int]) -> list[Difference]:
        """Compare processes that `restore` has restored, and that are frozen, with the capture. `pids`: their pids on
        the host.
        """
        return PROCESSES.differences(self._area, self.capture, pids)

    def changed_outside(self) -> list[str]:
        """The paths in the session, on files of the host, that `restore` would change."""
        return PROCESSES.changed_outside(self._area, self.capture)

    def copy_files(self, tree: str) -> None:
        """Make the writable upper tree `tree` that contains the capture's files."""
        for layer in LAYERS:
            layer.restore_tree(self._area, self.capture, tree)

    def prepare_processes(self, tree: str) -> None:
        """Prepare the tree that `copy_files` has made for `restore`."""
        self._images.complete(self.capture)
        PROCESSES.make_names(self._area, self.capture, tree)

    def place(self, kind: str, path: str, where: Where, user: User) -> None:
        """Copy the attached layer to `path` in the files of a session that has not started; they belong to `user`.
        Raises UnknownName, StateConflict if the path exists.
        """
        ATTACHED.place(self._area, self.capture, kind, path, where, user)

    def get(self, kind: str, dest: str, user: User) -> AttachedLayer:
        """Copy the attached layer to `dest` on the host, as `user`. Raises UnknownName, StateConflict."""
        return ATTACHED.get(self._area, self.capture, kind, dest, user)

    @stage(Stage.RESTORE)
    def restore(self, target: RestoreTarget) -> int:
        """Restore the terminal and the processes; the caller has restored the files by `copy_files`. Return the host's
        pid of the session's pid 1. After a failure the caller removes `target`.
        """
        target.criu_path = self.criu_path
        for layer in reversed(LAYERS):
            layer.restore(self._area, self.capture, target)
        return target.pid
