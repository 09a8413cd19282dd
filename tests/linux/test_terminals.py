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
