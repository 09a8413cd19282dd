"""The order of the steps of a capture; a failure at any step leaves the session running."""

import errno
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.records.test_names_store import SETTING
from waypoint.capture import taking
from waypoint.capture.layers.hot import Hot
from waypoint.capture.layers.layer import EVERY_TIER, Area, CaptureOptions, Layer, Part, Taking
from waypoint.capture.layers.subject import SubjectFacts
from waypoint.model.conditions import text_of
from waypoint.model.errors import CannotCapture, Failed, WaypointError
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, FilesLayer, Fixed, Tier
from waypoint.processes.criu.causes import CriuAccident, CriuRefused, Diagnosis
from waypoint.processes.criu.options import ERRORS_ONLY, WARNINGS
from waypoint.processes.criu.rpc import Criu, CriuProgram

VERBS = ("prepare", "ready", "begin", "finish", "release", "record")
GROUP = "/no/such/group"


@dataclass
class Log:
    """The steps in order. `fails`: the exception that a step always raises. `first_fails`: those of its first calls.
    `levels`: of CRIU's log, in each try.
    """

    steps: list[str] = field(default_factory=list)
    fails: dict[str, BaseException] = field(default_factory=dict)
    first_fails: dict[str, list[WaypointError]] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)

    def note(self, step: str) -> None:
        self.steps.append(step)
        if step in self.fails:
            raise self.fails[step]
        if self.first_fails.get(step):
            raise self.first_fails[step].pop(0)


class LoggedPart(Part):
    def __init__(self, taking: Taking, kind: str, log: Log) -> None:
        super().__init__(taking)
        log.levels += [taking.log_level] if kind == "processes" else []
        for verb in VERBS:
            setattr(self, verb, lambda verb=verb: self._act(kind, verb, log))
        self.cancel = lambda: log.note(f"{kind} cancel")  # type: ignore[method-assign]

    def _act(self, kind: str, verb: str, log: Log) -> FilesLayer | None:
        log.note(f"{kind} {verb}")
        return FilesLayer(tree=self.taking.capture_id) if (kind, verb) == ("files", "record") else None


_TIERS: dict[str, frozenset[Tier]] = {"processes": frozenset(["live"]), "programs": frozenset(["live", "respawn"])}


class LoggedLayer(Layer):
    def __init__(self, kind: str, log: Log) -> None:
        self.kind = kind  # type: ignore[misc]  # one class for all kinds
        self.tiers = _TIERS.get(kind, EVERY_TIER)  # type: ignore[misc]
        self._log = log

    def part(self, taking: Taking) -> Part:
        return LoggedPart(taking, self.kind, self._log)

    def drop(self, area: Area, capture_id: str, record: object) -> None:
        self._log.steps.append(f"{self.kind} drop")


class LoggedSubject:
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

    def note_rest(self, capture_id: str) -> None:
        pass

    def go_on(self) -> None:
        self._log.note("go on")


class LoggedPause:
    def __init__(self, log: Log, each_ms: float) -> None:
        self._log = log
        self._on = False
        self._each_ms = each_ms
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
            self.ms += self._each_ms
            self._log.note("thaw")


