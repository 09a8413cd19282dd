"""The owner of a home's captures: only this room knows where a capture lies and which upper tree belongs to it.

The life of a capture: `take` makes it, the caller of `take` puts it on record (`store/names`), `hold` pins it while it
is read or brought back, `drop` removes it. The files of an ended session become a capture, too (sealing.py).
"""

import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from pathlib import Path

from shellwrap.ring import Ring
from waypoint.capture import bounds, sealing, taking
from waypoint.capture.attaching.attached_places import AttachedPlaces
from waypoint.capture.base_files.base_listing import CapturedBase
from waypoint.capture.base_files.mentioned import BaseFile
from waypoint.capture.base_files.open_inodes import others_in_words
from waypoint.capture.elsewhere import check_here, lacking_here
from waypoint.capture.layers import attached, seen
from waypoint.capture.layers.files import FILES, keep_stamps
from waypoint.capture.layers.hot import Hot
from waypoint.capture.layers.layer import Area, Place
from waypoint.capture.layers.processes import PROCESSES
from waypoint.capture.layers.programs import PROGRAMS
from waypoint.capture.layers.shell import SHELL, KeptShell, ask_in_room
from waypoint.capture.layers.subject import Subject
from waypoint.capture.layers.table import LAYERS
from waypoint.capture.layers.terminal import TERMINAL
from waypoint.capture.measuring import Measures
from waypoint.capture.moves import Moves
from waypoint.capture.pause import Quiet
from waypoint.capture.sealing import LastWords
from waypoint.capture.storing.orders import OfBase, Source
from waypoint.capture.storing.staging import Staging
from waypoint.capture.sweeping import Shelf, staged_shelf
from waypoint.capture.taking import Dumper, Order, Wanted
from waypoint.capture.torn import MAY_BE_TORN, Torn
from waypoint.model.details.process_facts import SurveyedProcess
from waypoint.model.errors import Failed, HostLacks, StateConflict, WaypointError
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, EndReason, LiveRow, ProcessesLayer, ShellLayer
from waypoint.processes.criu.causes import CriuFailed
from waypoint.processes.criu.rpc import Criu, CriuProgram
from waypoint.processes.criu.worker import Spawn
from waypoint.processes.profiles.known import KnownProfiles
from waypoint.processes.respawn.manifest import Manifest
from waypoint.store.change import Change
from waypoint.store.names import Names
from waypoint.store.reading import content_removed
from waypoint.upper.contract import NEXT_STEPS, Pool

FindCriu = Callable[[], CriuProgram]
"""Finds the CRIU to use. Blocks, the first time for seconds. Raises HostLacks if no CRIU works, Failed."""

SpawnBeside = Callable[[int, str], Spawn]
"""From the host's pid of a session's pid 1, and the session's cgroup, to the function that starts a CRIU that can dump
this session.
"""

Recaller = Callable[["Held"], Awaitable[None]]
"""Brings the content of an evicted capture back from the store; leaves one alone that is not there."""

BaseBringer = Callable[["Held", str], Awaitable[list[BaseFile]]]
"""Brings files of the base, as a capture's processes have them, from the store into an upper tree, a path ("": only to
beside the hot copy). Returns of which the machine has another content.
"""


