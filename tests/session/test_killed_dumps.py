"""At random moments, the daemon or CRIU is killed during a dump of a session, or CRIU during a restore."""

import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import Home
from tests.session import ledger
from tests.session.transactions import UNANSWERED, is_name, replaced
from tests.waiting import PATIENCE_S, wait_until
from waypoint.client import Client, Session

pytestmark = [
    pytest.mark.soak(part="criu"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2"),
]

KILLS = int(os.environ.get("WAYPOINT_TEST_KILLS", "20"))
MEMORY_MIB = 64
_NUMBERS = itertools.count(1)
PROGRAM = f"""
import os, threading, time
memory = os.urandom(1 << 20) * {MEMORY_MIB}
def beat():
    while True:
        time.sleep(0.01)
        mine = f"/srv/{{threading.get_ident()}}"
        with open(mine, "w") as file:
            file.write(str(time.monotonic_ns()))
        os.rename(mine, f"/srv/beat.{{os.getpid()}}")
for _ in range(3):
    threading.Thread(target=beat).start()
"""


@pytest.fixture
def session(home: Home) -> Iterator[Session]:
    """A live session with two programs that have memory and threads, and write the time to a file every 10 ms."""
    live = Client(home.path).start(f"s{next(_NUMBERS)}")
    live.run("sh", "-c", "cat > /srv/program.py", stdin=PROGRAM.encode())
    live.exec("kept=yes; python3 /srv/program.py & python3 /srv/program.py & sleep 1000 | cat &")
    wait_until(lambda: len(beats(live)) == 2, "both programs beat")
    yield live
    live.stop(discard=True)


def beats(session: Session) -> dict[str, str]:
    """Return the time that each of the programs wrote last."""
    text = session.run("sh", "-c", "cd /srv; for f in beat.*; do echo $f $(cat $f); done").stdout
    return dict(line.split() for line in text.decode().splitlines() if "*" not in line)


def written(folder: Path) -> int:
    """Return the bytes of memory in all images in `folder`."""
    size = 0
    with contextlib.suppress(FileNotFoundError):  # an image was removed
        size = sum(path.stat().st_size for path in folder.glob("*/images/pages-*.img"))
    return size


def move_on(session: Session) -> bytes:
    """Change the session: end a program, change the variable, make a file. Return the new state."""
    session.exec("kill -KILL %3; wait %3; kept=changed; echo >/srv/changed")
    return state_of(session)


def state_of(session: Session) -> bytes:
    """Return the shell's variable and programs, and the file that `move_on` makes."""
    return session.exec("echo $kept; jobs -l; ls -d /srv/chang*", wait_prompt_s=PATIENCE_S).output


def check_unharmed(session: Session, state: bytes) -> None:
    assert state_of(session) == state
    before = beats(session)
    assert len(before) == 2
    wait_until(lambda: all(beats(session).get(name) != at for name, at in before.items()), "both programs beat")


def kill_while_written(home: Home, session: Session, name: str, enough: int, victim: str) -> tuple[int, str, bool]:
    """Take a checkpoint, and kill its CRIU or the daemon (`victim`) when `enough` bytes of memory are written. Return
    the command's exit status and stderr, and whether the command still ran after the kill.
    """
    daemon, is_hit = Client(home.path).status().pid, False
    with home.background("checkpoint", name, "--tier", "live", "-b", session.branch) as command:
        while written(home.path / "hot") < enough and command.poll() is None:
            os.sched_yield()
        for pid in ledger.criu_pids(home) if victim == "criu" else [daemon]:
            with contextlib.suppress(ProcessLookupError):  # the process had ended
                os.kill(pid, signal.SIGKILL)
                is_hit |= command.poll() is None
        said = command.communicate(timeout=PATIENCE_S)[1].decode()
    return command.returncode, said, is_hit


def test_a_daemon_killed_while_memory_is_written_harms_no_session(home: Home, session: Session) -> None:
    """The next daemon waits for the CRIU of the killed daemon: a killed CRIU may end the program that it dumps."""
    client, state, choose = Client(home.path), state_of(session), random.Random("daemon")
    # Few kills: the supervisor waits longer each time before it replaces a daemon that ended within a second.
    wanted, killed = KILLS // 4, 0
    for number in range(4 * wanted):
        if number >= wanted and killed:  # on a busy machine, all first kills may come after the end of the command
            break
        enough = written(home.path / "hot") + choose.randrange(1, MEMORY_MIB << 20)
        name = f"daemon{number}"
        code, said, is_hit = kill_while_written(home, session, name, enough, "daemon")
        killed += is_hit
        is_there = is_name(client, name)
        if code != 0:  # the daemon was killed before it answered
            assert (code, bool(re.fullmatch(UNANSWERED, said))) == (125, True), said
        else:
            assert (code, said, is_there) == (0, "", True)
        check_unharmed(session, state)
        if is_there:
            (fork,) = client.fork(name, "copy")
            assert state_of(fork) == state
            fork.stop(discard=True)
        ledger.check(home)
    assert killed > 0
    session.checkpoint("last", tier="live")


def test_programs_that_end_with_a_killed_criu_are_named_and_the_others_continue(home: Home, session: Session) -> None:
    client, choose, killed, harmed = Client(home.path), random.Random("criu"), 0, 0
    session.checkpoint("before", tier="live")
    for number in range(4 * KILLS):
        if number >= KILLS and killed:
            break
        before, name = state_of(session), f"criu{number}"
        enough = written(home.path / "hot") + choose.randrange(1, MEMORY_MIB << 20)
        code, said, is_hit = kill_while_written(home, session, name, enough, "criu")
        killed += is_hit
        assert code == (0 if is_name(client, name) else 125), said
        lives = session.branch in {row.branch for row in client.sessions()}
        if lives and state_of(session) == before:
            check_unharmed(session, before)
        else:
            harmed += 1
            assert not lives or re.search(r"these programs have ended since: \S+ \(pid", said), said
            if lives:
                session.checkpoint(f"{name}-next")
            home.must("restore", "before", "-b", session.branch)
        ledger.check(home)
    print(f"{killed} kills, {harmed} sessions harmed")
    assert killed > 0
    session.checkpoint("criu-last", tier="live")


def test_a_restore_whose_criu_is_killed_once_works_and_leaves_nothing_over(home: Home, session: Session) -> None:
    """Half-restored processes survive a killed CRIU in the cgroup of the new session; the daemon must kill them."""
    client = Client(home.path)
    session.checkpoint("whole", tier="live")
    captured, state = state_of(session), move_on(session)
    choose = random.Random(0)
    folders = set(Path("/tmp").glob(".criu.*"))
    for number in range(KILLS // 2):
        argv = home.argv("fork", "whole", "f1") if number % 2 else home.argv("restore", "whole", "-b", session.branch)
        with subprocess.Popen(argv, env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
            wait_until(lambda: bool(restoring(home)) or command.poll() is not None, "a CRIU restores")
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(choose.uniform(0, 0.1))
            for pid in restoring(home):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            said = command.communicate(timeout=PATIENCE_S)[1].decode()
        assert command.returncode == 0, said
        if number % 2:
            check_unharmed(client.session("f1"), captured)
            client.session("f1").stop(discard=True)
        else:
            assert re.fullmatch(replaced(session.branch, "restore"), said)
            check_unharmed(session, captured)
            assert home.must("undo", "-b", session.branch).stderr == ""
        check_unharmed(session, state)
        ledger.check(home)
        assert set(Path("/tmp").glob(".criu.*")) <= folders


@pytest.mark.parametrize("verb", ["fork", "restore"])
def test_a_restore_whose_crius_are_all_killed_is_an_error_with_a_next_step(
    home: Home, session: Session, verb: str
) -> None:
    name = f"{session.branch}-whole"
    session.checkpoint(name, tier="live")
    state = move_on(session)
    argv = ["fork", name, "f2"] if verb == "fork" else ["restore", name, "-b", session.branch]
    argv += ["--tier", "live"]
    take_back = ["stop", "f2", "--discard"] if verb == "fork" else ["undo", "-b", session.branch]
    for _again in range(5):
        code, said, killed = kill_all_restores(home, argv)
        if code:
            break
        home.must(*take_back)  # on a busy machine, a CRIU may end before the test sees it
    assert (code, killed >= 2) == (5, True), said
    assert said.startswith("waypoint: cannot restore the processes"), said
    log = re.search(r"\(log: waypoint (doctor [^)]+)\)", said)
    assert log is None or home.must(*log[1].split()).stdout, "the error names a log that does not exist"
    check_unharmed(session, state)
    ledger.check(home)
    way = said.rstrip().rpartition("to restore only the files: waypoint ")[2].split()
    assert way[-1:] == ["files"], said
    home.must(*way)
    on = Client(home.path).session(way[way.index("-b") + 1])
    kept = b"changed" if verb == "restore" else b""  # a live session keeps its shell; a fork has a new one
    look = "test -e /srv/program.py && ! test -e /srv/changed && echo [$kept]"
    assert on.exec(look).output == b"[%s]\n" % kept
    if verb == "fork":
        on.stop(discard=True)


def kill_all_restores(home: Home, argv: list[str]) -> tuple[int, str, int]:
    """Kill each CRIU that restores while the command runs. Return its exit status, stderr and the number of kills."""
    killed = set()
    with subprocess.Popen(home.argv(*argv), env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        while command.poll() is None:
            for pid in restoring(home):
                killed.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        said = command.communicate()[1].decode()
    return command.returncode, said, len(killed)


def restoring(home: Home) -> list[int]:
    """Return the pids of the CRIU processes of the home that do not dump."""
    pids = ledger.criu_pids(home)  # before dumping_pids: a dumping CRIU starts others in its group
    dumping = ledger.dumping_pids(home)
    return [pid for pid in pids if pid not in dumping]
