"""The client side of exec and run, with a scripted daemon that dies at chosen moments."""

import os
import threading
import time
from pathlib import Path

import pytest

from tests.client.conftest import HOME
from tests.client.peer import Script, Talk, listening
from waypoint.client.command import MAX_DEATHS, Command
from waypoint.model.errors import Failed, StateConflict

EXEC = "POST /v1/sessions/a%2Fb/exec"


class Sinks:
    def __init__(self) -> None:
        self.output = bytearray()
        self.errors = bytearray()

    def wait(self, command: Command, input_fd: int = -1) -> dict[str, object]:
        return command.wait(self.output.extend, self.errors.extend, input_fd)


@pytest.fixture
def sinks() -> Sinks:
    return Sinks()


def start(verb: str = "exec", **request: object) -> Command:
    return Command(HOME, "a/b", verb, {"text": "true", **request})


def test_output_is_passed_on_and_the_result_returned(socket: Path, sinks: Sinks) -> None:
    def script(talk: Talk) -> None:
        target, asked = talk.request()
        assert len(bytes.fromhex(asked.pop("id"))) == 8
        assert (target, asked) == (EXEC, {"text": "true"})
        talk.upgrade()
        talk.send("n", {"exec": "e1"})
        talk.send("n", {"something": "new"})
        talk.send("o", b"one")
        talk.send("e", b"two")
        talk.send("x", {"exit": 3, "by": "command"})

    with listening(socket, script):
        assert sinks.wait(start()) == {"exit": 3, "by": "command"}
    assert (sinks.output, sinks.errors) == (b"one", b"two")


def test_a_refusal_is_raised(socket: Path, sinks: Sinks) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.answer(409, {"error": {"code": "conflict", "said": "it is busy"}})

    with listening(socket, script), pytest.raises(StateConflict, match="it is busy"):
        sinks.wait(start())


def test_an_error_after_the_upgrade_is_raised_after_the_output(socket: Path, sinks: Sinks) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        talk.send("o", b"some")
        talk.send("x", {"error": {"code": "conflict", "said": "it broke"}})

    with listening(socket, script), pytest.raises(StateConflict, match="it broke"):
        sinks.wait(start())
    assert sinks.output == b"some"


