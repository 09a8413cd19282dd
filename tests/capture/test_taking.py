"""The order in which a capture is taken, and that a failure at any of its steps leaves a session that runs."""

import errno
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.store.test_names_store import SETTING
from waypoint.capture import taking
from waypoint.capture.layers.hot import Hot
from waypoint.capture.layers.layer import Area, CaptureOptions, Layer, Part, Taking
from waypoint.capture.layers.subject import SubjectFacts
from waypoint.model.errors import CannotCapture, Failed, WaypointError
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, FilesLayer, Fixed
from waypoint.processes.criu.causes import CriuAccident, CriuRefused, Diagnosis
from waypoint.processes.criu.rpc import Criu, CriuProgram

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
            1,
            SETTING,
            Fixed(overlays=["/"], outside=["/"], proc_readonly=[], env={}, nonce="nonce", seccomp="default"),
        )
        self._log = log

    def processes(self) -> list[int]:
        return []

    def leader(self) -> int:
        return 0

    def go_on(self) -> None:
        self._log.note("go on")


class LoggedPause:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._on = False
        self.ms = 0.0

    def announce(self) -> None:
        self._log.note("announce")

    def begin(self, *, for_dump: bool) -> None:
        self._log.note("freeze for a dump" if for_dump else "freeze")
        self._on = True

    def stop_clock(self) -> None:
        self._log.note("hold")
        self.ms += 1.0

    def end(self) -> None:
        if self._on:
            self._on = False
            self.ms += 1.0
            self._log.note("thaw")


