"""A program that CRIU cannot dump does not cost the others their lives: it alone is left out of a live capture."""

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.acceptance.seat import Seat
from tests.homes import Home
from tests.session import ledger
from tests.session.pauses import Pauses, home_with
from tests.waiting import PATIENCE_S, until_runs, wait_until
from waypoint.capture.steps import Step
from waypoint.client import Client, Session
from waypoint.linux.tasks import pidfd

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2", "strace")]

KNOWS = """
mkfifo /srv/ask
python3 -c '
import os
known = os.urandom(8).hex()
while True:
    open("/srv/ask").read()
    open("/srv/told", "w").write(known)
' &
"""
"""A job that has something in its memory, which ASK asks for."""
ASK = "rm -f /srv/told; echo >/srv/ask; until [ -s /srv/told ]; do :; done; cat /srv/told"
TRACED = "strace -o /srv/log sleep 1000"
STARTED = f"{until_runs('sleep 1000')}; until [ -s /srv/log ]; do :; done"
LEFT_OUT = f"{TRACED}: it is ended in copies, with sleep 1000: it traces sleep"


home = pytest.fixture(scope="module")(home_with)


@pytest.fixture
def session(home: Home) -> Iterator[Session]:
    live = Client(home.path).start("main")
    live.exec(KNOWS)
    yield live
    home.must("stop", "--all", "--discard")
    ledger.check(home)
    names = [row["name"] for row in home.must("branch", "list", "--json").json()]
    if names:
        home.must("branch", "delete", *names)
    home.cli("rm", "taken")


def said(session: Session, text: str) -> str:
    return session.exec(text).output.decode()


def strace_of(session: Session) -> str:
    return said(session, "pgrep -x strace")


@pytest.mark.parametrize("begun", [f"{TRACED} &", f"(setsid {TRACED} &)"], ids=["a job", "a service"])
def test_the_others_are_live_and_it_is_started_again(home: Home, session: Session, begun: str) -> None:
    session.exec(f"{begun}\n{STARTED}")
    known, traced = said(session, ASK), strace_of(session)
    taken = session.checkpoint("taken")
    assert (taken.tier, taken.degraded) == ("live", [LEFT_OUT])
    assert (said(session, ASK), strace_of(session)) == (known, traced)
    copies = Client(home.path).fork("taken", "one", "two")
    session.restore("taken", lose_processes=True)
    for copy in (*copies, session):
        assert copy.facts.respawned == [TRACED]
        assert said(copy, ASK) == known
        assert strace_of(copy) not in (traced, "")
        assert "python3" in said(copy, "jobs %1")
    shown = {one.command: (one.tier, one.why) for one in Client(home.path).history.show("taken").processes or ()}
    assert shown[TRACED] == ("respawn", "it traces sleep")
    assert shown["sleep 1000"] == ("respawn", "it is traced by strace")


def test_each_process_is_told_its_own_reason_and_doctor_tells_it_before(home: Home, session: Session) -> None:
    script = "sleep 2000 & exec sleep 1000"
    session.exec(f"strace -o /srv/log sh -c '{script}' & until pgrep -fx 'sleep 2000'; do :; done; {STARTED}")
    looked_at = {one.command: (one.tier, one.why) for one in session.survey() if one.tier != "live"}
    taken = session.checkpoint("taken")
    strace = f"strace -o /srv/log sh -c {script}"
    assert looked_at == {
        strace: ("respawn", "it traces sleep"),
        "sleep 1000": ("respawn", "it is traced by strace"),
        "sleep 2000": ("respawn", "it belongs to strace, which cannot be kept"),
    }
    assert home.must("doctor", "main"), "the others can be kept"
    kept = Client(home.path).history.show("taken").processes or ()
    assert {one.command: (one.tier, one.why) for one in kept if one.tier != "live"} == looked_at
    (line,) = taken.degraded
    assert line.startswith(f"{strace}: it is ended in copies, with ")
    assert "sleep 2000" in line
    refused = home.cli("checkpoint", "all", "--tier", "live")
    assert f"(pid {said(session, 'pgrep -x strace').strip()})" in refused.stderr, "as the session sees it"


