"""The manifest with hostile programs: no program gains rights by being started again, and the size is bounded."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.waiting import wait_until
from waypoint.linux.tasks import procfs
from waypoint.processes.respawn import manifest
from waypoint.processes.respawn.manifest import Family, Program, collect

pytestmark = [pytest.mark.privileged]


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def run(ending: ExitStack, *words: str, **env: str) -> int:
    """Start `sleep` through the command `words`. Returns its pid."""
    started = subprocess.Popen([*words, "sleep", "1000"], env={"PATH": os.environ["PATH"], **env})
    ending.callback(started.wait)
    ending.callback(started.kill)
    wait_until(lambda: procfs.command_line(started.pid)[:1] == ["sleep"], "the program runs")
    return started.pid


def programs(*pids: int, shell: int) -> list[Program]:
    return collect(Family(os.getpid(), shell, [shell, *pids])).programs


@pytest.mark.parametrize(
    "words",
    [
        ("setpriv", "--reuid", "65534", "--clear-groups"),
        ("setpriv", "--no-new-privs"),
        ("setpriv", "--bounding-set", "-chown"),
        ("unshare", "--user"),
        ("unshare", "--mount"),
    ],
    ids=" ".join,
)
def test_a_program_that_gave_up_rights_is_not_started_again_by_the_shell(
    ending: ExitStack, words: tuple[str, ...]
) -> None:
    shell, same, other = run(ending), run(ending), run(ending, *words)
    assert [one.lost for one in programs(same, shell=shell)] == [""]
    (found,) = programs(other, shell=shell)
    assert found.lost.startswith("it ran with other rights than the shell")


def test_a_child_of_the_shell_may_have_gained_rights(ending: ExitStack) -> None:
    script = "import os, subprocess; p = subprocess.Popen(['sleep', '1000']); os.setresuid(1, 1, 1); p.wait()"
    shell = subprocess.Popen([sys.executable, "-c", script])
    ending.callback(shell.wait)
    ending.callback(shell.kill)
    wait_until(lambda: procfs.rights(shell.pid).uids == {1}, "the stand-in for a shell runs as an ordinary user")
    (child,) = procfs.children(shell.pid)
    ending.callback(os.kill, child, 9)
    assert [one.lost for one in programs(child, shell=shell.pid)] == [""]


def test_the_size_of_the_manifest_is_bounded(ending: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MOST_OF_ALL", 3000)
    shell, large, small = run(ending), run(ending, LARGE=4000 * "x"), run(ending)
    (first,), (second,) = programs(large, shell=shell), programs(small, shell=shell)
    assert first.lost == "the arguments and environments of all programs are too large"
    assert first.environ == []
    assert first.shown == "sleep 1000"
    assert second.lost == ""
