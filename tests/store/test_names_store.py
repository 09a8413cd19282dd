"""names.db: branches, captures and live rows, one transaction per step."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.model.errors import StateConflict, StoreDamaged, UnknownName
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, LiveRow, Setting, User
from waypoint.store.names import Names

USER = User(name="ann", uid=1000, gid=1000, groups=[1000], home="/home/ann", shell="/bin/bash")
SETTING = Setting(base="/", binds=[], net="private", user=USER, cwd="/", env={}, command=[])


def row_of(branch: str, parent: str | None = None) -> LiveRow:
    session = new_id()
    return LiveRow(branch=branch, session=session, tree=session, started=time.time(), parent=parent, setting=SETTING)


def capture_of(row: LiveRow, capture_id: str | None = None) -> Capture:
    return Capture(
        id=capture_id or new_id(),
        branch=row.branch,
        parent=row.parent,
        created=time.time(),
        tier="files",
        tree=row.tree,
        setting=row.setting,
        reason="exited",
        exit=0,
    )


@pytest.fixture
def names(tmp_path: Path) -> Iterator[Names]:
    store = Names(tmp_path / "names.db")
    yield store
    store.close()


def test_a_session_that_ends_becomes_the_tip_of_its_branch(names: Names) -> None:
    row = row_of("main")
    names.begin(row)
    assert names.live() == [row]
    capture = capture_of(row)
    names.end(row, capture)
    assert names.live() == []
    assert names.resolve("main") == capture
    assert names.resolve(capture.id[:8]) == capture


def test_a_branch_has_one_live_session(names: Names) -> None:
    names.begin(row_of("main"))
    with pytest.raises(StateConflict):
        names.begin(row_of("main"))
    assert len(names.live()) == 1


def test_a_branch_name_excludes_those_below_it(names: Names) -> None:
    names.begin(row_of("a"))
    with pytest.raises(StateConflict, match="the branch a exists"):
        names.begin(row_of("a/b"))
    assert [branch.name for branch in names.branches()] == ["a"]


def test_an_abandoned_first_session_takes_its_branch_with_it(names: Names) -> None:
    row = row_of("main")
    names.begin(row)
    names.abandon(row)
    assert names.branches() == []


def test_an_abandoned_later_session_leaves_the_tip(names: Names) -> None:
    first = row_of("main")
    names.begin(first)
    capture = capture_of(first)
    names.end(first, capture)
    second = row_of("main", parent=capture.id)
    names.begin(second)
    names.abandon(second)
    assert names.resolve("main") == capture


def test_a_prefix_that_two_captures_share_is_refused(names: Names) -> None:
    for number in range(2):
        row = row_of(f"b{number}")
        names.begin(row)
        names.end(row, capture_of(row, f"abcd{number}" + "0" * 27))
    with pytest.raises(UnknownName, match="more than one"):
        names.resolve("abcd")
    assert names.resolve("abcd1").branch == "b1"


@pytest.mark.parametrize("text", ["nothing", "abc", "ffff", "*", "a*", "'; DROP TABLE live; --"])
def test_an_unknown_name_is_said_to_be_unknown(names: Names, text: str) -> None:
    with pytest.raises(UnknownName):
        names.resolve(text)


def test_a_live_branch_without_a_capture_cannot_be_started_from(names: Names) -> None:
    names.begin(row_of("main"))
    with pytest.raises(UnknownName, match="nothing has been captured"):
        names.resolve("main")


def test_a_file_that_is_no_database_is_damage(tmp_path: Path) -> None:
    (tmp_path / "names.db").write_bytes(b"not a database, whatever it is" * 100)
    with pytest.raises(StoreDamaged):
        Names(tmp_path / "names.db")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "names.db") as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreDamaged, match="99"):
        Names(tmp_path / "names.db")


_WRITER = """
import sys
from pathlib import Path
from tests.store.test_names_store import capture_of, row_of
from waypoint.store.names import Names
names = Names(Path(sys.argv[1]))
number = 0
while True:
    row = row_of(f"b{number}")
    names.begin(row)
    print("begun", number, flush=True)
    names.end(row, capture_of(row))
    print("ended", number, flush=True)
    number += 1
"""


def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "names.db"
    argv = [sys.executable, "-c", _WRITER, str(path)]
    for _kill in range(3):
        path.unlink(missing_ok=True)
        with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as writer:
            assert writer.stdout is not None
            said = [writer.stdout.readline() for _line in range(31)]
            os.kill(writer.pid, signal.SIGKILL)
            said += writer.stdout.readlines()
        names = Names(path)
        known = {branch.name for branch in names.branches() if branch.tip}
        live = {row.branch for row in names.live()}
        ended = {f"b{line.split()[1].decode()}" for line in said if line.startswith(b"ended")}
        begun = {f"b{line.split()[1].decode()}" for line in said if line.startswith(b"begun")}
        names.close()
        assert ended <= known
        assert begun <= known | live
