"""Freezing a session in a state in which CRIU can stop every task."""

import contextlib
import os
import time
from pathlib import Path

import pytest

from tests.processes.stages import Session, Stage, on_stage, type_line, wait_for_program
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.tasks import cgroups, procfs
from waypoint.linux.tasks.states import task_state
from waypoint.model.errors import CannotCapture, Failed
from waypoint.processes.freeze import freeze_for_dump, settled_states

pytestmark = [pytest.mark.privileged, pytest.mark.requires("cgroup2", "overlay", "userns", "timens")]

# A child that waits between vfork and exec until a process writes to the FIFO.
HELD_IN_VFORK = """python3 -c 'import os; os.mkfifo("/tmp/fifo"); os.posix_spawn(
"/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 9, "/tmp/fifo", os.O_RDONLY, 0)])'""".replace("\n", "")


def test_a_quiet_session_is_frozen_at_once(tmp_path: Path) -> None:
    def work(stage: Stage) -> str:
        session = stage.start()
        freeze_for_dump(session.cgroup)
        return cgroups.read(session.cgroup, "cgroup.events")

    assert "frozen 1" in on_stage(tmp_path, work)


def is_in_vfork(session: Session) -> bool:
    """Whether parent and child exist, and the parent sleeps uninterruptibly."""
    states = [one.state for one in running(session) if one.name == "python3"]
    return len(states) == 2 and "D" in states


def test_a_parent_in_vfork_is_named_and_the_session_continues(tmp_path: Path) -> None:
    def work(stage: Stage) -> tuple[str, str]:
        session = stage.start()
        type_line(session, f"{HELD_IN_VFORK} &")
        wait_until(lambda: is_in_vfork(session), "a process waits in vfork", brief=True)
        with pytest.raises(Failed) as caught:  # not CannotCapture, because the vfork may end
            freeze_for_dump(session.cgroup)
        return caught.value.said, cgroups.read(session.cgroup, "cgroup.freeze")

    said, frozen = on_stage(tmp_path, work)
    assert "python3" in said
    assert "vfork" in said
    assert frozen.strip() == "0"


def test_no_frozen_task_is_in_vfork_in_a_session_that_starts_many_programs(tmp_path: Path) -> None:
    def work(stage: Stage) -> list[set[str]]:
        session = stage.start()
        type_line(session, "while :; do /bin/true; done")
        seen = []
        for _ in range(50):
            freeze_for_dump(session.cgroup)
            seen.append({task.state for task in settled_states(session.cgroup).values()})
            cgroups.thaw(session.cgroup)
        return seen

    assert set().union(*on_stage(tmp_path, work)) <= {"S"}


@pytest.mark.requires("strace")
@pytest.mark.soak(part="timing")
def test_a_traced_process_is_named_at_once_with_its_tracer(tmp_path: Path) -> None:
    def work(stage: Stage) -> tuple[str, float]:
        session = stage.start()
        type_line(session, "strace -o /dev/null sleep 1000 &")
        wait_for_program(session, "strace", "sleep")
        begin = time.monotonic()
        with pytest.raises(CannotCapture) as caught:
            freeze_for_dump(session.cgroup)
        return caught.value.said, time.monotonic() - begin

    said, seconds = on_stage(tmp_path, work)
    assert said.startswith("sleep (pid ")
    assert "traced by strace (pid " in said
    assert seconds < 5  # CRIU itself would give up after ten seconds


def test_the_state_of_an_ended_process_is_an_error() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    with pytest.raises(ProcessLookupError):
        task_state(child)
    assert task_state(os.getpid()).tracer == 0


def running(session: Session) -> list[procfs.Stat]:
    found = []
    for pid in cgroups.members(session.cgroup):
        with contextlib.suppress(ProcessLookupError):
            found.append(procfs.stat(pid))
    return found


def test_the_foreground_group_of_a_frozen_terminal_has_a_process(tmp_path: Path) -> None:
    """Between two commands of a shell with job control, the foreground group has no process for a moment."""

    def work(stage: Stage) -> list[bool]:
        session = stage.start()
        type_line(session, "setsid -c -w bash --norc -ic 'while :; do /bin/true; done'")
        wait_until(
            lambda: any(one.foreground > 0 for one in running(session)),
            "a process has the terminal",
            PATIENCE_S,
        )
        seen = []
        for _ in range(200):
            freeze_for_dump(session.cgroup)
            found = running(session)
            foregrounds = {one.foreground for one in found if one.foreground > 0}
            seen.append(bool(foregrounds) and foregrounds <= {one.group for one in found})
            cgroups.thaw(session.cgroup)
        return seen

    seen = on_stage(tmp_path, work)
    assert len(seen) == 200
    assert all(seen)
