"""The manifest of hostile programs: nobody gets rights by being started again, and nothing makes it large."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from pathlib import Path

import msgspec
import pytest

from tests.waiting import wait_until
from waypoint.linux.tasks import procfs
from waypoint.processes.respawn import manifest
from waypoint.processes.respawn.manifest import Family, Manifest, Program, collect

pytestmark = [pytest.mark.privileged]


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def run(ending: ExitStack, *words: str, **env: str) -> int:
    """Start a program that sleeps, by way of `words`. Returns its pid."""
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
def test_what_has_given_up_rights_is_not_started_by_the_shell_which_has_them(
    ending: ExitStack, words: tuple[str, ...]
) -> None:
    shell, same, other = run(ending), run(ending), run(ending, *words)
    assert [one.lost for one in programs(same, shell=shell)] == [""]
    (found,) = programs(other, shell=shell)
    assert found.lost.startswith("it had other rights than the shell")


def test_what_the_shell_has_started_may_have_got_rights_by_that(ending: ExitStack) -> None:
    script = "import os, subprocess; p = subprocess.Popen(['sleep', '1000']); os.setresuid(1, 1, 1); p.wait()"
    shell = subprocess.Popen([sys.executable, "-c", script])
    ending.callback(shell.wait)
    ending.callback(shell.kill)
    wait_until(lambda: procfs.rights(shell.pid).uids == {1}, "the stand-in for a shell is a plain user's")
    (child,) = procfs.children(shell.pid)
    ending.callback(os.kill, child, 9)
    assert [one.lost for one in programs(child, shell=shell.pid)] == [""]


def test_all_of_it_is_bounded(ending: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MOST_OF_ALL", 3000)
    shell, large, small = run(ending), run(ending, LARGE=4000 * "x"), run(ending)
    (first,), (second,) = programs(large, shell=shell), programs(small, shell=shell)
    assert first.lost == "the arguments and environments of all programs are too large"
    assert first.environ == []
    assert first.shown == "sleep 1000"
    assert second.lost == ""


def test_names_that_are_no_text_keep_nothing_else_from_being_recorded(ending: ExitStack, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(odd)
    shell = run(ending)
    with chdir(odd):
        there, writes = run(ending), run(ending, "sh", "-c", 'cd / && exec "$@" >>"$OLDPWD/log"', "sh")
    found = programs(there, writes, shell=shell)
    assert [one.lost.partition(",")[0] for one in found] == 2 * ["its folder"]
    msgspec.json.encode(found)


def test_of_a_live_capture_only_what_has_ended_is_started_again_and_nothing_is_said_of_the_others() -> None:
    one = Program(role="job", group=2, argv=[], folder="", environ=[], streams=[], ports=[], started=0, below=0)
    ended = msgspec.structs.replace(one, ended=True)
    assert Manifest(programs=[one, ended], omitted=3).ended == Manifest(programs=[ended])
