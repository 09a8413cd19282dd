"""The order in which a capture is taken, and that a failure at any of its steps leaves a session that runs."""

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from tests.store.test_names_store import SETTING
from waypoint.capture import taking
from waypoint.capture.layers.hot import Hot
from waypoint.capture.layers.layer import Area, Layer, Part, Taking
from waypoint.capture.layers.subject import SubjectFacts
from waypoint.capture.pause import Quiet
from waypoint.capture.taking import Dumper, Order, Wanted
from waypoint.model.errors import CannotCapture, Failed, WaypointError
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, FilesLayer, Fixed, IdMap
from waypoint.processes.criu.causes import CriuAccident, CriuRefused, Culprit, Diagnosis
from waypoint.processes.criu.rpc import Criu, CriuProgram
from waypoint.processes.left_out import LeftOut
from waypoint.processes.profiles.known import Profiles
from waypoint.processes.respawn.manifest import Family, Program

VERBS = ("prepare", "ready", "begin", "finish", "release", "record")
GROUP = "/no/such/group"


@dataclass
class Log:
    """What happened, in order. `fails`: the step that raises, with the exception, each time that the step is reached.
    `meets`: the step that raises, with the exceptions of the first times.
    """

    steps: list[str] = field(default_factory=list)
    fails: dict[str, BaseException] = field(default_factory=dict)
    meets: dict[str, list[WaypointError]] = field(default_factory=dict)

    def note(self, step: str) -> None:
        self.steps.append(step)
        if step in self.fails:
            raise self.fails[step]
        if self.meets.get(step):
            raise self.meets[step].pop(0)


class LoggedPart(Part):
    def __init__(self, taking: Taking, kind: str, log: Log) -> None:
        super().__init__(taking)
        for verb in VERBS:
            setattr(self, verb, lambda verb=verb: self._act(kind, verb, log))
        self.cancel = lambda: log.note(f"{kind} cancel")  # type: ignore[method-assign]

    def _act(self, kind: str, verb: str, log: Log) -> FilesLayer | None:
        log.note(f"{kind} {verb}")
        return FilesLayer(tree=self.taking.capture_id) if (kind, verb) == ("files", "record") else None


class LoggedLayer(Layer):
    def __init__(self, kind: str, log: Log) -> None:
        self.kind = kind  # type: ignore[misc]  # one class for all kinds
        self._log = log

    def part(self, taking: Taking) -> Part:
        return LoggedPart(taking, self.kind, self._log)

    def drop(self, area: Area, capture_id: str, record: object) -> None:
        self._log.steps.append(f"{self.kind} drop")


class LoggedSubject:
    """A session of which nothing is asked but to go on."""

    def __init__(self, log: Log) -> None:
        self.facts = SubjectFacts(
            "main",
            "tree",
            GROUP,
            os.getpid(),
            SETTING,
            Fixed(overlays=["/"], outside=["/"], proc_readonly=[], env={}, nonce="nonce", seccomp="default"),
        )
        self._log = log

    def leader(self) -> int:
        return 0

    def processes(self) -> list[int]:
        return []

    def go_on(self) -> None:
        self._log.note("go on")


class LoggedPause:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._on = False
        self.ms = 0.0

    def announce(self) -> None:
        self._log.note("quiet")

    def begin(self, *, for_dump: bool, apart: Sequence[int]) -> None:
        self._log.note("freeze for a dump" if for_dump else "freeze")
        self._on = True

    def stop_clock(self) -> None:
        self._log.note("hold")
        self.ms = 1.0

    def end(self) -> None:
        if self._on:
            self._on, self.ms = False, 1.0
            self._log.note("thaw")


