"""When the programs of a live capture are looked at."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.processes_now import words_of
from tests.waiting import wait_until
from waypoint.capture.layers import programs
from waypoint.processes.profiles.known import Profiles
from waypoint.processes.respawn.manifest import Family, Manifest, Program


def part_of(pid: int) -> programs.ProgramsPart:
    """That of a live capture of a session with one process."""
    subject = SimpleNamespace(processes=lambda: [pid], leader=lambda: 0, facts=SimpleNamespace(init_pid=os.getpid()))
    taking = SimpleNamespace(criu=object(), left_out=(), subject=subject, profiles=Profiles([], []))
    return programs.ProgramsPart(cast("Any", taking))


def test_what_could_not_be_looked_at_before_the_pause_is_in_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though no process has come or gone: else all programs would be missing in the capture, and nothing would tell."""
    one = Program(role="job", group=2, argv=[], folder="", environ=[], streams=[], ports=[], started=0, below=0)
    found: list[Manifest | OSError] = [OSError("something that happens"), Manifest(programs=[one])]

    def collect(_family: Family) -> Manifest:
        answer = found.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(programs, "collect", collect)
    part = part_of(os.getpid())
    part.prepare()
    part.finish()
    assert [program.role for program in part._manifest.programs] == ["job"]


def test_a_process_that_has_become_another_program_since_is_looked_at_again() -> None:
    """As what a shell has just started: it is a subshell, and a moment later the program."""
    with subprocess.Popen(["sh", "-c", "read word; exec sleep 1000"], stdin=subprocess.PIPE) as started:
        try:
            assert started.stdin is not None
            part = part_of(started.pid)
            part.prepare()
            started.stdin.write(b"on\n")
            started.stdin.flush()
            wait_until(lambda: words_of(started.pid) == ["sleep", "1000"], "it is another program")
            part.finish()
        finally:
            started.kill()
    assert [program.argv for program in part._manifest.programs] == [[b"sleep", b"1000"]]


def test_what_a_program_reads_until_the_pause_is_read(tmp_path: Path) -> None:
    """Where it is started again it goes on behind that."""
    (tmp_path / "lines").write_bytes(b"one\ntwo\n")
    with (tmp_path / "lines").open("rb", buffering=0) as lines, subprocess.Popen(["sleep", "1000"], stdin=lines) as one:
        try:
            part = part_of(one.pid)
            part.prepare()
            lines.read(4)  # they have one place in the file
            part.finish()
        finally:
            one.kill()
    (program,) = part._manifest.programs
    assert [stream.offset for stream in program.streams if stream.number == 0] == [4]
