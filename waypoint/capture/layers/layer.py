"""The interface of a layer: one aspect of a session, with the verbs by which a capture takes it and brings it back."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

from waypoint.capture.layers.hot import Hot
from waypoint.capture.layers.subject import Subject
from waypoint.linux.storage import filesystem
from waypoint.model.details.attached_records import AttachedLayer
from waypoint.model.records import Capture, FilesLayer, ProcessesLayer, ProgramsLayer, ShellLayer, TerminalLayer
from waypoint.processes.criu.image_plan import ImagePlan
from waypoint.processes.criu.options import ERRORS_ONLY, OnNotice
from waypoint.processes.criu.rpc import Criu, CriuProgram
from waypoint.processes.criu.worker import Spawn
from waypoint.processes.left_out import LeftOut
from waypoint.processes.profiles.known import Profiles
from waypoint.upper.contract import Pool

LayerRecord = FilesLayer | ProcessesLayer | ProgramsLayer | ShellLayer | TerminalLayer | dict[str, AttachedLayer]


class Area(NamedTuple):
    """The places of a home's captures: their upper trees are in the pool, all other parts are in the hot area."""

    pool: Pool
    hot: Hot

    def floor_bytes(self) -> int:
        """How much of the disk captures leave free: as much as a pool leaves that grows."""
        outlook = self.pool.outlook()
        return outlook.floor_bytes or outlook.headroom_bytes

    def room_bytes(self) -> int:
        """How much more captures may take of the disk besides their trees. Below 0 if less than the floor is free."""
        return filesystem.free_bytes(self.hot.folder) - self.floor_bytes()


class Staged(NamedTuple):
    """What is to be attached to a capture: `folder` is as that of a capture will be, `layers` are its records."""

    folder: Path
    layers: Mapping[str, AttachedLayer]


@dataclass(slots=True)
class Taking:
    """One capture that is being taken, as its layers see it.

    `beside`: two threads, for work that goes on beside the taking thread. `profiles`: those that count now. `program`
    and `criu`: the CRIU that dumps the session; None unless the tier of the capture is `live`. `log_level`: how much
    CRIU writes to its log. `left_out`: the programs that are held apart, which CRIU is not to see. `degraded`: in
    words, what the capture keeps less faithfully than it might. `files_changed`: files have changed since the pause
    began (CRIU has given an open file a name). `attached`: what is to be attached to it. `asked`: the shell's answer,
    which it writes into a file of the session's; None: it is not asked.
    """

    capture_id: str
    subject: Subject
    area: Area
    beside: ThreadPoolExecutor
    profiles: Profiles
    program: CriuProgram | None = None
    criu: Criu | None = None
    log_level: int = ERRORS_ONLY
    degraded: list[str] = field(default_factory=list)
    files_changed: bool = False
    left_out: Sequence[LeftOut] = ()
    attached: Staged | None = None
    asked: Future[ShellLayer | None] | None = None


@dataclass(slots=True)
class Place:
    """Where a capture is brought back to. `tree`: the name of the upper tree for its files. `folder`: the runtime
    folder of the new session, `cgroup` its group, in which CRIU runs, `aside` a group that does not exist yet. `root`,
    `externals`, `criu_path`, `spawn`, `on_notice`: for CRIU (processes/criu/image_plan.py, options.py). `plan`:
    what the images may ask for. Set by the restore: `pid`, the host's pid of the restored pid 1; `lost`, in words, what
    of the processes did not come back.
    """

    tree: str = ""
    folder: Path = Path()
    root: str = ""
    externals: tuple[str, ...] = ()
    plan: ImagePlan | None = None
    criu_path: Path = Path()
    spawn: Spawn | None = None
    on_notice: OnNotice | None = None
    cgroup: str = ""
    aside: str = ""
    pid: int = 0
    lost: list[str] = field(default_factory=list)


class Part:
    """One layer's part in a capture that is being taken. `taking.py` calls the methods in this order:

    * `prepare`, then `ready`, while the session runs. `prepare` begins slow work, `ready` waits for it.
    * `begin`, then `finish`, while the session is frozen. `begin` begins slow work, `finish` waits for it. Since all
      parts begin before the first one finishes, the layers work at the same time.
    * `release`, while the session is still frozen: the last step before the thaw.
    * `record`, after the pause (the session runs, or is held). Returns the layer's record; None: the capture does not
      have the layer.

    If a method before `record` raises, `cancel` is called once on every part, before the session is thawed, and no
    other method after it. `cancel` leaves the session as it was, and does not raise. `Layer.drop` removes the files
    that the part has made.
    """

    def __init__(self, taking: Taking) -> None:
        self.taking = taking

    def prepare(self) -> None: ...

    def ready(self) -> None: ...

    def begin(self) -> None: ...

    def finish(self) -> None: ...

    def release(self) -> None: ...

    def record(self) -> LayerRecord | None: ...

    def cancel(self) -> None: ...


class Layer:
    """One kind of layer. `kind`: the name of the layer in records, in JSON and on the command line."""

    kind: ClassVar[str]

    def part(self, taking: Taking) -> Part:
        """The layer's part in a capture that is about to be taken."""
        raise AssertionError(f"{self.kind} has none")

    def check(self, area: Area, origin: Capture, copies: int, leaving: Collection[int]) -> None:
        """Raise, before anything is made, if it can be known that `copies` copies of the layer cannot be brought back.
        `leaving`: pids of the processes that the copy replaces, and that end when it is there.

        Raises StoreDamaged, CannotCapture or Failed.
        """

    def bring_back(self, area: Area, origin: Capture, place: Place) -> None:
        """Bring the layer of `origin` back to `place`. After a failure a part of it may stay: the caller removes
        `place`.
        """

    def size(self, area: Area, capture: Capture) -> int | None:
        """Bytes on disk; None if the capture does not have the layer. May walk over all files."""
        record = getattr(capture.layers, self.kind)
        return getattr(record, "size_bytes", None)

    def drop(self, area: Area, capture_id: str, record: LayerRecord | None) -> None:
        """Remove what the layer has on disk outside of the capture's folder in the hot area. Does nothing if there is
        nothing. `record` None: the capture does not have the layer, or taking the capture has failed.
        """
