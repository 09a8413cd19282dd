"""No wait of a test's is without a bound, whatever its author has forgotten."""

import subprocess
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from tests import bounds
from tests.waiting import PATIENCE_S

Program = subprocess.Popen[bytes]


def wait_for_result(_: Program) -> None:
    Future[None]().result()


WAITS: list[Callable[[Program], object]] = [
    Program.wait,
    Program.communicate,
    lambda program: program.wait(timeout=None),
    lambda program: program.communicate(b""),
    wait_for_result,
]


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_that_says_no_bound_has_one(monkeypatch: pytest.MonkeyPatch, wait: Callable[[Program], object]) -> None:
    with subprocess.Popen(["sleep", "1000"], stdin=subprocess.PIPE) as program:
        with monkeypatch.context() as patched:
            patched.setattr(bounds, "USUAL_S", 0.01)
            with pytest.raises((subprocess.TimeoutExpired, TimeoutError)):
                wait(program)
        program.kill()


def test_a_program_that_is_run_without_a_bound_is_killed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "USUAL_S", 0.5)
    with pytest.raises(subprocess.TimeoutExpired, match=r"after 0\.5 seconds"):
        subprocess.run(["sh", "-c", "echo begun; exec sleep 1000"], capture_output=True, check=False)


def test_a_bound_of_ones_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "USUAL_S", 0.01)
    command = ["sh", "-c", "sleep 0.1; echo said"]
    assert subprocess.run(command, timeout=PATIENCE_S, stdout=subprocess.PIPE, check=True).stdout == b"said\n"
