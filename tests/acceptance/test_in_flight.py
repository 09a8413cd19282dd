"""A command that runs during a checkpoint runs to its end in the original session and in the restored one."""

import threading
from collections.abc import Iterator

import pytest

from tests.acceptance.restoring import WAYS, Way, in_process, in_shell, new_name, restore_as, started
from tests.homes import Home
from tests.waiting import PATIENCE_S
from waypoint.client.results import ExecResult
from waypoint.client.sdk import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu", "zsh")]

UNTIL_GO = "touch /tmp/begun; until [ -e /tmp/go ]; do sleep 0.02; done"


@pytest.fixture(params=["person", pytest.param("zsh_person", marks=pytest.mark.soak(part="matrix"))])
def session(home: Home, request: pytest.FixtureRequest) -> Iterator[Session]:
    with started(home, request.getfixturevalue(request.param).name) as live:
        yield live


class InFlight:
    """An exec in a thread; the constructor returns when the command has begun."""

    def __init__(self, session: Session, text: str, stdin: bytes | None = None, timeout_s: float | None = None) -> None:
        self.result: ExecResult | None = None
        self._failure: Exception | None = None

        def go() -> None:
            try:
                self.result = session.exec(text, stdin=stdin, timeout_s=timeout_s)
            except Exception as error:
                self._failure = error

        self._thread = threading.Thread(target=go)
        self._thread.start()
        in_process(session, "until [ -e /tmp/begun ]; do sleep 0.02; done")

    def end(self) -> ExecResult | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.result


@pytest.mark.parametrize("way", WAYS)
def test_a_command_in_flight_ends_in_original_and_copy(home: Home, session: Session, way: Way) -> None:
    run = InFlight(session, f"echo one; {UNTIL_GO}; mine=set; echo two; echo two >/tmp/file; (exit 7)")
    checkpoint = new_name(session)
    session.checkpoint(checkpoint, tier="live")
    if way == "fork":
        fork = restore_as(home, session, checkpoint, way)
        in_process(session, "touch /tmp/go")
        ended = run.end()
        assert ended is not None
        assert (ended.output, ended.exit) == (b"one\ntwo\n", 7)
    else:
        fork = restore_as(home, session, checkpoint, way)
        run.end()  # The restore replaced the shell, so this exec may have any result.
    in_process(fork, "[ ! -e /tmp/go ] && touch /tmp/go; until [ -e /tmp/file ]; do sleep 0.02; done")
    assert in_shell(fork, "echo $mine; cat /tmp/file") == "set\ntwo\n"
    assert fork.exec("echo the next").output == b"the next\n"
    assert b"one" in b"".join(fork.logs())


def test_a_command_in_flight_keeps_the_input_that_it_has_read(home: Home, session: Session) -> None:
    run = InFlight(session, f"read -r x; {UNTIL_GO}; read -r y; echo $x $y", stdin=b"first\nsecond\n")
    checkpoint = new_name(session)
    session.checkpoint(checkpoint, tier="live")
    fork = restore_as(home, session, checkpoint, "fork")
    for one in (session, fork):
        in_process(one, "touch /tmp/go")
    ended = run.end()
    assert ended is not None
    assert (ended.output, ended.exit) == (b"first second\n", 0)
    assert fork.exec("echo $x").output == b"first\n"


@pytest.mark.soak(part="timing")
def test_a_timeout_applies_in_the_fork_too(home: Home, session: Session) -> None:
    run = InFlight(session, "touch /tmp/begun; sleep 1000", timeout_s=3)  # the checkpoint takes less
    checkpoint = new_name(session)
    session.checkpoint(checkpoint, tier="live")
    fork = restore_as(home, session, checkpoint, "fork")
    ended = run.end()
    assert ended is not None
    assert ended.exit == 124
    assert fork.exec("echo works", wait_prompt_s=PATIENCE_S).output == b"works\n"


@pytest.mark.parametrize("way", WAYS)
def test_a_process_of_run_continues_in_original_and_copy(home: Home, session: Session, way: Way) -> None:
    thread = threading.Thread(target=lambda: session.run("sh", "-c", f"{UNTIL_GO}; echo done >/tmp/done"))
    thread.start()
    in_process(session, "until [ -e /tmp/begun ]; do sleep 0.02; done")
    checkpoint = new_name(session)
    session.checkpoint(checkpoint, tier="live")
    back = restore_as(home, session, checkpoint, way)
    in_process(back, "touch /tmp/go; until [ -e /tmp/done ]; do sleep 0.02; done")
    in_process(session, "touch /tmp/go")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