def test_its_name_cannot_break_the_capture(session: Session) -> None:
    program = "import ctypes, time; ctypes.CDLL(None).prctl(15, bytes([97, 13, 98])); "
    program += "tty = open('/dev/tty'); time.sleep(1000)"
    session.exec(f'python3 -c "{program}" & until ls -l /proc/$!/fd | grep -q /dev/tty; do :; done')
    made = session.checkpoint("taken")
    assert (made.tier, len(made.degraded)) == ("live", 1)


def test_who_gets_files_alone_is_told_of_no_program(home: Home, session: Session) -> None:
    session.exec(f"{TRACED} & {STARTED}")
    session.checkpoint("taken")
    session.restore("taken", lose_processes=True)
    assert session.facts.respawned == [TRACED]
    for only in ("files", "shell"):
        facts = session.restore("taken", only=only)  # type: ignore[arg-type]  # it is one
        assert (facts.respawned, facts.offered, facts.lost) == (None, None, None)


def test_what_was_in_the_foreground_is_offered(home: Home, session: Session) -> None:
    known = said(session, ASK)
    seat = Seat(home, 24, 80)
    seat.type(b"waypoint attach main\r").prompt()
    seat.type(f"{TRACED}\r".encode())
    assert session.run("sh", "-c", STARTED).exit == 0
    assert session.checkpoint("taken").degraded[0] == LEFT_OUT
    (copy,) = Client(home.path).fork("taken", "one")
    assert copy.facts.offered == [TRACED]
    assert said(copy, f"{ASK}; pgrep -c -x strace") == f"{known}0\n"
    assert session.run("pgrep", "-x", "strace").stdout, "in the original it goes on"
    seat.terminal.close(force=True)


def test_the_rest_of_its_pipeline_is_left_out_too_and_told_apart(session: Session) -> None:
    session.exec(f"{TRACED} | cat & {STARTED}; {until_runs('cat')}")
    told = "cat: it is ended in copies: CRIU refuses another of its process group"
    assert session.checkpoint("taken").degraded == [LEFT_OUT, told]


def test_who_asks_for_all_of_it_is_refused(home: Home, session: Session) -> None:
    session.exec(f"{TRACED} & {STARTED}")
    for words in (("checkpoint", "taken", "--tier", "live"), ("checkpoint", "taken", "--park")):
        refused = home.cli(*words)
        assert (refused.code, "traced by strace" in refused.stderr) == (5, True)
    assert strace_of(session)


def advised(stderr: str) -> list[str]:
    """The words behind `waypoint` of the command by which the user agrees to lose what a refusal names."""
    assert f"lose what some have in memory ({TRACED}), and keep the rest: " in stderr
    return stderr.rpartition(": waypoint ")[2].partition("\n")[0].split()


@pytest.mark.parametrize("verb", [("restore", "before"), ("checkpoint", "taken", "--park"), ("stop",), ("undo",)])
def test_who_agrees_to_lose_it_loses_nothing_else(home: Home, session: Session, verb: tuple[str, ...]) -> None:
    session.checkpoint("before")
    if verb[0] == "undo":
        session.restore("before")
    session.exec("kill %1; wait %1")
    session.exec(KNOWS)
    session.exec(f"{TRACED} & {STARTED}")
    known = said(session, ASK)
    refused = home.cli(*verb, *(("--checkpoint", "taken") if verb[0] == "stop" else ()))
    assert refused.code == 5
    done = home.must(*advised(refused.stderr))
    kept = Client(home.path).history.log("main" if verb[0] == "restore" else None, all=True)
    assert [one.tier for one in kept] == ["live"] * len(kept)
    if verb[0] in ("restore", "undo"):
        assert f"degraded: {'main: ' if verb[0] == 'undo' else ''}of what was replaced: {LEFT_OUT}" in done.stderr
        assert said(session, ASK) != known, "it is that of before"
        home.must("undo", str(Client(home.path).history.operations()[0].number))
    else:
        assert f"degraded: {LEFT_OUT}" in done.stderr
        Client(home.path).start("main")
    assert said(session, ASK) == known
    home.cli("rm", "before")


def test_if_the_shell_itself_is_in_the_way_nothing_is_live(session: Session) -> None:
    session.exec("exec 9</dev/tty; sleep 1000 &")
    taken = session.checkpoint("taken")
    assert (taken.tier, taken.degraded[0].partition(":")[0]) == ("respawn", "without its processes")


