"""Work on the doctor's stage, in a process of its own: it mounts, and becomes the parent of orphans."""

import os
import pickle
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from waypoint.linux import cgroups, mounts, namespaces
from waypoint.processes.trial import Subject
from waypoint.session.trial.ground import Ground
from waypoint.session.trial.throwaway import Throwaway

Made = TypeVar("Made")

WAIT_S = 20.0


def criu_path() -> Path:
    """The CRIU of the tests; they carry the mark `requires("criu")`."""
    return Path(os.environ["WAYPOINT_CRIU"])


def on_stage(where: Path, work: Callable[[Throwaway], Made]) -> Made:
    """What `work` returns; the test fails with what it raises."""

    def with_stage() -> Made:
        with Ground(where) as ground, closing(Throwaway(ground)) as stage:
            return work(stage)

    return in_own_process(with_stage)


def in_own_process(work: Callable[[], Made]) -> Made:
    """Do `work` in a forked process with mounts of its own; what it returns must be picklable."""
    said_r, said_w = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(said_r)
        try:
            namespaces.set_death_signal(9)
            namespaces.unshare(namespaces.CLONE_NEWNS)
            mounts.make_private("/")
            answer = pickle.dumps((work(), ""))
        except BaseException:
            answer = pickle.dumps((None, traceback.format_exc()))
        with open(said_w, "wb") as said:
            said.write(answer)
        os._exit(0)
    os.close(said_w)
    with open(said_r, "rb") as said:
        answer = said.read()
    os.waitpid(child, 0)
    made, failure = pickle.loads(answer)
    if failure:
        pytest.fail(failure, pytrace=False)
    result: Made = made
    return result


def type_line(subject: Subject, line: str) -> None:
    os.write(subject.master, f"{line}\n".encode())


def wait_for_program(subject: Subject, *names: str) -> None:
    """Until processes of these names (comm) run in the session. Fails after WAIT_S seconds."""
    wait_until(lambda: set(names) <= {name_of(pid) for pid in cgroups.members(subject.cgroup)}, f"{names} in session")


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Look again and again, and let others run in between. Fails after WAIT_S seconds."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited {WAIT_S:.0f} s for {what}"
        os.sched_yield()


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
