"""A template that cannot be started is no reason for a restore to fail: the CRIU of the restore starts as usual."""

import contextlib
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from waypoint.launch.templates import Templates
from waypoint.linux.calls import machine
from waypoint.model.errors import StoreDamaged
from waypoint.processes.criu.memory_plan import MemoryPlan
from waypoint.processes.criu.worker import spawn_here

LARGE = 256 << 20


class Held:
    """A large capture whose images can be read, unless `problem` is set."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.capture = SimpleNamespace(id="0" * 32)
        self.criu = SimpleNamespace(key="1", path=sys.executable)
        self.processes = SimpleNamespace(size_bytes=LARGE, hard_limits={})
        self.plans = 0
        self._problem = problem

    @contextlib.contextmanager
    def memory_plan(self) -> Iterator[tuple[MemoryPlan, int]]:
        self.plans += 1
        if self._problem is not None:
            raise self._problem
        yield MemoryPlan(b"", LARGE), 0


def refuse(*_: object) -> Any:
    raise OSError(11, os.strerror(11))


@pytest.mark.parametrize(
    ("held", "spawn"),
    [
        (Held(StoreDamaged("read", "an image", "it is malformed", "choose another")), spawn_here),
        (Held(), refuse),
        (Held(), spawn_here),  # Python, which ends at once with such arguments
    ],
)
def test_a_restore_goes_on_without_a_template(held: Held, spawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory_bytes", machine.total_memory_bytes)
    templates = Templates(cast("Any", SimpleNamespace(template=lambda *_: spawn)))
    for _ in range(2):
        with templates.opened(cast("Any", held)) as fd:
            assert fd is None
    assert held.plans == 1, "it is tried once"


def test_a_template_is_not_started_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: LARGE)
    templates, held = Templates(cast("Any", SimpleNamespace(template=refuse))), Held()
    for _ in range(2):
        with templates.opened(cast("Any", held)) as fd:
            assert fd is None
    assert held.plans == 2, "it is tried again, as memory may be free then"
