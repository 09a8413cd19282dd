"""Saving the unread bytes of terminals in a file."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.terminals import open_pair
from waypoint.linux.tty import queues
from waypoint.model.paths import QUEUES_FILE, TYPED_AHEAD_FILE
from waypoint.processes import terminal_queues

pytestmark = pytest.mark.privileged  # TIOCSTI


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    master, slave = open_pair()
    os.set_blocking(slave, False)
    yield master, slave
    os.close(master)
    os.close(slave)


def test_no_file_is_made_for_empty_terminals(pair: tuple[int, int], tmp_path: Path) -> None:
    terminal_queues.take([os.getpid()], tmp_path)
    assert not terminal_queues.are_taken(tmp_path)


def test_bytes_are_put_back_from_the_file(pair: tuple[int, int], tmp_path: Path) -> None:
    master, slave = pair
    os.write(slave, b"output\n")
    os.write(master, b"keys\r")
    terminal_queues.take([os.getpid()], tmp_path)
    for fd in pair:
        with pytest.raises(BlockingIOError):
            os.read(fd, 1)
    terminal_queues.put_back([os.getpid()], tmp_path)
    assert os.read(slave, 100) == b"keys\n"
    assert os.read(master, 100) == b"output\r\nkeys\r\n"
    assert not terminal_queues.are_taken(tmp_path)


def test_bytes_that_cannot_be_saved_stay_in_the_terminal(pair: tuple[int, int], tmp_path: Path) -> None:
    master, slave = pair
    os.write(slave, b"output\n")
    os.write(master, b"keys\r")
    with pytest.raises(FileNotFoundError):
        terminal_queues.take([os.getpid()], tmp_path / "missing")
    assert os.read(slave, 100) == b"keys\n"
    assert os.read(master, 100) == b"output\r\nkeys\r\n"


def test_input_that_an_earlier_version_has_saved_is_put_back(
    pair: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "number_of", lambda _master: 0)  # the session's own terminal is /dev/pts/0 there
    (tmp_path / TYPED_AHEAD_FILE).write_bytes(b"one\ntwo\x04thr")
    terminal_queues.put_back([os.getpid()], tmp_path)
    os.write(pair[0], b"ee\r")
    assert [os.read(pair[1], 100) for _ in range(3)] == [b"one\n", b"two", b"three\n"]
    assert not terminal_queues.are_taken(tmp_path)


def test_a_damaged_file_is_reported_and_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / QUEUES_FILE).write_bytes(b"?")
    terminal_queues.put_back([os.getpid()], tmp_path)
    assert "unread bytes of terminals are lost" in caplog.text
    assert not terminal_queues.are_taken(tmp_path)