class Stage:
    """`take` with layers, a session and a pause that only note what is done with them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = Log()
        layers = tuple(LoggedLayer(kind, self.log) for kind in ("shell", "files", "processes", "terminal"))
        monkeypatch.setattr(taking, "LAYERS", layers)
        monkeypatch.setattr(taking, "Pause", lambda _cgroup: LoggedPause(self.log))
        self._area = Area(None, Hot(folder))  # type: ignore[arg-type]  # the layers do not ask for the pool

    def take(self, options: CaptureOptions, *, with_criu: bool = True) -> Capture:
        subject: Any = LoggedSubject(self.log)
        with ThreadPoolExecutor(2) as beside:
            asked = Taking(new_id(), subject, self._area, options, beside, why_no_criu="there is none")
            if with_criu:
                asked.program = CriuProgram(path=Path("criu"), version="1", origin="chosen")
                asked.criu = Criu(asked.program.path)
            try:
                return taking.take(asked)
            finally:
                self._area.hot.remove(asked.capture_id)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def order(verb: str, kinds: str = "shell files processes terminal") -> list[str]:
    return [f"{kind} {verb}" for kind in kinds.split()]


BACKWARDS = "terminal processes files shell"
LIVE = CaptureOptions("live", "checkpoint")
BEST = CaptureOptions(None, "checkpoint")


def refused() -> CriuRefused:
    return CriuRefused("dump", Diagnosis("io-uring", "send_fds failed (-22)", "it has an io_uring", ""), Path("log"))


def died() -> CriuAccident:
    diagnosis = Diagnosis("died", "CRIU ended without a message", "CRIU was killed", "try again", is_accident=True)
    return CriuAccident("dump", diagnosis, Path("log"))


def test_the_layers_are_taken_in_the_order_of_the_table(stage: Stage) -> None:
    stage.take(LIVE)
    assert stage.log.steps == [
        *order("prepare"),
        "announce",
        *order("ready"),
        "freeze for a dump",
        *order("begin", BACKWARDS),
        *order("finish", BACKWARDS),
        *order("release"),
        "thaw",
        "go on",
        *order("record"),
    ]


def test_keep_frozen_leaves_the_session_frozen(stage: Stage) -> None:
    stage.take(CaptureOptions("live", "replaced", keep_frozen=True))
    assert "hold" in stage.log.steps
    assert not {"thaw", "go on"} & set(stage.log.steps)


def test_a_capture_of_tier_files_has_no_processes(stage: Stage) -> None:
    stage.take(CaptureOptions("files", "checkpoint"))
    assert "freeze" in stage.log.steps
    assert [step for step in stage.log.steps if step.startswith("processes")] == []


@pytest.mark.parametrize("wanted", [BEST, LIVE], ids=["best", "live"])
@pytest.mark.parametrize("accident", [died(), Failed("start", "CRIU", "the launcher has died"), refused()], ids=type)
def test_after_one_accident_the_capture_is_tried_again(
    stage: Stage, wanted: CaptureOptions, accident: WaypointError
) -> None:
    stage.log.meets["processes finish"] = [accident]
    taken = stage.take(wanted)
    assert (taken.tier, taken.degraded) == ("live", [])
    assert stage.log.steps.count("freeze for a dump") == 2
    assert taken.paused_ms == 2.0, "the pauses of both tries count"


@pytest.mark.parametrize("wanted", [BEST, LIVE], ids=["best", "live"])
@pytest.mark.parametrize(
    "accidents", [[died(), died()], [refused(), died()], [died(), refused()]], ids=["twice", "second", "first"]
)
def test_an_accident_in_either_of_two_tries_is_an_error(
    stage: Stage, wanted: CaptureOptions, accidents: list[WaypointError]
) -> None:
    stage.log.meets["processes finish"] = [*accidents]
    with pytest.raises(CriuAccident, match="CRIU was killed"):
        stage.take(wanted)
    assert stage.log.steps.count("freeze for a dump") == 2
    assert "freeze" not in stage.log.steps, "it was taken without its processes"
    assert stage.log.steps[-1] == "go on"


def test_processes_that_criu_refuses_twice_are_left_out(stage: Stage) -> None:
    stage.log.meets["processes finish"] = [refused(), refused()]
    taken = stage.take(BEST)
    assert (taken.tier, taken.paused_ms) == ("respawn", 3.0)
    assert taken.degraded == ["without its processes: it has an io_uring"]


def test_processes_that_cannot_be_dumped_are_left_out(stage: Stage) -> None:
    stage.log.fails["processes ready"] = CannotCapture("dump", "the processes", "io_uring")
    stage.take(BEST)
    first, second = stage.log.steps.index("go on"), stage.log.steps.index("freeze")
    assert first < second, "the session did not go on between the two tries"
    assert order("drop") == [step for step in stage.log.steps if step.endswith(" drop")]
    assert stage.log.steps[-4:] == ["go on", *order("record", "shell files terminal")]


@pytest.mark.parametrize("keep_frozen", [False, True], ids=["goes-on", "held"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", ["shell", "files", "processes", "terminal"])
def test_a_failure_at_any_step_leaves_the_session_running(
    stage: Stage, kind: str, verb: str, *, keep_frozen: bool
) -> None:
    stage.log.fails[f"{kind} {verb}"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        stage.take(CaptureOptions("live", "checkpoint", keep_frozen=keep_frozen))
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


@pytest.mark.parametrize("keep_frozen", [False, True], ids=["goes-on", "held"])
@pytest.mark.parametrize("also", ["shell cancel", "terminal cancel", "thaw"])
def test_a_failure_while_cancelling_leaves_the_session_running(stage: Stage, also: str, *, keep_frozen: bool) -> None:
    stage.log.fails |= {
        "files finish": CannotCapture("dump", "it", "it broke"),
        also: OSError(errno.EIO, "the disk is broken"),
    }
    with pytest.raises(OSError, match="broken"):
        stage.take(CaptureOptions("live", "checkpoint", keep_frozen=keep_frozen))
    assert stage.log.steps[-6:] == [*order("cancel"), "thaw", "go on"], "of the second try"
    assert stage.log.steps.count("go on") == 2


def test_a_thaw_that_fails_lets_the_terminal_go_on(stage: Stage) -> None:
    stage.log.fails["thaw"] = OSError(errno.EIO, "the disk is broken")
    with pytest.raises(OSError, match="broken"):
        stage.take(LIVE)
    assert stage.log.steps[-2:] == ["thaw", "go on"]


def test_a_freeze_that_fails_leaves_the_session_running(stage: Stage) -> None:
    stage.log.fails["freeze for a dump"] = CannotCapture("stop", "the processes", "one is traced")
    with pytest.raises(CannotCapture, match="traced"):
        stage.take(LIVE)
    assert stage.log.steps[-5:] == [*order("cancel"), "go on"]


def test_without_a_criu_the_tier_live_is_refused_before_anything_is_made(stage: Stage) -> None:
    with pytest.raises(CannotCapture, match="there is none"):
        stage.take(LIVE, with_criu=False)
    assert stage.log.steps == []
