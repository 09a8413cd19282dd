"""The SDK with the real daemon: sessions, exec and run."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.waiting import PATIENCE_S, wait_until
from waypoint.client import Client, Session
from waypoint.model.errors import StateConflict, UnknownName, UsageProblem

pytestmark = pytest.mark.privileged


@pytest.fixture
def session(client: Client) -> Iterator[Session]:
    yield client.start("s", env={"TERM": "dumb"}, cwd="/usr")
    if any(one.branch == "s" for one in client.sessions()):
        client.session("s").stop(discard=True)


def test_starting_a_live_branch_returns_its_session(client: Client, session: Session) -> None:
    assert session.facts.state == "live"
    assert client.start("s").facts.id == session.facts.id
    assert [one.branch for one in client.sessions()] == ["s"]


def test_a_command_line_runs_in_the_sessions_shell(session: Session) -> None:
    session.exec("cd /usr/lib; word='a b'")
    result = session.exec('pwd; echo "$word" >&2; (exit 3)')
    assert (result.output, result.exit, result.by, result.ended) == (b"/usr/lib\na b\n", 3, "command", False)


def test_words_are_quoted(session: Session) -> None:
    assert session.exec(["printf", "%s|", "$x", "a b"]).output == b"$x|a b|"


def test_output_can_be_received_as_it_arrives(session: Session) -> None:
    pieces: list[bytes] = []
    result = session.exec("echo one; echo two", on_output=pieces.append)
    assert (b"".join(pieces), result.output) == (b"one\ntwo\n", b"")


def test_exec_passes_input_to_the_command(session: Session) -> None:
    assert session.exec("cat; read x; echo $?", stdin=b"\0\xff" * 100_000).output == b"\0\xff" * 100_000 + b"1\n"
    assert session.run("cat", stdin=b"").stdout == b""


def test_a_timeout_is_returned_as_a_result(session: Session) -> None:
    result = session.exec("sleep 60", timeout_s=0.2)
    assert (result.exit, result.by, result.timed_out, result.ended) == (124, "waypoint", True, False)
    assert (result.said, result.signal) == ("the command was stopped after 0.2 s, by SIGINT", "INT")
    own = session.exec("(exit 124)")
    assert (own.exit, own.by, own.timed_out, own.said, own.signal) == (124, "command", False, "", "")


def test_run_returns_the_exit_status(session: Session) -> None:
    done = session.run("sh", "-c", "exit 3")
    assert (done.exit, done.by, done.said, done.timed_out) == (3, "command", "", False)
    lacking = session.run("")
    assert (lacking.exit, lacking.by) == (127, "waypoint")
    assert "no program is named" in lacking.said


def test_run_returns_stdout_and_stderr_separately(session: Session) -> None:
    result = session.run("sh", "-c", "echo out; echo err >&2; echo $V; pwd; exit 4", env={"V": "v"}, cwd="/usr/bin")
    assert (result.stdout, result.stderr, result.exit) == (b"out\nv\n/usr/bin\n", b"err\n", 4)


def test_a_stopped_session_continues_from_its_files(client: Client, session: Session) -> None:
    session.exec("echo kept > /var/tmp/kept")
    stopped = session.stop()
    assert stopped.capture
    [found] = client.sessions(all=True)
    assert (found.branch, found.state, found.pid) == ("s", "ended", None)
    assert client.start("s").run("cat", "/var/tmp/kept").stdout == b"kept\n"


def test_errors_raise_the_documented_exceptions(client: Client, session: Session) -> None:
    with pytest.raises(UnknownName) as raised:
        client.session("nosuch").refresh()
    assert raised.value.next_step
    session.stop()
    with pytest.raises(StateConflict):
        session.exec("true")
    with pytest.raises(UsageProblem):
        client.start("bad name")


def test_logs_print_the_output_of_the_terminal(session: Session) -> None:
    session.exec("echo seen$((1+1))")
    assert b"seen2" in b"".join(session.logs())


def test_logs_can_be_followed_until_the_session_ends(session: Session) -> None:
    found: list[bytes] = []

    def follow() -> None:
        for piece in session.logs(follow=True):
            found.append(piece)

    reader = threading.Thread(target=follow)
    reader.start()
    session.exec("echo now$((1+1))")
    wait_until(lambda: b"now2" in b"".join(found), "the reader has got the output")
    session.stop(discard=True)
    reader.join(PATIENCE_S)
    assert not reader.is_alive()


def test_an_exec_survives_a_killed_daemon(client: Client, session: Session) -> None:
    pid = client.status().pid

    def kill_once(piece: bytes) -> None:
        pieces.append(piece)
        if len(b"".join(pieces)) > 100 and not killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    pieces: list[bytes] = []
    killed: list[int] = []
    result = session.exec("for i in $(seq 300); do echo $i; sleep 0.003; done; (exit 5)", on_output=kill_once)
    assert killed
    assert result.exit == 5
    assert b"".join(pieces) == b"".join(b"%d\n" % number for number in range(1, 301))
    assert client.status().pid != pid


def test_a_stopped_daemon_is_started_by_the_next_call(client: Client, session: Session) -> None:
    session.exec("here=1")
    client.stop_daemon()
    assert client.running() is None
    assert session.exec("echo $here").output == b"1\n"
    assert client.running() is not None
