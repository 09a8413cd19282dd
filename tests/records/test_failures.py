"""Errors of names.db: damage is told apart from conditions of the machine, such as a full disk. All errors are real."""

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corner import corner as corner
from tests.upper.pool_homes import fill
from waypoint.model.errors import Failed, StoreDamaged
from waypoint.records.names import Names

needs_root = [pytest.mark.privileged, pytest.mark.requires("root")]
KIB = 1 << 10


def used(path: Path) -> Path:
    """Make a database, use it, and close it."""
    Names(path).close()
    return path


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


class TestOnASmallDisk:
    pytestmark = needs_root

    @pytest.fixture(params=[0, 4, 16])
    def full(self, corner: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
        """A database on a file system with a few KiB left: SQLite needs 32 to open it."""
        folder = corner / "full"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
        used(folder / "names.db")
        fill(folder / "fill")
        os.truncate(folder / "fill", (folder / "fill").stat().st_size - request.param * KIB)
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=True)

    def test_opening_on_a_full_disk_fails_and_changes_nothing(self, full: Path) -> None:
        before = content_of(full)
        with pytest.raises(Failed, match="No space left on device") as caught:
            Names(full / "names.db")
        assert caught.value.next_step == "free some disk space there; no data is lost"
        assert content_of(full)["names.db"] == before["names.db"]
        (full / "fill").unlink()
        Names(full / "names.db").close()

    def test_opening_on_a_read_only_file_system_fails(self, full: Path) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(full)], check=True)
        with pytest.raises(Failed, match="Read-only file system"):
            Names(full / "names.db")
        subprocess.run(["mount", "-o", "remount,rw", str(full)], check=True)

    def test_a_change_on_a_full_disk_is_rolled_back(self, full: Path) -> None:
        (full / "fill").unlink()
        names = Names(full / "names.db")
        fill(full / "fill")
        with pytest.raises(Failed, match="No space left on device"), names.change("test") as change:
            change.add_disposable("long" * 50_000)
        assert names.disposable() == set()
        (full / "fill").unlink()
        with names.change("test") as change:
            change.add_disposable("a" * 32)
        assert names.disposable() == {"a" * 32}
        names.close()


def test_a_path_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    (tmp_path / "names.db").mkdir()
    with pytest.raises(Failed, match="Is a directory"):
        Names(tmp_path / "names.db")


def test_a_lock_of_another_program_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, timeout=0.05))
    names = Names(tmp_path / "names.db")
    with contextlib.closing(connect(tmp_path / "names.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Failed, match="another program uses it") as caught, names.change("test"):
            pass
        assert f"fuser {tmp_path}/names.db" in caught.value.next_step
        other.execute("ROLLBACK")
    with names.change("test") as change:
        change.add_disposable("after")
    names.close()


@pytest.mark.parametrize("damage", [b"no database at all" * 500, b"SQLite format 3\0" + b"\xff" * 8192])
def test_the_next_step_after_damage_keeps_all_files(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "names.db").write_bytes(damage)
    (tmp_path / "names.db-wal").write_bytes(b"log")
    before = content_of(tmp_path)
    with pytest.raises(StoreDamaged) as caught:
        Names(tmp_path / "names.db")
    (tmp_path / "names.db-shm").unlink(missing_ok=True)
    assert content_of(tmp_path) == before
    command = caught.value.next_step.split("'")[1]
    subprocess.run(["sh", "-ec", command], check=True)
    Names(tmp_path / "names.db").close()
    assert content_of(tmp_path / "names-kept") == before


def test_damage_found_after_opening_is_reported(tmp_path: Path) -> None:
    path = used(tmp_path / "names.db")
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    names = Names(path)
    with pytest.raises(StoreDamaged, match="malformed"):
        names.refs()
    with pytest.raises(StoreDamaged, match="malformed"), names.change("test") as change:
        change.add_disposable("x")
    names.close()


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "names.db")) as db, db:
        db.execute("CREATE TABLE songs (title)")
    with pytest.raises(StoreDamaged, match="another program"):
        Names(tmp_path / "names.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "names.db")) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]


@pytest.mark.parametrize("left", ["missing", "empty"])
def test_a_log_without_its_database_is_kept(tmp_path: Path, left: str) -> None:
    log = tmp_path / "names.db-wal"
    log.write_bytes(b"all that was committed")
    if left == "empty":
        (tmp_path / "names.db").touch()
    with pytest.raises(StoreDamaged, match=r"its log names\.db-wal exists"):
        Names(tmp_path / "names.db")
    assert log.read_bytes() == b"all that was committed"
