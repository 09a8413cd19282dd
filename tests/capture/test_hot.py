"""The log of a failed CRIU is kept, even from another file system. A log that cannot be kept is no error."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.capture.layers.hot import Hot

pytestmark = pytest.mark.privileged


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A small separate file system; on most machines the runtime folder has its own, too."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_log_on_another_file_system_is_kept(tmp_path: Path, elsewhere: Path) -> None:
    log = elsewhere / "restore.log"
    log.write_text("Error (x.c:1): no\n")
    kept = Hot(tmp_path).keep_log(log, "1-restore.log", 1234)
    assert kept is not None
    assert (kept.read_text(), log.exists()) == ("Error (x.c:1): no\n", False)
    assert Hot(tmp_path).read_log("1-restore.log") == (1234, "Error (x.c:1): no\n")
    (tmp_path / "secret.log").touch()
    assert [Hot(tmp_path).read_log(name) for name in ("2-restore.log", "../secret.log", "", "a\0b")] == [None] * 4


def test_a_log_without_disk_space_for_it_is_skipped(tmp_path: Path, elsewhere: Path) -> None:
    log, hot = tmp_path / "dump.log", Hot(elsewhere)
    log.write_bytes(bytes(100_000))
    assert hot.keep_log(log, "1-dump.log", 0) is None
    assert hot.keep_log(tmp_path / "none", "1-dump.log", 0) is None


def test_the_end_of_a_long_log_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    log.write_text("a line of the detailed log\n" * 100_000 + "Error (x.c:1): no\n")
    kept = Hot(tmp_path).keep_log(log, "1-dump.log", 0)
    assert kept is not None
    assert kept.stat().st_size <= 1 << 20
    lines = set(kept.read_text().splitlines())
    assert lines == {"a line of the detailed log", "Error (x.c:1): no"}
