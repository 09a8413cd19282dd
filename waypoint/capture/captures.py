"""The owner of a home's captures: only this room knows where a capture lies and which upper tree belongs to it.

The life of a capture: `take` makes it, the caller of `take` puts it on record (`store/names`), `hold` pins it while it
is read or brought back, `drop` removes it. The files of an ended session become a capture, too (sealing.py).
"""

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from waypoint.capture import bounds, sealing
from waypoint.capture.layers.files import FILES
from waypoint.capture.layers.hot import Hot
from waypoint.capture.layers.layer import Area, CaptureOptions, Place, Taking
from waypoint.capture.layers.processes import PROCESSES
from waypoint.capture.layers.programs import PROGRAMS
from waypoint.capture.layers.shell import SHELL, KeptShell, ask_in_room
from waypoint.capture.layers.subject import Subject
from waypoint.capture.layers.table import LAYERS
from waypoint.capture.sealing import LastWords
from waypoint.capture.sweeping import Inventory
from waypoint.capture.taking import drop_layers, take
from waypoint.model.errors import Failed, HostLacks, StateConflict, WaypointError
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, EndReason, LiveRow, ProcessesLayer, ShellLayer
from waypoint.processes.criu.rpc import Criu, CriuProgram
from waypoint.processes.criu.worker import Spawn
from waypoint.processes.respawn.manifest import Manifest
from waypoint.store.change import Change
from waypoint.store.names import Names
from waypoint.store.reading import content_removed
from waypoint.upper.contract import NEXT_STEPS, Pool, Shares

FindCriu = Callable[[], CriuProgram]
"""Finds the CRIU to use. Blocks, the first time for seconds. Raises HostLacks if no CRIU works, Failed for what
happened while one was looked for.
"""

SpawnBeside = Callable[[int], Spawn]
"""From the host's pid of a session's pid 1, and the session's cgroup, to the function that starts a CRIU that can dump
this session.
"""


class Usage(NamedTuple):
    """`files`: of the files. `hot_bytes`: of all else (processes, terminal), which is shared with nobody."""

    files: Shares
    hot_bytes: int


