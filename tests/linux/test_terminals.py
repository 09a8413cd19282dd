"""Pseudo-terminals."""

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
    """A pseudo-terminal (master, slave) whose slave is in raw mode."""
    master, slave = open_pair()
    tty.setraw(slave)
    yield master, slave
    os.close(master)
    os.close(slave)


def test_waiting_ends_at_once_if_there_is_output(pair: tuple[int, int]) -> None:
    os.write(pair[1], b"here")
    assert terminals.wait_briefly(pair[0], 10)
    assert os.read(pair[0], 100) == b"here"


def test_waiting_ends_when_output_comes(pair: tuple[int, int]) -> None:
    writer = threading.Timer(0.05, os.write, (pair[1], b"late"))
    writer.start()
    assert terminals.wait_briefly(pair[0], 10)
    writer.join()


def test_waiting_ends_at_the_timeout(pair: tuple[int, int]) -> None:
    begin = time.monotonic()
    assert not terminals.wait_briefly(pair[0], 0.05)
    assert time.monotonic() - begin >= 0.05


def test_a_closed_terminal_is_reported_by_the_read_only() -> None:
    master, slave = open_pair()
    os.close(slave)
    assert not terminals.wait_briefly(master, 0)
    with pytest.raises(OSError, match="Input/output"):
        os.read(master, 1)
    os.close(master)


TYPED = (
    *(b"one\r", b"one\rtwo\rthe thi", b"unfinished", b"one\x04two", b"\x04", b"\x04\x04end"),
    *(b"a\x16\x15b\0c\r", b"gone\x15k\x7fept\r"),
)


@pytest.mark.privileged
def test_input_typed_ahead_is_taken_and_put_back_without_echo() -> None:
    for typed in TYPED:
        master, slave = open_pair()  # the slave is in line mode with echo
        os.set_blocking(slave, False)
        check_typed_ahead(master, slave, typed)
        os.close(master)
        os.close(slave)


def check_typed_ahead(master: int, slave: int, typed: bytes) -> None:
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
def test_raw_input_typed_ahead_is_put_back_unchanged(pair: tuple[int, int]) -> None:
    master, slave = pair
    keys = bytes(range(256))
    os.write(master, keys)
    assert terminals.take_typed_ahead(master) == keys
    terminals.type_ahead(master, keys)
    assert os.read(slave, 1000) == keys
