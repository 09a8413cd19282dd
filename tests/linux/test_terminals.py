"""Pseudo-terminals, on the real kernel."""

import os
import threading
import time
import tty
from collections.abc import Iterator

import pytest

from tests.terminals import open_pair
from waypoint.linux.tty import terminals


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    """A master and its raw slave."""
    master, slave = open_pair()
    tty.setraw(slave)
    yield master, slave
    os.close(master)
    os.close(slave)


def test_what_waits_already_is_seen_at_once(pair: tuple[int, int]) -> None:
    os.write(pair[1], b"here")
    assert terminals.wait_briefly(pair[0], 10)
    assert os.read(pair[0], 100) == b"here"


def test_what_comes_meanwhile_is_seen(pair: tuple[int, int]) -> None:
    writer = threading.Timer(0.05, os.write, (pair[1], b"late"))
    writer.start()
    assert terminals.wait_briefly(pair[0], 10)
    writer.join()


def test_nobody_waits_longer_than_the_patience(pair: tuple[int, int]) -> None:
    begin = time.monotonic()
    assert not terminals.wait_briefly(pair[0], 0.05)
    assert time.monotonic() - begin >= 0.05


def test_the_end_of_a_terminal_is_left_to_the_read() -> None:
    master, slave = open_pair()
    os.close(slave)
    assert not terminals.wait_briefly(master, 0)
    with pytest.raises(OSError, match="Input/output"):
        os.read(master, 1)
    os.close(master)


@pytest.fixture
def line_pair() -> Iterator[tuple[int, int]]:
    """A master and its slave, which takes whole lines and echoes; neither blocks."""
    master, slave = open_pair()
    os.set_blocking(slave, False)
    yield master, slave
    os.close(master)
    os.close(slave)


@pytest.mark.privileged
@pytest.mark.parametrize(
    "typed",
    [
        *(b"one\r", b"one\rtwo\rthe thi", b"unfinished"),
        *(b"one\x04two", b"\x04", b"\x04\x04end"),
        *(b"a\x16\x15b\0c\r", b"gone\x15k\x7fept\r"),
    ],
)
def test_what_is_typed_ahead_comes_away_and_back_without_an_echo(line_pair: tuple[int, int], typed: bytes) -> None:
    master, slave = line_pair
    os.write(master, typed)
    taken = terminals.take_typed_ahead(master)
    assert taken == typed.replace(b"\r", b"\n").replace(b"\x16", b"").replace(b"gone\x15k\x7f", b"")
    assert terminals.take_typed_ahead(master) == b""
    terminals.read_now(master, 1000)
    modes = terminals.modes(master)
    terminals.type_ahead(master, taken)
    assert terminals.modes(master) == modes
    assert terminals.read_now(master, 1000) == b""
    os.write(master, b" end\r")
    lines = [os.read(slave, 1000) for _ in range(taken.count(b"\n") + taken.count(b"\x04") + 1)]
    assert b"".join(lines) == taken.replace(b"\x04", b"") + b" end\n"
    with pytest.raises(BlockingIOError):
        os.read(slave, 1000)


@pytest.mark.privileged
def test_raw_keys_typed_ahead_come_back_as_they_were(pair: tuple[int, int]) -> None:
    master, slave = pair
    keys = bytes(range(256))
    os.write(master, keys)
    assert terminals.take_typed_ahead(master) == keys
    terminals.type_ahead(master, keys)
    assert os.read(slave, 1000) == keys
