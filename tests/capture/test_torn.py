"""What may be torn after the machine went down without notice."""

import errno
import json
import logging
import os
import threading
from pathlib import Path

import pytest

from waypoint.capture import torn as torn_module
from waypoint.capture.torn import NOTE, WRITTEN_OUT_S, Torn
from waypoint.linux.storage import filesystem
from waypoint.linux.tasks import procfs

NOW = 1_000_000.0
WRITTEN = {"last": NOW, "recent": NOW - WRITTEN_OUT_S + 1, "old": NOW - WRITTEN_OUT_S}


def opened(home: Path, written: dict[str, float] = WRITTEN) -> Torn:
    torn = Torn(home)
    torn.look(written)
    return torn


def suspected(torn: Torn) -> set[str]:
    return {ident for ident in WRITTEN if torn.may_be(ident)}


@pytest.fixture
def in_boot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home that a daemon had opened before the machine went down."""
    with monkeypatch.context() as before:
        before.setattr(procfs, "boot_id", lambda: "earlier")
        assert suspected(opened(tmp_path)) == set()
    return tmp_path


def test_nothing_is_torn_by_a_killed_daemon(tmp_path: Path) -> None:
    for _ in range(2):
        assert suspected(opened(tmp_path)) == set()


def test_what_was_written_last_may_be_torn(in_boot: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert suspected(opened(in_boot)) == {"last", "recent"}
    assert "2 captures may be torn" in caplog.text
    caplog.clear()
    assert suspected(opened(in_boot)) == {"last", "recent"}, "the next daemon knows it, too"
    assert not caplog.text


def test_a_clock_that_was_set_hides_nothing(in_boot: Path) -> None:
    """The last one was written when the clock was an hour ahead; it was taken a minute after the others."""
    written = {"last": NOW + 3600, "recent": NOW, "old": NOW - 1}
    taken = {
        "last": ("earlier", 1000.0),
        "recent": ("earlier", 940.0),
        "old": ("another", 999.0),
        "gone": ("earlier", 1.0),
    }
    (torn := Torn(in_boot)).look(written, taken=lambda: taken)
    assert suspected(torn) == {"last", "recent"}


def test_nothing_is_torn_where_the_daemon_had_stopped(
    monkeypatch: pytest.MonkeyPatch, in_boot: Path, tmp_path: Path
) -> None:
    with monkeypatch.context() as before:
        before.setattr(procfs, "boot_id", lambda: "earlier")
        torn, synced = opened(in_boot), list[str]()
        before.setattr(filesystem, "sync_filesystem", synced.append)
        torn.stop(lambda: WRITTEN)
        assert synced == [str(tmp_path)]
    assert suspected(opened(in_boot)) == set()
    assert json.loads((tmp_path / NOTE).read_text())["is_over"] is False, "of the daemon that runs now"


def test_what_may_not_be_on_the_disk_when_the_daemon_stops_may_be_torn(
    monkeypatch: pytest.MonkeyPatch, in_boot: Path
) -> None:
    def fail(_path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    is_done = threading.Event()
    monkeypatch.setattr(torn_module, "SYNC_S", 0.01)
    for sync in (fail, lambda _path: is_done.wait()):
        monkeypatch.setattr(filesystem, "sync_filesystem", sync)
        with monkeypatch.context() as before:
            before.setattr(procfs, "boot_id", lambda: "earlier")
            torn = opened(in_boot)
            torn.stop(lambda: WRITTEN)
            is_done.set()
        assert suspected(opened(in_boot)) == {"last", "recent"}


def test_what_was_brought_back_is_whole_for_every_later_daemon(in_boot: Path) -> None:
    torn = opened(in_boot)
    torn.mend("last")
    torn.mend("old")
    assert suspected(torn) == {"recent"}
    torn.stop(dict)
    assert suspected(opened(in_boot)) == {"recent"}
    assert suspected(opened(in_boot, {"last": NOW})) == set(), "the other was removed meanwhile"


def test_a_note_that_cannot_be_read_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / NOTE).write_text("{")
    assert suspected(opened(tmp_path)) == set()
    assert "cannot read machine.json" in caplog.text
