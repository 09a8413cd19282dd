"""The interface of a layer: one aspect of a session, which a capture saves and restores."""

import errno
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from waypoint.capture.layers.hot import Hot
from waypoint.capture.layers.subject import Subject
from waypoint.linux.storage import filesystem
from waypoint.model.conditions import Degradation
from waypoint.model.errors import CannotCapture, Failed
from waypoint.model.records import (
    Capture,
    KnownLayer,
    Layers,
    Point,
    Reason,
    ShellLayer,
    Tier,
    User,
    layers_of,
    pinned_id,
)
from waypoint.processes.certain import Program
from waypoint.processes.copied_memory import CopiedMemory
from waypoint.processes.criu.options import ERRORS_ONLY, OnNotice
from waypoint.processes.criu.rpc import Criu, CriuProgram
from waypoint.processes.criu.worker import Spawn
from waypoint.processes.profiles import Profiles
from waypoint.upper import layout
from waypoint.upper.contract import NEXT_STEPS, Pool, mib

EVERY_TIER = frozenset[Tier](("live", "respawn", "files"))


class Area(NamedTuple):
    """Where a home's captures are stored: upper trees in the pool, everything else in the hot area. `profiles`: the
    home's workload profiles.
    """

    pool: Pool
    hot: Hot
    profiles: Profiles = Profiles()

    def base_folder(self, base: str) -> str:
        """The folder on this machine below a session with this `Setting.base`."""
        return base if pinned_id(base) is None else layout.base_folder(self.pool.folder, base)

    def has_room(self, needed_bytes: int) -> bool:
        """Whether the disk of the hot area, or memory, can take so much."""
        memory = self.hot.memory_area
        return memory.has_room(needed_bytes) or filesystem.free_bytes(self.hot.folder) > needed_bytes

    def check_space(self, needed_bytes: int, content: str, tried: str, on: str) -> None:
        """Raise Failed if saving `needed_bytes` in the hot area would leave less free space on the host's disk than a
        growing pool leaves. `content`: the kind of data. `tried`, `on`: as in WaypointError.
        """
        outlook = self.pool.outlook()
        floor = outlook.floor_bytes or outlook.headroom_bytes
        if filesystem.free_bytes(self.hot.folder) - needed_bytes < floor:
            said = (
                f"{os.strerror(errno.ENOSPC)}: after saving {mib(needed_bytes)} of {content}, the disk of the home "
                f"would have less than {mib(floor)} free"
            )
            raise Failed(tried, on, said, NEXT_STEPS[errno.ENOSPC], code="disk-full")


class Attachment(NamedTuple):
    """A file or folder to attach to a capture. `source`: its absolute path on the host. `user`: copies it."""

    kind: str
    source: str
    user: User


class CaptureOptions(NamedTuple):
    """How to take a capture and name it; one record from the request to the layers.

    `tier`: None means `live` if the processes can be dumped, else `respawn`; for a session that ends it means `live`.
    `keep_frozen`: whether the session stays frozen and its terminal stopped; the caller then ends the session, or thaws
    it and calls `Subject.go_on`. `goes_on`: whether it will thaw it, so nothing that can wait is done in the pause.
    `dump_later`: with `keep_frozen`: whether CRIU may dump the session after `take` has returned
    (capture/dumping_later.py); the unread bytes of its terminals are then not put back.
    `on_accepted`: called in the capture's thread when the checks before the freeze have passed; at a second try again.
    `degraded`: failures before the capture, for `Capture.degraded`. `attach`: files to attach to the capture.

    For `session/checkpoint.py`: `name`: None moves only the branch's tip. `force`: whether the name is moved if another
    checkpoint has it. `within`: whether a process of the session makes the request; such a request may only move names
    that belong to the session's own branch. `undone`: whether an undo ends the session, after which the branch is in
    its state before the session. `anew`: whether to take a capture even if the last one has the session as it is.
    `point`: the point that the capture is taken for.
    """

    tier: Tier | None = None
    reason: Reason = "checkpoint"
    message: str = ""
    keep_frozen: bool = False
    goes_on: bool = False
    dump_later: bool = False
    on_accepted: Callable[[], object] = lambda: None
    degraded: Sequence[Degradation] = ()
    attach: Sequence[Attachment] = ()
    name: str | None = None
    force: bool = False
    within: bool = False
    undone: bool = False
    anew: bool = False
    point: Point | None = None


@dataclass(slots=True)
class Taking:
    """One capture that is being taken.

    `executor`: two threads for parallel work. `dumped`: the programs that CRIU has dumped before, in any capture.
    `memory_bytes`: what the images and the files of /dev/shm need at most, if they may be written to memory; None: they
    are written to the disk. `program` and `criu`: the CRIU that dumps the session; None for a tier without processes,
    or if no CRIU works (`no_criu`). New for each try: `copied`, copies of the session's memory, None if the dump
    does not use them; `log_level` of CRIU; `degraded`, the lines for `Capture.degraded`; `files_changed`, whether files
    have changed since the pause began (CRIU has named an open file); `is_awaited`, whether CRIU will dump the session
    after `take`; `asking`, the request of the shell's state, which the shell writes to a file; `afterwards`, work that
    no answer waits for, each of which returns what the capture lacks.
    """

    capture_id: str
    subject: Subject
    area: Area
    options: CaptureOptions
    executor: ThreadPoolExecutor
    dumped: set[Program] = field(default_factory=set)
    memory_bytes: int | None = None
    program: CriuProgram | None = None
    criu: Criu | None = None
    no_criu: CannotCapture | None = None
    copied: CopiedMemory | None = None
    log_level: int = ERRORS_ONLY
    degraded: list[Degradation] = field(default_factory=list)
    files_changed: bool = False
    is_awaited: bool = False
    asking: Future[ShellLayer | None] | None = None
    afterwards: list[Callable[[], list[Degradation]]] = field(default_factory=list)