class Captures:
    """The captures of one home. All methods block; several threads may call them at once, but never the event loop."""

    def __init__(
        self,
        home: Path,
        pool: Pool,
        names: Names,
        find_criu: FindCriu,
        spawn_beside: SpawnBeside,
        profiles: KnownProfiles,
    ) -> None:
        self.quiet = Quiet()
        self._profiles = profiles
        self._area = Area(pool, Hot(home))
        self._names = names
        self.attached = AttachedPlaces(self._area, names)
        self.find_criu = find_criu
        self._spawn_beside = spawn_beside
        self.torn = Torn(home)
        self.measures = Measures(self._area, self.torn)
        self.settling = self._area.hot.settling
        self.moves = Moves()
        self.recall: Recaller | None = None
        self.bring_base: BaseBringer | None = None
        self.alike: dict[str, str] = {}  # by branch, images with processes: others may have their files of the base
        # By id of the captures that are mounted (launch/ground/shown_mounts.py): where.
        self.shown: Callable[[], dict[str, str]] = dict
        self._lock = threading.Lock()
        self._holders: dict[str, int] = {}
        self._doomed: set[str] = set()
        self.leaving: set[str] = set()  # the ids of what was removed since the daemon began: nothing else may have one

    def take(self, subject: Subject, wanted: Wanted) -> Capture:
        """Take a capture of a live session, which goes on. The capture is on no record yet: the caller records it, or
        calls `drop`.

        Raises CannotCapture if the tier `live` is wanted and the processes cannot be dumped, StateConflict if the
        session has ended meanwhile, Failed for what has happened (CRIU was killed, the disk is full). After a failure
        the session goes on as it was, and nothing of the capture is left.
        """
        self._area.pool.check_writable()
        capture_id = new_id()
        with self._names.change("capture") as change:
            change.doom(capture_id)  # until it is on record
        try:
            profiles = self._profiles.now()
            bounds.check(self._area, subject, wanted.tier, profiles.most_deleted_bytes)
            dumper = self._dumper(subject, wanted)
            return taking.take(Order(self._area, self.quiet, subject, profiles, dumper, capture_id, wanted))
        except BaseException as error:
            taking.drop_layers(self._area, capture_id)
            if isinstance(error, WaypointError | OSError) and not subject.processes():
                branch = subject.facts.branch
                next_step = f"its files are kept: 'waypoint shell {branch}' starts it from them"
                raise StateConflict("capture", f"branch {branch}", "its session has just ended", next_step) from error
            if isinstance(error, OSError):
                said = f"{error.strerror} {os.fsdecode(error.filename or '')}".rstrip()
                next_step = NEXT_STEPS.get(error.errno or 0, "try again")
                raise Failed("capture", f"branch {subject.facts.branch}", said, next_step) from error
            raise

    def _dumper(self, subject: Subject, wanted: Wanted) -> Dumper:
        """Raises Failed: that no CRIU was found because of what happened is no reason to keep less."""
        if wanted.tier in ("files", "respawn"):
            return Dumper(None, None)
        try:
            program = self.find_criu()
        except HostLacks as error:
            return Dumper(None, None, error.said)
        facts = subject.facts
        return Dumper(program, Criu(program.path, self._spawn_beside(facts.init_pid, facts.cgroup)))

    def ask_shell(self, subject: Subject) -> ShellLayer | None:
        """The state of a session's shell, for `seal`: of one that is about to end, and has left none. Blocks."""
        return ask_in_room(self._area.pool, subject)

    def seal(self, row: LiveRow, reason: EndReason, last: LastWords) -> Capture:
        """Make a capture of the files of the ended session `row`, and record this capture as the tip of the branch."""
        return sealing.seal(self._area.pool, self._names, row, reason, last)

    @contextlib.contextmanager
    def hold(self, capture: Capture) -> "Iterator[Held]":
        """Pin a capture: until the `with` block ends, its parts stay on disk, even if the capture is dropped.

        Raises UnknownName if the capture was removed since it was looked up.
        """
        with self._lock:
            if capture.id in self.leaving:
                raise content_removed(capture.id)
            self._holders[capture.id] = self._holders.get(capture.id, 0) + 1
        try:
            yield Held(self._area, capture, self.find_criu, self.torn)
        finally:
            with self._lock:
                self._holders[capture.id] -= 1
                is_last = not self._holders[capture.id]
                if is_last:
                    del self._holders[capture.id]
                is_doomed = is_last and capture.id in self._doomed
                self._doomed -= {capture.id} if is_doomed else set()
            if is_doomed:
                taking.drop_layers(self._area, capture.id, capture.layers)

    def drop(self, capture: Capture) -> None:
        """Remove all that the capture has on disk: at once, or at the end of the last `hold` of it. The capture must
        be on no record.
        """
        with self._lock:
            if capture.id in self._holders:
                self._doomed.add(capture.id)
                return
        taking.drop_layers(self._area, capture.id, capture.layers)

    def evict(self, capture: Capture, *, is_tip: bool) -> bool:
        """Remove all that the capture has on disk, as its image is in the store, unless somebody holds it. Who holds it
        later brings it back. `is_tip`: a live session goes on from it. Returns whether it goes.
        """

        def is_in_use() -> bool:
            with self._lock:
                return capture.id in self._holders or capture.id in self.shown()

        if is_in_use():  # who has the turn may be waiting for a thread, such as this one
            return False
        with self.moves.blocking(capture.id):
            if is_in_use():
                return False
            keep_stamps(self._area, capture if is_tip else None)
            taking.drop_layers(self._area, capture.id, capture.layers)
        return True

    def settle(self, capture: Capture, between: Callable[[], None]) -> None:
        """Bring what the capture has in memory to the disk; it is not used from there as long as somebody holds it, and
        goes the next time then. `between` is called before each file. Raises UnknownName if it was removed, OSError.
        """
        settling, memory = self.settling, self.settling.memory
        with contextlib.ExitStack() as held:
            with self.moves.blocking(capture.id):  # it may just be evicted
                held.enter_context(self.hold(capture))
            if not settling.has_images(capture.id):
                if memory.forget(capture.id) and settling.is_lost(capture.id):
                    self.torn.note(capture.id)
                return
            settling.copy_out(capture.id, between)
            with self._lock:  # whoever holds it from now on finds the images on the disk
                is_free = self._holders[capture.id] == 1 and memory.forget(capture.id)
            if is_free:
                memory.remove(capture.id)

    @contextlib.contextmanager
    def removing(self) -> "Iterator[Callable[[Iterable[str]], set[str]]]":
        """For whoever takes captures off the record, around the transaction. Yields a function from ids of captures to
        those that nobody holds and that are not mounted: nobody can hold them from then on, unless the `with` block
        raises.
        """
        taken: set[str] = set()

        def take(capture_ids: Iterable[str]) -> set[str]:
            with self._lock:
                free = set(capture_ids) - self._holders.keys() - self.shown().keys()
                self.leaving |= free
            taken.update(free)
            return free

        try:
            yield take
        except BaseException:
            with self._lock:
                self.leaving -= taken
            raise

    def doom(self, change: Change, captures: Iterable[Capture]) -> None:
        """Note that what these captures have on disk may be removed. No other capture may have their trees."""
        for capture in captures:
            change.doom(capture.id)
            change.doom(capture.layers.files.tree)

    def shelves(self, live: Iterable[LiveRow]) -> list[Shelf]:
        """Where captures and the trees of sessions lie, for the sweep. On record are: what belongs to a recorded
        capture that was not removed, and what belongs to a session of `live`.
        """
        removed = self._names.removed()
        captures = [capture for capture in self._names.captures() if capture.id not in removed]
        trees = {row.tree for row in live} | {capture.layers.files.tree for capture in captures}
        folders = {capture.id for capture in captures}
        pool, hot = self._area.pool, self._area.hot
        return [
            Shelf("files", Path(pool.folder), trees, pool.list, pool.path, pool.remove),
            Shelf("capture", hot.folder, folders, hot.list, lambda ident: str(hot.folder / ident), hot.remove),
            staged_shelf(hot),
        ]


