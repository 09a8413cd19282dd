"""A template that cannot be started is no reason for a restore to fail: the CRIU of the restore starts as usual."""

import contextlib
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from waypoint.launch.templates import Templates, _Template
from waypoint.linux.calls import machine
from waypoint.model.errors import StoreDamaged
from waypoint.processes.criu.memory_plan import MemoryPlan
from waypoint.processes.criu.worker import CriuCommand, spawn_here

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


def test_the_template_of_a_removed_capture_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory_bytes", machine.total_memory_bytes)
    started: list[subprocess.Popen[bytes]] = []

    def spawn(command: CriuCommand) -> subprocess.Popen[bytes]:
        code = f"import os, time; os.write({command.socket_fd}, b'+'); time.sleep(1000)"
        started.append(subprocess.Popen([sys.executable, "-c", code], pass_fds=[command.socket_fd]))
        return started[0]

    templates, held = Templates(cast("Any", SimpleNamespace(template=lambda *_: spawn))), Held()
    with templates.opened(cast("Any", held)) as fd:
        assert fd is not None
    assert started[0].poll() is None
    templates.forget(cast("Any", held.capture))
    assert started[0].returncode == -signal.SIGKILL


def test_a_restore_that_fails_while_another_starts_the_template_does_not_disturb_it() -> None:
    held = Held()
    templates = Templates(cast("Any", SimpleNamespace(template=lambda *_: refuse)))

    @contextlib.contextmanager
    def memory_plan() -> Iterator[tuple[MemoryPlan, int]]:
        templates.avoid(cast("Any", held.capture))
        yield MemoryPlan(b"", 0), 0

    held.memory_plan = memory_plan  # type: ignore[method-assign]
    with templates.opened(cast("Any", held)) as fd:
        assert fd is None


def test_the_end_of_a_template_is_seen_at_any_descriptor() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 1024)) as high:
        template = _Template(cast("Any", None), high)
        assert not template.has_ended()
        theirs.close()
        assert template.has_ended()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