class Stage:
    """`take` with layers, a session and a pause that only note what is done with them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = Log()
        layers = tuple(LoggedLayer(kind, self.log) for kind in ("shell", "files", "processes", "terminal"))
        monkeypatch.setattr(taking, "LAYERS", layers)
        monkeypatch.setattr(taking, "Pause", lambda *_: LoggedPause(self.log))
        self._area = Area(None, Hot(folder))  # type: ignore[arg-type]  # the layers do not ask for the pool
        self.places: list[str] = []

    def have_memory(self) -> None:
        """Images are born in memory, if they are asked to; `places` notes where those of each try are."""
        memory = self._area.hot.in_memory
        memory.folder = str(self._area.hot.folder / "memory")
        os.mkdir(memory.folder)
        memory.why_not, memory.most_bytes = "", 1 << 30
        make = self._area.hot.make

        def noted(capture_id: str, needed_bytes: int | None, ids: IdMap) -> None:
            make(capture_id, needed_bytes, ids)
            self.places.append("memory" if memory.images(capture_id) else "disk")

        self._area.hot.make = noted  # type: ignore[method-assign]

    def take(self, wanted: Wanted, *, with_criu: bool = True) -> Capture:
        program = CriuProgram(path=Path("criu"), version="1", origin="chosen")
        dumper = Dumper(program, Criu(program.path)) if with_criu else Dumper(None, None, "there is none")
        subject, profiles = LoggedSubject(self.log), Profiles([], [])
        capture_id = new_id()
        try:
            order = Order(self._area, Quiet(), subject, profiles, dumper, capture_id, wanted)  # type: ignore[arg-type]
            return taking.take(order)
        finally:
            self._area.hot.remove(capture_id)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def order(verb: str, kinds: str = "shell files processes terminal") -> list[str]:
    return [f"{kind} {verb}" for kind in kinds.split()]


BACKWARDS = "terminal processes files shell"
LIVE = Wanted("live", "checkpoint")
BEST = Wanted(None, "checkpoint")


def refused() -> CriuRefused:
    return CriuRefused("dump", Diagnosis("io-uring", "send_fds failed (-22)", "it has an io_uring", ""), Path("log"))


def died() -> CriuAccident:
    diagnosis = Diagnosis("died", "CRIU ended without a message", "CRIU was killed", "try again", is_accident=True)
    return CriuAccident("dump", diagnosis, Path("log"))


def test_the_layers_are_taken_in_the_order_of_the_table(stage: Stage) -> None:
    stage.take(LIVE)
    assert stage.log.steps == [
        *order("prepare"),
        "quiet",
        *order("ready"),
        "freeze for a dump",
        *order("begin", BACKWARDS),
        *order("finish", BACKWARDS),
        *order("release"),
        "thaw",
        "go on",
        *order("record", "processes files shell terminal"),  # the last one last: it takes over what cannot be had again
    ]


def test_a_session_that_is_held_neither_thaws_nor_goes_on(stage: Stage) -> None:
    stage.take(Wanted("live", "replaced", hold=True))
    assert "hold" in stage.log.steps
    assert not {"thaw", "go on"} & set(stage.log.steps)


def test_of_tier_files_the_processes_are_left_out(stage: Stage) -> None:
    stage.take(Wanted("files", "checkpoint"))
    assert "freeze" in stage.log.steps
    assert [step for step in stage.log.steps if step.startswith("processes")] == []


@pytest.mark.parametrize("wanted", [BEST, LIVE], ids=["best", "live"])
@pytest.mark.parametrize("accident", [died(), Failed("start", "CRIU", "the launcher has died"), refused()], ids=type)
def test_what_happens_once_is_made_good_by_a_second_try(stage: Stage, wanted: Wanted, accident: WaypointError) -> None:
    stage.log.meets["processes finish"] = [accident]
    taken = stage.take(wanted)
    assert (taken.tier, taken.degraded) == ("live", [])
    assert stage.log.steps.count("freeze for a dump") == 2
    assert taken.paused_ms == 2.0, "the pauses of both tries count"


@pytest.mark.parametrize("wanted", [BEST, LIVE], ids=["best", "live"])
@pytest.mark.parametrize(
    "accidents", [[died(), died()], [refused(), died()], [died(), refused()]], ids=["twice", "second", "first"]
)
def test_what_happened_never_costs_the_processes(stage: Stage, wanted: Wanted, accidents: list[WaypointError]) -> None:
    stage.log.meets["processes finish"] = [*accidents]
    with pytest.raises(CriuAccident, match="CRIU was killed"):
        stage.take(wanted)
    assert stage.log.steps.count("freeze for a dump") == 2
    assert "freeze" not in stage.log.steps, "it was taken without its processes"
    assert stage.log.steps[-1] == "go on"


def test_what_criu_refuses_twice_is_taken_without_its_processes(stage: Stage) -> None:
    stage.log.meets["processes finish"] = [refused(), refused()]
    taken = stage.take(BEST)
    assert (taken.tier, taken.paused_ms) == ("respawn", 3.0)
    assert taken.degraded == ["without its processes: it has an io_uring"]


@pytest.mark.parametrize("then", [[], [refused(), refused()], [refused()]], ids=["taken", "refused", "refused-once"])
def test_images_without_room_in_memory_are_written_to_the_disk_as_if_never_tried(
    stage: Stage, then: list[WaypointError]
) -> None:
    stage.have_memory()
    full = Diagnosis("disk-full", "No space left on device", "the disk for the image is full", "", is_accident=True)
    stage.log.meets["processes finish"] = [CriuAccident("dump", full, Path("log")), *then]
    taken = stage.take(BEST)
    assert (taken.tier, len(taken.degraded)) == (("respawn", 1) if len(then) == 2 else ("live", 0))
    assert stage.places == ["memory", *["disk"] * (1 + len(then))]


def test_who_is_refused_is_read_before_the_log_of_another_try_takes_its_place(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(role="job", group=7, argv=[], folder="", environ=[], streams=[], ports=[], started=0, below=0)
    logs = [Culprit(7), None]
    asked: list[Mapping[int, str]] = []

    def choose(_family: Family, why: Mapping[int, str]) -> list[LeftOut]:
        asked.append(why)
        return [LeftOut(msgspec.structs.replace(program, pids=[7]), "", why, "")] if why else []

    for name, stands_for in (("choose", choose), ("read_culprit", lambda _log: logs.pop(0)), ("set_apart", print)):
        monkeypatch.setattr(taking, name, stands_for)
    monkeypatch.setattr(taking.cgroups, "frozen", lambda _group: contextlib.nullcontext())
    stage.log.meets["processes finish"] = [refused(), refused(), died()]
    assert stage.take(BEST).tier == "live"
    assert asked == [{7: "it has an io_uring"}] * 2


def test_what_cannot_be_dumped_is_taken_without_its_processes(stage: Stage) -> None:
    stage.log.fails["processes ready"] = CannotCapture("dump", "the processes", "io_uring")
    stage.take(BEST)
    first, second = stage.log.steps.index("go on"), stage.log.steps.index("freeze")
    assert first < second, "the session did not go on between the two tries"
    assert order("drop") == [step for step in stage.log.steps if step.endswith(" drop")]
    assert stage.log.steps[-4:] == ["go on", *order("record", "files shell terminal")]


@pytest.mark.parametrize("hold", [False, True], ids=["goes-on", "held"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", ["shell", "files", "processes", "terminal"])
def test_a_failure_at_any_step_leaves_a_session_that_runs(stage: Stage, kind: str, verb: str, *, hold: bool) -> None:
    stage.log.fails[f"{kind} {verb}"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        stage.take(Wanted("live", "checkpoint", hold=hold))
    steps = stage.log.steps
    assert steps.count("go on") == 1
    assert steps[-1] == "go on" or verb == "record"
    if verb == "record":
        assert not [step for step in steps if step.endswith("cancel")], "the pause was over"
        assert steps.count("thaw") == 1
    else:
        assert [step for step in steps if step.endswith("cancel")] == order("cancel")
        assert ("thaw" in steps) == (verb in ("begin", "finish", "release"))
        assert steps.index("shell cancel") < (steps.index("thaw") if "thaw" in steps else len(steps))


@pytest.mark.parametrize("hold", [False, True], ids=["goes-on", "held"])
@pytest.mark.parametrize("also", ["shell cancel", "terminal cancel", "thaw"])
def test_a_failure_of_the_undoing_leaves_a_session_that_runs(stage: Stage, also: str, *, hold: bool) -> None:
    stage.log.fails |= {
        "files finish": CannotCapture("dump", "it", "it broke"),
        also: OSError(errno.EIO, "the disk is broken"),
    }
    with pytest.raises(OSError, match="broken"):
        stage.take(Wanted("live", "checkpoint", hold=hold))
    assert stage.log.steps[-6:] == [*order("cancel"), "thaw", "go on"], "of the second try"
    assert stage.log.steps.count("go on") == 2


def test_a_thaw_that_fails_lets_the_terminal_go_on(stage: Stage) -> None:
    stage.log.fails["thaw"] = OSError(errno.EIO, "the disk is broken")
    with pytest.raises(OSError, match="broken"):
        stage.take(LIVE)
    assert stage.log.steps[-2:] == ["thaw", "go on"]


def test_a_freeze_that_fails_leaves_a_session_that_runs(stage: Stage) -> None:
    stage.log.fails["freeze for a dump"] = CannotCapture("stop", "the processes", "one is traced")
    with pytest.raises(CannotCapture, match="traced"):
        stage.take(LIVE)
    assert stage.log.steps[-5:] == [*order("cancel"), "go on"]


def test_without_a_criu_the_tier_live_is_refused_before_anything_is_made(stage: Stage) -> None:
    with pytest.raises(CannotCapture, match="there is none"):
        stage.take(LIVE, with_criu=False)
    assert stage.log.steps == []
