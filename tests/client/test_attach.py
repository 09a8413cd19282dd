"""Clients with a terminal, and a scripted daemon that dies at chosen moments."""

import select
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.client.conftest import HOME
from tests.client.peer import Talk, listening
from tests.waiting import PATIENCE_S
from waypoint.client import attach
from waypoint.client.attach import Attachment, CommandTerminal, TerminalStream
from waypoint.model.errors import Failed, StateConflict

ATTACH = "POST /v1/sessions/a%2Fb/attach"


WINDOW = {"rows": 30, "cols": 100}


@pytest.fixture(autouse=True)
def no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show no notice on a busy machine; the test of the notice sets a shorter time."""
    monkeypatch.setattr(attach, "NOTICE_AFTER_S", PATIENCE_S)


def outputs(stream: TerminalStream) -> Iterator[bytes]:
    """Yield the output in pieces until the stream ends."""
    while True:
        stream.flush()
        due_s = stream.due_s()
        select.select([stream], [], [], due_s if due_s is None or due_s > 0 else 0)
        data = stream.receive()
        if data is None:
            return
        if data:
            yield data


def everything(stream: TerminalStream) -> bytes:
    return b"".join(outputs(stream))


def opened() -> "closing[Attachment]":
    return closing(Attachment(HOME, "a/b", 24, 80))


def test_an_attachment_returns_output_and_the_end(socket: Path) -> None:
    def script(talk: Talk) -> None:
        assert talk.request() == (ATTACH, {"rows": 24, "cols": 80})
        talk.upgrade()
        talk.send("n", {"size": [24, 80]})
        talk.send("o", b"repaint ")
        talk.send("o", b"more")
        talk.send("x", {"reason": "ended", "exit": 3})

    with listening(socket, script), opened() as attachment:
        assert everything(attachment) == b"repaint more"
        assert attachment.end == {"reason": "ended", "exit": 3}


def test_an_attachment_sends_keys_and_sizes(socket: Path) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        assert talk.frame() == ("i", b"ls\r")
        assert talk.frame() == ("w", b"\x00\x29\x01\x00")
        talk.send("x", {"reason": "detached"})

    with listening(socket, script), opened() as attachment:
        attachment.send(b"ls\r")
        attachment.resize(41, 256)
        attachment.flush()
        assert everything(attachment) == b""


def test_a_large_paste_is_sent_in_frames_that_the_protocol_allows(socket: Path) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        sizes = []
        while sum(sizes) < 2_500_000:
            frame = talk.frame()
            assert frame is not None
            sizes.append(len(frame[1]))
        assert max(sizes) <= 1 << 20
        talk.send("x", {"reason": "detached"})

    with listening(socket, script), opened() as attachment:
        attachment.send(b"x" * 2_500_000)
        while attachment.flush():
            select.select([], [attachment], [])
        everything(attachment)


def test_after_a_cut_the_client_attaches_again_with_the_current_size(socket: Path) -> None:
    def dies(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        talk.send("o", b"before ")
        talk.frame()

    def goes_on(talk: Talk) -> None:
        assert talk.request() == (ATTACH, {"rows": 30, "cols": 100})
        talk.upgrade()
        talk.send("o", b"repainted")
        talk.send("x", {"reason": "ended", "exit": 0})

    with listening(socket, dies, goes_on), opened() as attachment:
        attachment.resize(30, 100)
        attachment.flush()
        assert everything(attachment) == b"before repainted"


def test_input_typed_after_the_daemon_died_reaches_the_next_daemon(socket: Path) -> None:
    def dies(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        talk.send("o", b"before")

    def goes_on(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        assert talk.frame() == ("i", b"typed")
        talk.send("x", {"reason": "ended", "exit": 0})

    with listening(socket, dies, goes_on), opened() as attachment:
        shown = outputs(attachment)
        assert next(shown) == b"before"
        select.select([attachment], [], [])  # the end has arrived but was not read
        attachment.send(b"typed")
        attachment.flush()
        assert list(shown) == []


def test_only_input_that_the_dead_daemon_had_not_read_reaches_the_next_daemon(socket: Path) -> None:
    def dies(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        assert talk.frame() == ("i", b"taken")
        talk.send("o", b"go on")
        select.select([talk.sock], [], [])  # input has arrived, but is never read

    def goes_on(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        assert talk.frame() == ("i", b"not read")
        talk.send("x", {"reason": "ended", "exit": 0})

    with listening(socket, dies, goes_on), opened() as attachment:
        shown = outputs(attachment)
        attachment.send(b"taken")
        assert next(shown) == b"go on"
        attachment.send(b"not read")
        assert list(shown) == []


def test_a_notice_is_shown_only_after_a_long_wait_for_a_daemon(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "NOTICE_AFTER_S", 0.05)
    is_said = threading.Event()

    def dies(talk: Talk) -> None:
        talk.request()
        talk.upgrade()

    def takes_long(talk: Talk) -> None:
        talk.request()
        assert is_said.wait(PATIENCE_S)
        talk.upgrade()
        talk.send("o", b"here")
        talk.send("x", {"reason": "ended", "exit": 0})

    with listening(socket, dies, takes_long), opened() as attachment:
        shown = outputs(attachment)
        assert next(shown) == attach.NOTICE
        is_said.set()
        assert list(shown) == [b"here"]


def test_a_refusal_is_raised(socket: Path) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.answer(409, {"error": {"code": "conflict", "said": "it has no running session"}})

    with listening(socket, script), opened() as attachment, pytest.raises(StateConflict, match="no running session"):
        everything(attachment)


def test_the_client_gives_up_after_several_dead_daemons(socket: Path) -> None:
    def dies(talk: Talk) -> None:
        talk.request()

    scripts = [dies] * (attach.MAX_DEATHS + 1)
    with listening(socket, *scripts), opened() as attachment, pytest.raises(Failed, match="daemons in a row"):
        everything(attachment)


def test_repaint_opens_a_new_attachment(socket: Path) -> None:
    def first(talk: Talk) -> None:
        talk.request()
        assert talk.frame() is None

    def second(talk: Talk) -> None:
        assert talk.request() == (ATTACH, {"rows": 24, "cols": 80})
        talk.upgrade()
        talk.send("o", b"painted")
        talk.send("x", {"reason": "detached"})

    with listening(socket, first, second), opened() as attachment:
        attachment.repaint()
        assert everything(attachment) == b"painted"


def test_an_exec_on_a_terminal_continues_after_a_cut(socket: Path) -> None:
    def dies(talk: Talk) -> None:
        target, asked = talk.request()
        assert len(bytes.fromhex(asked.pop("id"))) == 8
        assert (target, asked) == ("POST /v1/sessions/a%2Fb/exec", {"text": "vi", "tty": True, **WINDOW})
        talk.upgrade()
        talk.send("n", {"exec": "e1"})
        talk.send("o", b"01234")

    def goes_on(talk: Talk) -> None:
        assert talk.request()[1] == {"resume": "e1", "offset": 5, "rows": 31, "cols": 101}
        talk.upgrade()
        talk.send("o", b"56")
        talk.send("x", {"exit": 1})

    with (
        listening(socket, dies, goes_on),
        closing(CommandTerminal(HOME, "a/b", "exec", {"text": "vi", "tty": True, **WINDOW})) as command,
    ):
        command.resize(31, 101)
        assert everything(command) == b"0123456"
        assert command.end == {"exit": 1}


def test_a_run_on_a_terminal_fails_if_its_daemon_dies(socket: Path) -> None:
    def dies(talk: Talk) -> None:
        talk.request()
        talk.upgrade()

    with (
        listening(socket, dies),
        closing(CommandTerminal(HOME, "a/b", "run", {"argv": ["vi"], **WINDOW})) as command,
        pytest.raises(Failed),
    ):
        everything(command)