def look_for_torn(captures: Captures, names: Names) -> None:
    """Find out what the machine's end has cost, when the home is opened (torn.py), after `HotMemory.open`. Blocks.
    Raises OSError.
    """
    written, found = captures.measures.written(), names.captures_of(captures.settling.without_images(), may_lack=True)

    def taken() -> dict[str, tuple[str, float]]:
        there = names.captures_of(list(written), may_lack=True)
        return {one.id: (one.machine.boot_id, one.clock) for one in there.values() if one.machine is not None}

    captures.torn.look(written, [one.id for one in found.values() if one.tier == "live"], taken)


class Held:
    """A pinned capture, as `Captures.hold` yields it. To be used only within the `with` block of `hold`."""

    def __init__(self, area: Area, capture: Capture, find_criu: FindCriu, torn: Torn) -> None:
        self._area = area
        self._find_criu = find_criu
        self._torn = torn
        self.capture = capture

    @property
    def processes(self) -> ProcessesLayer:
        """The record of the layer `processes`, of a capture of the tier `live`."""
        return PROCESSES.of(self.capture)

    @property
    def files(self) -> str:
        """The folder of the sealed upper tree (upper/layout.py says what lies in it). Nobody may write to it."""
        return FILES.path(self._area, self.capture)

    @property
    def attached(self) -> Path:
        """The folder of what is attached, with a folder for each kind; missing if nothing is."""
        return attached.place(self._area, self.capture.id)

    @property
    def memory(self) -> str:
        """The path of the folder with the files of /dev/shm; "" if there were none."""
        return FILES.memory(self._area, self.capture)

    @property
    def memory_bytes(self) -> int:
        """How much of a tmpfs the files of /dev/shm take, or a little less. Looks at each file."""
        return FILES.memory_bytes(self._area, self.capture)

    def shell_state(self) -> KeptShell:
        """The layer `shell`: its record, the state, and the history.

        Raises CannotCapture if the capture has no state of the shell, StoreDamaged if the state cannot be read.
        """
        return SHELL.read(self._area, self.capture)

    def scrollback(self) -> Ring | None:
        """What the terminal had shown, for the caller to close; None if it was not kept. Raises StoreDamaged."""
        return TERMINAL.read(self._area, self.capture)

    def manifest(self) -> Manifest:
        """What ran, of a capture of the tier `respawn`; of others an empty one. Raises StoreDamaged."""
        return PROGRAMS.read(self._area, self.capture)

    def survey(self) -> list[SurveyedProcess]:
        """The processes that it had, each with the tier that it has reached; empty for an earlier version's capture, or
        one of files. Raises StoreDamaged.
        """
        return seen.read(self._area, self.capture)

    @property
    def base(self) -> CapturedBase:
        """The files of the base that its processes have."""
        return CapturedBase(str(self._area.hot.folder / self.capture.id), self.capture.setting.base)

    def source(self, parents: list[str], before: "Held | None", base: OfBase) -> Source:
        """For the store: where the capture is. `parents`: the images of its parents. `before`: the last of these
        parents, if it can be held. `base`: of the files of the base.
        """
        return Source(
            capture=self.capture,
            tree=self.files,
            hot=str(self._area.hot.folder / self.capture.id),
            images=str(self._area.hot.images(self.capture.id)),
            parents=parents,
            earlier=parents[-1] if before is not None else "",
            before=before.files if before is not None else "",
            is_comparable=before is not None and not before.is_evicted() and self._area.pool.driver == "btrfs",
            base=base,
        )

    def is_evicted(self) -> bool:
        """Whether the capture has no content here; its image may be in the store."""
        hot = self._area.hot.images(self.capture.id)
        return not os.path.isdir(self.files) or (self.capture.tier == "live" and not hot.is_dir())

    def is_wanting(self) -> bool:
        """Whether the capture has no content here that is known to be whole."""
        return self._torn.may_be(self.capture.id) or self.is_evicted()

    def staging(self) -> Staging:
        """Where this capture may be brought back to from the store."""
        return Staging(self._area, self.capture)

    def check(self, copies: int, leaving: Collection[int] = ()) -> None:
        """Raise, before anything is made, if it can be known that `copies` copies of the processes cannot be restored.
        `leaving`: pids of the processes that the copy replaces.

        Raises StoreDamaged, CannotCapture or Failed, as `Layer.check` of each layer.
        """
        check_here(self.capture)
        for layer in LAYERS:
            layer.check(self._area, self.capture, copies, leaving)

    def copy_files(self, tree: str) -> None:
        """Make the writable upper tree `tree`, with the capture's files in it. Raises StoreDamaged, Failed."""
        FILES.bring_back(self._area, self.capture, Place(tree=tree))

    def bring_back(self, place: Place) -> int:
        """Bring back the terminal and the processes, on files of `copy_files`. Returns the host's pid of pid 1.

        Raises CannotCapture with CRIU's reason, and what is other on this machine; Failed, OSError, HostLacks; the
        caller then removes `place`.
        """
        program = self._find_criu()
        place.criu_path = program.path
        place.lost += [MAY_BE_TORN] if self._torn.may_be(self.capture.id) else []
        images = str(self._area.hot.images(self.capture.id))
        place.lost += others_in_words(self.base.hot, images, self.capture.layers.processes, self.files)
        try:
            for layer in reversed(LAYERS):
                if layer not in (FILES, SHELL):
                    layer.bring_back(self._area, self.capture, place)
        except CriuFailed as error:
            error.said = "; ".join([error.said, *lacking_here(self.capture, program.version)])
            raise
        return place.pid