def test_an_exec_continues_after_the_connection_was_cut(socket: Path, sinks: Sinks) -> None:
    """Even if the connection was cut in the middle of a frame."""

    def dies(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        talk.send("n", {"exec": "e1"})
        talk.send("o", b"0123")
        talk.sock.sendall(b"o\x00\x00\x00\x0a4567")

    def dies_again(talk: Talk) -> None:
        assert talk.request() == (EXEC, {"resume": "e1", "offset": 8})
        talk.upgrade()
        talk.send("o", b"89")

    def goes_on(talk: Talk) -> None:
        assert talk.request() == (EXEC, {"resume": "e1", "offset": 10})
        talk.upgrade()
        talk.send("o", b"ab")
        talk.send("x", {"exit": 0})

    with listening(socket, dies, dies_again, goes_on):
        assert sinks.wait(start()) == {"exit": 0}
    assert sinks.output == b"0123456789ab"


def test_a_connection_reset_is_handled_as_a_cut(socket: Path, sinks: Sinks) -> None:
    def dies(talk: Talk) -> None:
        assert talk.sock.recv(10)  # unread bytes turn the close into a reset
        talk.upgrade()
        talk.send("n", {"exec": "e1"})

    def goes_on(talk: Talk) -> None:
        assert talk.request()[1] == {"resume": "e1", "offset": 0}
        talk.upgrade()
        talk.send("x", {"exit": 0})

    with listening(socket, dies, goes_on):
        assert sinks.wait(start()) == {"exit": 0}


def test_an_exec_cut_before_its_start_is_known_is_repeated_with_its_id(socket: Path, sinks: Sinks) -> None:
    asked: list[object] = []

    def dies_at_once(talk: Talk) -> None:
        asked.append(talk.request())

    def dies(talk: Talk) -> None:
        asked.append(talk.request())
        talk.upgrade()

    def goes_on(talk: Talk) -> None:
        asked.append(talk.request())
        talk.upgrade()
        talk.send("x", {"exit": 0})

    with listening(socket, dies_at_once, dies, goes_on):
        assert sinks.wait(start()) == {"exit": 0}
    assert asked == [asked[0]] * 3


def test_a_run_fails_if_the_connection_is_cut(socket: Path, sinks: Sinks) -> None:
    def dies(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        talk.send("o", b"some")

    with listening(socket, dies), pytest.raises(Failed):
        sinks.wait(start("run"))
    assert sinks.output == b"some"


def test_the_client_gives_up_after_several_dead_daemons(socket: Path, sinks: Sinks) -> None:
    def dies(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        talk.send("n", {"exec": "e1"})

    def dies_at_once(talk: Talk) -> None:
        assert talk.request()[1] == {"resume": "e1", "offset": 0}

    scripts: list[Script] = [dies, *[dies_at_once] * MAX_DEATHS]
    with listening(socket, *scripts), pytest.raises(Failed, match="daemons in a row died"):
        sinks.wait(start())


def test_input_is_streamed_to_its_end(socket: Path, sinks: Sinks) -> None:
    content = os.urandom(300_000)

    def script(talk: Talk) -> None:
        assert talk.request()[1]["stdin"] is True
        talk.upgrade()
        talk.send("o", talk.input())
        talk.send("x", {"exit": 0})

    def write(fd: int) -> None:
        with open(fd, "wb") as file:
            file.write(content)

    reader, writer = os.pipe()
    with listening(socket, script), open(reader, "rb") as file:
        thread = threading.Thread(target=write, args=[writer])
        thread.start()
        assert sinks.wait(start(stdin=True), file.fileno()) == {"exit": 0}
        thread.join()
    assert sinks.output == content


def test_input_and_output_flow_at_the_same_time(socket: Path, sinks: Sinks, tmp_path: Path) -> None:
    """In both directions flows more than all buffers can hold."""
    content = os.urandom(8 << 20)
    (tmp_path / "input").write_bytes(content)

    def echo(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        while (frame := talk.frame()) != ("i", b""):
            assert frame is not None
            talk.send("o", frame[1] * 2)
        talk.send("x", {"exit": 0})

    with listening(socket, echo), (tmp_path / "input").open("rb") as file:
        sinks.wait(start(stdin=True), file.fileno())
    assert len(sinks.output) == 2 * len(content)


def test_input_from_a_descriptor_that_is_closed_is_empty(socket: Path, sinks: Sinks) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        assert talk.input() == b""
        talk.send("x", {"exit": 0})

    with listening(socket, script):
        assert sinks.wait(start(stdin=True), 987) == {"exit": 0}


def test_a_cut_that_may_have_lost_input_is_an_error_after_the_output(socket: Path, sinks: Sinks) -> None:
    def dies(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        talk.send("n", {"exec": "e1"})
        talk.input()

    def goes_on(talk: Talk) -> None:
        assert talk.request()[1] == {"resume": "e1", "offset": 0}
        talk.upgrade()
        talk.send("o", b"what it printed")
        talk.send("x", {"exit": 0})

    with listening(socket, dies, goes_on), open(os.devnull, "rb") as empty, pytest.raises(Failed, match="input"):
        sinks.wait(start(stdin=True), empty.fileno())
    assert sinks.output == b"what it printed"


def test_a_signal_is_sent(socket: Path, sinks: Sinks) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        assert talk.frame() == ("k", b"INT")
        assert talk.frame() == ("w", b"\x00\x18\x00\x50")
        talk.send("x", {"exit": 130})

    with listening(socket, script):
        command = start()
        command.signal("INT")
        command.resize(24, 80)
        assert sinks.wait(command) == {"exit": 130}


def test_the_wake_descriptor_lets_signal_handlers_run_without_output(socket: Path, sinks: Sinks) -> None:
    """The signal arrives just before the wait begins."""

    def script(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        assert talk.frame() == ("k", b"INT")
        talk.send("x", {"exit": 130})

    reader, writer = os.pipe()
    with listening(socket, script), open(reader, "rb"), open(writer, "wb"):
        command = start()
        command.wake_fd = reader
        os.write(writer, b"\x02")
        command._channel.out.queue("k", b"INT")
        assert sinks.wait(command) == {"exit": 130}


def test_the_wait_ends_at_the_deadline(socket: Path, sinks: Sinks) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        assert talk.frame() is None  # the client has closed

    with listening(socket, script):
        command = start()
        command.deadline = time.monotonic() + 0.05
        with pytest.raises(TimeoutError):
            sinks.wait(command)