class Captures:
    """The captures of one home. All methods block; several threads may call them at once, but never the event loop."""

    def __init__(self, home: Path, pool: Pool, names: Names, find_criu: FindCriu, spawn_beside: SpawnBeside) -> None:
        self._area = Area(pool, Hot(home))
        self._names = names
        self._find_criu = find_criu
        self._spawn_beside = spawn_beside
        self._lock = threading.Lock()
        self._holders: dict[str, int] = {}
        self._drop_after_hold: set[str] = set()
        self._removing: set[str] = set()

    def take(self, subject: Subject, options: CaptureOptions) -> Capture:
        """Take a capture of a live session, which goes on. The caller then records the capture, or calls `drop`.

        Raises CannotCapture if the tier `live` is wanted and the processes cannot be dumped, StateConflict if the
        session has just ended, Failed for an accident (CRIU was killed, the disk is full). After a failure the session
        goes on, and nothing of the capture is left.
        """
        self._area.pool.check_writable()
        capture_id = new_id()
        with self._names.change("capture") as change:
            change.add_disposable(capture_id)  # until it is on record
        try:
            bounds.check(self._area, subject, options.tier)
            with ThreadPoolExecutor(2) as beside:
                taking = Taking(capture_id, subject, self._area, options, beside)
                if options.tier not in ("files", "respawn"):
                    self._find_dumper(taking)
                return take(taking)
        except BaseException as error:
            drop_layers(self._area, capture_id)
            if isinstance(error, WaypointError | OSError) and not subject.processes():
                branch = subject.facts.branch
                next_step = f"its files are kept: 'waypoint shell {branch}' starts it from them"
                raise StateConflict("capture", f"branch {branch}", "its session has just ended", next_step) from error
            if isinstance(error, OSError):
                said = f"{error.strerror} {os.fsdecode(error.filename or '')}".rstrip()
                next_step = NEXT_STEPS.get(error.errno or 0, "try again")
                raise Failed("capture", f"branch {subject.facts.branch}", said, next_step) from error
            raise

    def _find_dumper(self, taking: Taking) -> None:
        """Find the CRIU for `taking`, or why there is none. An accident of the search (Failed) is no reason to capture
        less, and is raised.
        """
        facts = taking.subject.facts
        try:
            taking.program = self._find_criu()
        except HostLacks as error:
            taking.why_no_criu = error.said
        else:
            taking.criu = Criu(taking.program.path, self._spawn_beside(facts.init_pid))

    def ask_shell(self, subject: Subject) -> ShellLayer | None:
        """The state of a session's shell, for `seal`: of one that is about to end, and has left none. Blocks."""
        return ask_in_room(self._area.pool, subject)

    def seal(self, row: LiveRow, reason: EndReason, last: LastWords) -> Capture:
        """Make a capture of the files of the ended session `row`, and record this capture as the tip of the branch."""
        return sealing.seal(self._area.pool, self._names, row, reason, last)

    @contextlib.contextmanager
    def hold(self, capture: Capture) -> "Iterator[HeldCapture]":
        """Pin a capture: until the `with` block ends, its parts stay on disk, even if the capture is dropped.

        Raises UnknownName if the capture was removed since it was looked up.
        """
        with self._lock:
            if capture.id in self._removing:
                raise content_removed(capture.id)
            self._holders[capture.id] = self._holders.get(capture.id, 0) + 1
        try:
            yield HeldCapture(self._area, capture, self._find_criu)
        finally:
            with self._lock:
                self._holders[capture.id] -= 1
                is_last = not self._holders[capture.id]
                if is_last:
                    del self._holders[capture.id]
                is_dropped = is_last and capture.id in self._drop_after_hold
                self._drop_after_hold.discard(capture.id if is_last else "")
            if is_dropped:
                drop_layers(self._area, capture.id, capture.layers)

    def drop(self, capture: Capture) -> None:
        """Remove all that the capture has on disk: at once, or at the end of the last `hold` of it. The capture must
        be on no record.
        """
        with self._lock:
            if capture.id in self._holders:
                self._drop_after_hold.add(capture.id)
                return
        drop_layers(self._area, capture.id, capture.layers)

    @contextlib.contextmanager
    def removing(self) -> "Iterator[Callable[[Iterable[str]], set[str]]]":
        """For whoever takes captures off the record, around the transaction. Yields a function from ids of captures to
        those that nobody holds: nobody can hold them from then on, unless the `with` block raises.
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
        """Note that the next daemon may remove these captures from disk. No other capture may have their trees."""
        for capture in captures:
            change.add_disposable(capture.id)
            change.add_disposable(capture.layers.files.tree)

    def inventories(self, live: Iterable[LiveRow]) -> list[Inventory]:
        """Where captures and the trees of sessions lie, for the sweep. On record are: what belongs to a recorded
        capture that was not removed, and what belongs to a session of `live`.
        """
        removed = self._names.removed()
        captures = [capture for capture in self._names.captures() if capture.id not in removed]
        trees = {row.tree for row in live} | {capture.layers.files.tree for capture in captures}
        folders = {capture.id for capture in captures}
        pool, hot = self._area.pool, self._area.hot
        return [
            Inventory("files", Path(pool.folder), trees, pool.list, pool.path, pool.remove),
            Inventory("capture", hot.folder, folders, hot.list, lambda ident: str(hot.folder / ident), hot.remove),
        ]

    def sizes(self, capture: Capture) -> dict[str, int | None]:
        """Bytes on disk by kind of layer, None for a layer that the capture does not have. Walks over all files."""
        return {layer.kind: layer.size(self._area, capture) for layer in LAYERS}

    def usage(self, capture: Capture) -> "Usage":
        """What the capture has on disk. Walks over all its files. Raises Failed, UnknownName if it has been removed."""
        files = self._area.pool.shares(capture.layers.files.tree)
        return Usage(files, self._area.hot.used_bytes(capture.id))

    def hot_bytes(self) -> tuple[int, int]:
        """What all captures have on disk besides their files, and the logs of dumps and restores that failed."""
        return self._area.hot.used_bytes(), self._area.hot.logs_bytes()


class HeldCapture:
    """A pinned capture, as `Captures.hold` yields it. To be used only within the `with` block of `hold`."""

    def __init__(self, area: Area, capture: Capture, find_criu: FindCriu) -> None:
        self._area = area
        self._find_criu = find_criu
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

    def manifest(self) -> Manifest:
        """What ran, of a capture of the tier `respawn`; of others an empty one. Raises StoreDamaged."""
        return PROGRAMS.read(self._area, self.capture)

    def check(self, copies: int, leaving: Collection[int] = ()) -> None:
        """Raise, before anything is made, if it can be known that `copies` copies of the processes cannot be restored.
        `leaving`: pids of the processes that the copy replaces.

        Raises StoreDamaged, CannotCapture or Failed, as `Layer.check` of each layer.
        """
        for layer in LAYERS:
            layer.check(self._area, self.capture, copies, leaving)

    def copy_files(self, tree: str) -> None:
        """Make the writable upper tree `tree`, with the capture's files in it. Raises StoreDamaged, Failed."""
        FILES.bring_back(self._area, self.capture, Place(tree=tree))

    def bring_back(self, place: Place) -> int:
        """Bring the terminal and the processes back, on files that `copy_files` has made. Returns the host's pid of the
        session's pid 1.

        Raises CannotCapture with CRIU's reason, Failed, OSError, HostLacks. After a failure the caller removes `place`.
        """
        place.criu_path = self._find_criu().path
        for layer in reversed(LAYERS):
            if layer not in (FILES, SHELL):
                layer.bring_back(self._area, self.capture, place)
        return place.pid
