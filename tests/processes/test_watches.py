"""Finding the names of files that inotify instances watch, without a session."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.linux.calls.handles import OverlayHandle, parse_overlay
from waypoint.model.errors import CannotCapture
from waypoint.processes import watches
from waypoint.processes.watches import Watches

# Handles of two files on an overlay, from Linux 6.18.
LOWER = bytes.fromhex("00000000fb1d000100000000000000000000000000000000" + "0920ea009da42c93")
UPPER = bytes.fromhex("00000000fb210401140aeee369794d20bee62ae40a611f037d" + "1869e20a00000000000000")


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[int]:
    """An inotify instance of this process that watches three folders."""
    libc = ctypes.CDLL(None)
    inotify = libc.inotify_init1(os.O_CLOEXEC)
    for name in "abc":
        (tmp_path / name).mkdir()
        libc.inotify_add_watch(inotify, os.fsencode(tmp_path / name), 0x2)
    yield inotify
    os.close(inotify)


def test_a_handle_of_an_overlay_contains_the_layer_and_the_handle_there() -> None:
    assert parse_overlay(0xF8, LOWER) == OverlayHandle(
        is_upper=False, kind=1, real=bytes.fromhex("0920ea009da42c93"), origin=LOWER[3:32]
    )
    upper = parse_overlay(0xF8, UPPER)
    assert upper is not None
    assert (upper.is_upper, upper.kind, upper.real) == (True, 1, UPPER[24:36])


def test_other_handles_are_not_taken_for_those_of_an_overlay() -> None:
    others = [(1, LOWER), (0xF8, b""), (0xF8, LOWER[:20]), (0xF8, bytes(40)), (0xF8, b"\1" * 40)]
    assert [parse_overlay(kind, handle) for kind, handle in others] == [None] * len(others)


def test_too_many_watched_files_are_refused(watcher: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Watches(os.getpid(), []) as found:
        found.look([os.getpid()])
        assert found.number >= 3
        assert found.take_new() == {}  # files outside of overlays are left to CRIU
    monkeypatch.setattr(watches, "MOST_WATCHES", 2)
    with Watches(os.getpid(), []) as found, pytest.raises(CannotCapture, match=rf"fd {watcher}\) .*more than 2 files"):
        found.look([os.getpid()])


def test_a_list_longer_than_the_read_limit_is_refused(watcher: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_MOST_BYTES", 300)
    with Watches(os.getpid(), []) as found, pytest.raises(CannotCapture, match=rf"fd {watcher}\)"):
        found.look([os.getpid()])


def test_processes_that_have_ended_are_skipped() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    with Watches(os.getpid(), []) as found:
        found.look([child])
        found.check()
        assert found.number == 0


def test_too_many_inotify_instances_are_refused_even_if_they_watch_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "MOST_WATCHES", 20)
    inotify = ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC)
    copies = [os.dup(inotify) for _ in range(10)]
    try:
        with Watches(os.getpid(), []) as found:
            found.look([os.getpid()])
            assert 11 <= found.number <= 20
        copies += [os.dup(inotify) for _ in range(10)]
        with Watches(os.getpid(), []) as found, pytest.raises(CannotCapture, match=r"more than 20 files"):
            found.look([os.getpid()])
    finally:
        for fd in (inotify, *copies):
            os.close(fd)