class Stage:
    """`take` with layers, a session and a pause that only log their calls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = Log()
        self.pause_ms = 1.0
        layers = tuple(LoggedLayer(kind, self.log) for kind in ("shell", "files", "processes", "terminal"))
        monkeypatch.setattr(taking, "LAYERS", layers)
        monkeypatch.setattr(taking, "Pause", lambda _cgroup: LoggedPause(self.log, self.pause_ms))
        self._area = Area(None, Hot(folder))  # type: ignore[arg-type]  # the fake layers do not use the pool

    def take(self, options: CaptureOptions, *, with_criu: bool = True) -> Capture:
        subject: Any = LoggedSubject(self.log)
        with ThreadPoolExecutor(2) as executor:
            asked = Taking(new_id(), subject, self._area, options, executor)
            asked.no_criu = CannotCapture("dump", "the processes", "there is none", code="no-criu")
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


def test_layers_are_taken_in_the_order_of_the_table(stage: Stage) -> None:
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


def test_after_one_failure_of_criu_the_capture_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accidents = (died(), Failed("start", "CRIU", "the launcher has died"), refused())
    for options, accident in itertools.product((BEST, LIVE), accidents):
        stage = Stage(tmp_path, monkeypatch)
        stage.log.first_fails["processes finish"] = [accident]
        taken = stage.take(options)
        assert (taken.tier, taken.degraded) == ("live", []), (options, accident)
        assert stage.log.steps.count("freeze for a dump") == 2, (options, accident)
        assert taken.paused_ms == 2.0, "the pauses of both tries count"


def test_a_criu_killed_in_either_of_two_tries_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, kinds in itertools.product((BEST, LIVE), ((died, died), (refused, died), (died, refused))):
        stage = Stage(tmp_path, monkeypatch)
        stage.log.first_fails["processes finish"] = [kind() for kind in kinds]
        with pytest.raises(CriuAccident, match="CRIU was killed"):
            stage.take(options)
        assert stage.log.steps.count("freeze for a dump") == 2, (options, kinds)
        assert "freeze" not in stage.log.steps, "the capture has no processes"
        assert stage.log.steps[-1] == "go on"


def test_processes_that_criu_refuses_twice_are_left_out(stage: Stage) -> None:
    stage.log.first_fails["processes finish"] = [refused(), refused()]
    taken = stage.take(BEST)
    assert (taken.tier, taken.paused_ms) == ("respawn", 3.0)
    [lost] = taken.degraded
    assert (lost.code, text_of(lost)) == ("no-processes", "without its processes: it has an io_uring")


@pytest.mark.parametrize("refusal", [refused(), Failed("copy", "the files", "slow", code="capture-too-slow")])
def test_after_a_long_pause_a_refused_session_is_not_paused_again(stage: Stage, refusal: WaypointError) -> None:
    stage.pause_ms = 1001.0
    stage.log.first_fails["processes finish"] = [refusal]
    if isinstance(refusal, CannotCapture):
        assert stage.take(BEST).tier == "respawn"
    else:
        with pytest.raises(Failed, match="slow"):
            stage.take(BEST)
    assert stage.log.steps.count("freeze for a dump") == 1


def test_after_a_long_pause_criu_does_not_log_everything(stage: Stage) -> None:
    stage.pause_ms = 1001.0
    stage.log.first_fails["processes finish"] = [died()]
    assert stage.take(BEST).tier == "live"
    assert stage.log.levels == [ERRORS_ONLY, WARNINGS]


def test_processes_that_cannot_be_dumped_are_left_out(stage: Stage) -> None:
    stage.log.fails["processes ready"] = CannotCapture("dump", "the processes", "io_uring")
    stage.take(BEST)
    first, second = stage.log.steps.index("go on"), stage.log.steps.index("freeze")
    assert first < second, "the session did not continue between the two tries"
    assert order("drop") == [step for step in stage.log.steps if step.endswith(" drop")]
    assert stage.log.steps[-4:] == ["go on", *order("record", "shell files terminal")]


def test_a_failure_at_any_step_leaves_the_session_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, wrong = ("shell", "files", "processes", "terminal"), list[str]()
    for kind, verb, keep_frozen in itertools.product(kinds, VERBS, (False, True)):
        stage = Stage(tmp_path, monkeypatch)
        stage.log.fails[f"{kind} {verb}"] = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            stage.take(CaptureOptions("live", "checkpoint", keep_frozen=keep_frozen))
        steps = stage.log.steps
        cancelled = [step for step in steps if step.endswith("cancel")]
        is_frozen = verb in ("begin", "finish", "release")
        is_right = steps.count("go on") == 1 and (steps[-1] == "go on" or verb == "record")
        if verb == "record":  # the pause was over
            is_right &= not cancelled and steps.count("thaw") == 1
        else:
            is_right &= cancelled == order("cancel") and ("thaw" in steps) == is_frozen
            is_right &= not is_frozen or steps.index("shell cancel") < steps.index("thaw")
        wrong += [] if is_right else [f"{kind} {verb}, keep_frozen {keep_frozen}: {steps}"]
    assert wrong == []


def test_a_failure_while_cancelling_leaves_the_session_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for also, keep_frozen in itertools.product(("shell cancel", "terminal cancel", "thaw"), (False, True)):
        stage = Stage(tmp_path, monkeypatch)
        stage.log.fails |= {
            "files finish": CannotCapture("dump", "it", "it broke"),
            also: OSError(errno.EIO, "the disk is broken"),
        }
        with pytest.raises(OSError, match="broken"):
            stage.take(CaptureOptions("live", "checkpoint", keep_frozen=keep_frozen))
        assert stage.log.steps[-6:] == [*order("cancel"), "thaw", "go on"], "the second try"
        assert stage.log.steps.count("go on") == 2


def test_after_a_failed_thaw_the_terminal_continues(stage: Stage) -> None:
    stage.log.fails["thaw"] = OSError(errno.EIO, "the disk is broken")
    with pytest.raises(OSError, match="broken"):
        stage.take(LIVE)
    assert stage.log.steps[-2:] == ["thaw", "go on"]


def test_a_failed_freeze_leaves_the_session_running(stage: Stage) -> None:
    stage.log.fails["freeze for a dump"] = CannotCapture("stop", "the processes", "one is traced")
    with pytest.raises(CannotCapture, match="traced"):
        stage.take(LIVE)
    assert stage.log.steps[-5:] == [*order("cancel"), "go on"]


def test_without_a_criu_the_tier_live_is_refused_before_anything_is_made(stage: Stage) -> None:
    with pytest.raises(CannotCapture, match="there is none"):
        stage.take(LIVE, with_criu=False)
    assert stage.log.steps == []