@dataclass(slots=True)
class RestoreTarget:
    """The target of a restore. `folder`: the new session's runtime folder. `tree`: its upper tree.
    `cgroup`: its group, in which CRIU runs. `aside`: a group that does not exist yet. `root`, `externals`, `criu_path`,
    `spawn`, `on_notice`: for CRIU (processes/criu/options.py). `stays_frozen`: the restored tasks never run, and do not
    take their file locks or the ports of the host's network again. `stands_by`: the restored tasks are complete, and
    stay frozen until the caller thaws them. Set by the restore: `pid`, the host's pid of the restored pid 1; `lost`,
    descriptions of what was not restored.
    """

    folder: Path = Path()
    tree: Path = Path()
    root: str = ""
    externals: tuple[str, ...] = ()
    criu_path: Path = Path()
    spawn: Spawn | None = None
    on_notice: OnNotice | None = None
    cgroup: str = ""
    aside: str = ""
    stays_frozen: bool = False
    stands_by: bool = False
    pid: int = 0
    lost: list[Degradation] = field(default_factory=list)


class Part:
    """One layer's work in a capture. `taking.py` calls the methods in this order:

    * `prepare`, then `ready`, while the session runs. `prepare` begins slow work, `ready` waits for it.
    * `begin`, then `finish`, while the session is frozen. `begin` begins slow work, `finish` waits for it. Since all
      parts begin before the first one finishes, the layers work at the same time.
    * `release`, while the session is still frozen: the last step before the thaw.
    * `record`, after the pause. Returns the layer's record; None if the capture lacks the layer.
      `records` returns the same by kind, for the capture's record.

    If a method before `record` raises, `cancel` is called once on every part before the thaw, and nothing after it.
    `cancel` restores the session's state, and does not raise. `Layer.drop` removes the part's files.
    """

    def __init__(self, taking: Taking) -> None:
        self.taking = taking

    def prepare(self) -> None: ...

    def ready(self) -> None: ...

    def begin(self) -> None: ...

    def finish(self) -> None: ...

    def release(self) -> None: ...

    def record(self) -> KnownLayer | None: ...

    def records(self) -> Layers:
        return layers_of(self.record())

    def cancel(self) -> None: ...


class StoredFolder(NamedTuple):
    """A folder of a capture that is stored in its image. `only`: the names in it that are stored; empty: all.

    `content`: `session`: an upper tree, without overlayfs's `work` folders; `user`: other files whose times matter;
    `pages`: CRIU's images; `named`: files whose content never changes under one name (base_files.py); `own`: files of
    Waypoint.
    """

    path: Path
    content: Literal["session", "user", "pages", "named", "own"] = "own"
    only: tuple[str, ...] = ()


class Layer:
    """One kind of layer: a module, and a row in the table (table.py). `kind`: the name of the layer in records, in JSON
    and on the command line. `tiers`: of the captures that have it.
    """

    kind: ClassVar[str]
    tiers: ClassVar[frozenset[Tier]] = EVERY_TIER

    def part(self, taking: Taking) -> Part:
        raise AssertionError(f"{self.kind} has none")

    def check(self, area: Area, origin: Capture, copies: int, leaving: Collection[int] | None) -> None:
        """Raise StoreDamaged, CannotCapture or Failed if it is certain that the layer cannot be restored `copies`
        times. `leaving`: pids of the processes that the restored ones replace; None: `stays_frozen` will be set.
        """

    def restore_tree(self, area: Area, origin: Capture, tree: str) -> None:
        """Restore the layer's part of the upper tree `tree`. After a failure the caller removes the tree."""

    def restore(self, area: Area, origin: Capture, target: RestoreTarget) -> None:
        """Restore the rest of the layer of `origin` to `target`. After a failure the caller removes `target`."""

    def folders(self, area: Area, origin: Capture, kind: str) -> dict[str, StoredFolder]:
        """The folders of the layer `kind` on disk, by the names that they have in the image. They need not exist."""
        return {}

    def facts(self, record: dict[str, Any]) -> dict[str, Any]:
        """The facts about the layer for answers, without secrets."""
        return {"size_bytes": record["size_bytes"]}

    def size(self, area: Area, record: dict[str, Any]) -> int:
        """The layer's bytes. May walk over all files."""
        return int(record["size_bytes"])

    def drop(self, area: Area, capture_id: str, record: dict[str, Any] | None) -> None:
        """Remove the layer's files outside of the capture's folder in the hot area, if there are any. `record` None:
        the capture lacks the layer, or taking it has failed.
        """
