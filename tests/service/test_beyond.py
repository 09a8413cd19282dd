"""What an export may not ask of this machine, unless whoever made it is trusted."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.store.test_names_store import capture_of, row_of
from waypoint.launch.ground.base import BasePlan
from waypoint.launch.ground.limits import USUAL_PIDS
from waypoint.launch.program import of_a_session, open_files
from waypoint.model.records import Capture, IdMap, ProcessesLayer, SessionLimits
from waypoint.service.durable import receiving

USUAL = SessionLimits()
PLAN = BasePlan(["/", "/home"], [], homes=["/var/lib/some-home"])


def captured(*overlays: str, base: str = "/", limits: SessionLimits = USUAL) -> Capture:
    made = capture_of(row_of("main"))
    processes = ProcessesLayer(
        overlays=list(overlays),
        outside=[],
        proc_readonly=receiving.masks.readonly(),
        masked=receiving.masks.masked(),
        env={},
        nonce="",
        ids=IdMap(first=1 << 20),
        seccomp="default",
        size_bytes=0,
        count=1,
        programs=[],
        frozen_us=0,
        criu="4.2",
    )
    layers = msgspec.structs.replace(made.layers, processes=processes)
    return msgspec.structs.replace(
        made, layers=layers, setting=msgspec.structs.replace(made.setting, base=base, limits=limits)
    )


@pytest.mark.parametrize(
    ("capture", "more"),
    [
        (captured("/", "/home"), ""),
        (captured("/", "/not/there"), ""),
        (captured("/", "/etc"), ""),
        (captured("/", "/run"), "/run, through an overlay"),
        (captured("/", "/run/not-there"), "/run/not-there, through an overlay"),
        (captured("/", "/etc/../run"), "/etc/../run, through an overlay"),
        (captured("/", "/var/lib/some-home/x"), "/var/lib/some-home/x, through an overlay"),
        (captured("/", limits=SessionLimits(memory=1 << 30, pids=USUAL_PIDS, cpus=99.0, disk=1 << 50)), ""),
        (captured("/", limits=SessionLimits(memory=1 << 60)), f"--memory {1 << 60}"),
        (captured("/", limits=SessionLimits(pids=USUAL_PIDS + 1)), f"--pids {USUAL_PIDS + 1}"),
        (captured("/", base="/run"), "the folder /run (--base)"),
    ],
)
def test_more_of_the_machine_than_sessions_have(capture: Capture, more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "plan_overlays", lambda *_: PLAN)
    places = SimpleNamespace(ids=SimpleNamespace(first=1), filters=True, follow_host=lambda: None)
    home: Any = SimpleNamespace(sessions=SimpleNamespace(resources=SimpleNamespace(places=places)))
    assert receiving._beyond(home, capture) == more


def test_processes_come_back_with_no_more_than_sessions_may_raise_their_limits_to() -> None:
    asked = {"RLIMIT_RTPRIO": 99, "RLIMIT_MEMLOCK": -1, "RLIMIT_NOFILE": 1 << 40, "RLIMIT_STACK": -1, "RLIMIT_NEW": 7}
    usual = {"RLIMIT_RTPRIO": 0, "RLIMIT_MEMLOCK": 8 << 20, "RLIMIT_NOFILE": open_files()[1], "RLIMIT_STACK": -1}
    assert of_a_session(asked) == usual
    assert of_a_session({"RLIMIT_NOFILE": 100, "RLIMIT_STACK": 5}) == {"RLIMIT_NOFILE": 100, "RLIMIT_STACK": 5}