def test_if_one_is_in_the_terminal_session_of_another_nothing_is_live(home: Home, session: Session) -> None:
    """CRIU hangs when it restores one that has ended, below a session leader that has."""
    session.exec(f"setsid sh -c '(sleep 2000 &) ; exec {TRACED}' & until pgrep -fx 'sleep 2000'; do :; done; {STARTED}")
    taken = session.checkpoint("taken")
    assert (taken.tier, taken.degraded[0].partition(":")[0]) == ("respawn", "without its processes")
    assert Client(home.path).fork("taken", "one")


def test_if_it_talks_to_another_by_a_unix_socket_nothing_is_live(session: Session) -> None:
    """CRIU dumps no half of a connection."""
    serve = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('/srv/t'); s.listen(); "
    serve += "import os; os.rename('/srv/t', '/srv/s'); s.accept()[0].recv(1)"  # there once it listens
    reach = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/srv/s'); print('on', flush=True); s.recv(1)"
    session.exec(f'python3 -c "{serve}" & until [ -S /srv/s ]; do :; done')
    session.exec(f'strace -o /srv/log python3 -c "{reach}" >/srv/on & until [ -s /srv/on ]; do :; done')
    taken = session.checkpoint("taken")
    assert (taken.tier, taken.degraded[0].partition(":")[0]) == ("respawn", "without its processes")
    assert said(session, "pgrep -c python3; pgrep -c strace") == "3\n1\n"


def test_a_daemon_that_is_killed_meanwhile_leaves_all_of_them_running(
    home: Home, session: Session, pauses: Pauses
) -> None:
    session.exec(f"{TRACED} & {STARTED}")
    known, traced = said(session, ASK), strace_of(session)
    daemon = int(home.must("daemon", "status", "--json").json()["pid"])
    with pauses.armed(Step.DUMPED) as armed, home.background("checkpoint", "taken") as command:
        assert armed.wait() == Step.DUMPED
        os.kill(daemon, signal.SIGKILL)
        command.wait(PATIENCE_S)
    session = Client(home.path).session("main")
    assert (said(session, ASK), strace_of(session)) == (known, traced)
    ledger.check(home)
    assert session.checkpoint("taken").degraded == [LEFT_OUT]
    session.exec("kill %2; wait %2")
    assert session.checkpoint("taken", tier="live", force=True).degraded == []


@pytest.mark.parametrize("deaths", [1, 2], ids=["once", "twice"])
def test_a_criu_that_dies_meanwhile_costs_no_processes(
    home: Home, session: Session, pauses: Pauses, deaths: int
) -> None:
    session.exec(f"{TRACED} & {STARTED}")
    known, traced = said(session, ASK), strace_of(session)
    with pauses.armed(Step.DUMPED) as armed, home.background("checkpoint", "taken") as command:
        for left in reversed(range(deaths)):
            assert armed.wait() == Step.DUMPED
            for pid in ledger.criu_pids(home):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if left:
                armed.arm(Step.DUMPED)
            armed.go_on()
        told = command.communicate(timeout=PATIENCE_S)[1].decode()
    if deaths == 1:
        assert (command.returncode, told) == (0, f"degraded: {LEFT_OUT}\n")
    else:
        assert (command.returncode, "CRIU was killed" in told) == (125, True)
    taken = [one for one in Client(home.path).history.log(all=True) if "taken" in one.names]
    assert [one.tier for one in taken] == ["live"] * (2 - deaths)
    assert (said(session, ASK), strace_of(session)) == (known, traced)


def test_a_session_that_ends_meanwhile_leaves_nothing_apart(home: Home, session: Session, pauses: Pauses) -> None:
    session.exec(f"{TRACED} & {STARTED}")
    pid = session.facts.pid
    assert pid is not None
    with pauses.armed(Step.FROZEN) as armed, home.background("checkpoint", "taken") as command:
        assert armed.wait() == Step.FROZEN
        ended = pidfd.open(pid)
        os.kill(pid, signal.SIGKILL)
        assert pidfd.wait_ended(ended, PATIENCE_S)
        os.close(ended)
        armed.go_on()
        told = command.communicate(timeout=PATIENCE_S)[1].decode()
    assert (command.returncode, "its session has just ended" in told) == (4, True), told
    wait_until(lambda: [*ledger.group_of(home).glob("*.apart")] == [], "its group is gone")
    ledger.check(home)
    assert Client(home.path).start("main").exec("echo on").output == b"on\n"
