"""What is told of each process of a session."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT
from waypoint.linux.tasks import procfs
from waypoint.processes.profiles.known import Profiles, arguments, read_ours
from waypoint.processes.survey import survey, surveyed

OURS = Profiles([], read_ours(ROOT / "criu_profiles"))


@pytest.fixture
def talkative() -> Iterator[int]:
    """A process with 1.2 MB of arguments."""
    words = ["cat", "--", "-", "\udcff", *["x" * 100_000] * 12]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"\n")
        assert process.stdout.read(1) == b"\n"  # before it runs, the kernel may not tell its arguments yet
        yield process.pid
        process.kill()


def bytes_read() -> int:
    """By this process, until now (proc_pid_io(5))."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_long_arguments_cost_no_more_than_short_ones(talkative: int) -> None:
    before = bytes_read()
    (found,) = survey(os.getpid(), [talkative], OURS)
    assert bytes_read() - before < 1 << 16
    assert (found.command, found.tier) == ("cat -- - \\udcff", "live")
    before = bytes_read()
    assert procfs.command_line(talkative) == ["cat", "--", "-", "\\xff"]
    assert bytes_read() - before < 1 << 16


def test_a_checkpoint_shows_the_arguments_that_it_has_read(talkative: int) -> None:
    assert arguments(talkative) == ["cat", "--", "-", "\udcff"]
    assert surveyed(talkative, ["something", "else"], OURS).command == "something else"
