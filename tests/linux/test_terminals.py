"""Pseudo-terminals, on the real kernel."""

import os
import threading
import time
import tty
from collections.abc import Iterator

import pytest

from waypoint.linux import terminals


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    """A master and its raw slave."""
    master, slave = terminals.open_pair()
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
    master, slave = terminals.open_pair()
    os.close(slave)
    assert not terminals.wait_briefly(master, 0)
    with pytest.raises(OSError, match="Input/output"):
        os.read(master, 1)
    os.close(master)
