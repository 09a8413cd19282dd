"""A sqlite database under load: the session and each copy continue from the same rows, and none loses a row."""

import pytest

from tests.acceptance.restoring import Way, in_process, in_shell, new_name, restore_as, started
from tests.answers import unusual
from tests.homes import Home
from waypoint.client import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

MORE = 100
"""The least number of rows written before the capture, and by the session and each copy after it."""

WRITER = """
import os, sqlite3
db = sqlite3.connect("/srv/app.db", isolation_level=None)
assert db.execute("PRAGMA journal_mode=WAL").fetchall() == [("wal",)]
db.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY AUTOINCREMENT, word TEXT)")
count = 0
while True:
    word = open("/srv/word").read().strip()
    db.execute("BEGIN IMMEDIATE")
    db.executemany("INSERT INTO rows (word) VALUES (?)", [(word,)] * 10)
    db.execute("COMMIT")
    count += 10
    assert db.execute("SELECT max(number), count(*) FROM rows").fetchone() == (count, count)
    with open("/srv/new", "w") as file:
        file.write(f"{count} {word}\\n")
    os.rename("/srv/new", "/srv/written")
"""
SQLITE_ROWS = """
import sqlite3
db = sqlite3.connect("/srv/app.db")
assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
for number, word in db.execute("SELECT number, word FROM rows ORDER BY number"):
    print(number, word)
"""
# Keeps a transaction open until the file /srv/commit exists.
SQLITE_OPEN = """
import os, sqlite3, time
db = sqlite3.connect("/srv/app.db", isolation_level=None)
assert db.execute("PRAGMA journal_mode=WAL").fetchall() == [("wal",)]
db.execute("CREATE TABLE rows (word TEXT)")
db.execute("BEGIN IMMEDIATE")
db.execute("INSERT INTO rows VALUES ('open')")
open("/srv/begun", "w").close()
while not os.path.exists("/srv/commit"):
    time.sleep(0.02)
db.execute("COMMIT")
"""
SQLITE_OTHER = """
import sqlite3
db = sqlite3.connect("/srv/app.db", isolation_level=None, timeout=0)
try:
    db.execute("INSERT INTO rows VALUES ('other')")
except sqlite3.OperationalError as error:
    print(error)
else:
    print("written")
"""


def wait_written(session: Session, word: str, number: int) -> None:
    """Wait until the writer has written `number` rows and the last row has `word`. Fails if the writer has ended."""
    in_process(
        session,
        f"until read -r n word </srv/written && [ $n -ge {number} ] && [ $word = {word} ]; do"
        " pgrep -F /srv/writer.pid >/dev/null || { cat /srv/errors; exit 1; }; sleep 0.02; done 2>/dev/null",
    )


def words_of(rows: list[str]) -> list[str]:
    """Check that the numbers of the rows have no gap, and return the words."""
    assert [row.split()[0] for row in rows] == [str(number + 1) for number in range(len(rows))]
    return [row.split()[1] for row in rows]


def rows_of(session: Session) -> list[str]:
    """End the writer, and return all rows of the database."""
    in_shell(session, "kill %1; wait %1 || true")
    found = session.run("python3", "-", stdin=SQLITE_ROWS.encode())
    assert found.exit == 0, found
    return found.stdout.decode().splitlines()


def test_a_database_under_load_loses_no_row_in_any_copy(home: Home) -> None:
    with started(home, "root") as session:
        in_shell(session, "echo parent >/srv/word")
        session.run("sh", "-c", "cat >/srv/writer", stdin=WRITER.encode())
        session.exec("python3 /srv/writer >/srv/errors 2>&1 & echo $! >/srv/writer.pid")
        wait_written(session, "parent", MORE)
        checkpoint = new_name(session)
        taken = session.checkpoint(checkpoint, tier="live")
        assert unusual(taken.degraded) == []
        first, second = (restore_as(home, session, checkpoint, "fork") for _ in range(2))
        branches = {"parent": session, "first": first, "second": second}
        for word, branch in branches.items():
            in_shell(branch, f"echo {word} >/srv/word.new; mv /srv/word.new /srv/word")
        for word, branch in branches.items():
            before = int(in_process(branch, "cat /srv/written").split()[0])
            wait_written(branch, word, before + MORE)
        rows = {word: rows_of(branch) for word, branch in branches.items()}
        for word in branches:
            words = words_of(rows[word])
            assert set(words) == {"parent", word}
            assert words == sorted(words, key="parent".__ne__), "a row of the parent follows a row of the copy"
            assert words.count(word) >= MORE
        session = restore_as(home, session, checkpoint, "restore")
        wait_written(session, "parent", int(in_process(session, "cat /srv/written").split()[0]) + MORE)
        assert set(words_of(rows_of(session))) == {"parent"}


@pytest.mark.parametrize("way", ["fork", "restore"])
def test_an_open_transaction_keeps_its_lock_in_a_copy(home: Home, way: Way) -> None:
    """sqlite locks a file that it also maps into memory; CRIU alone does not restore such locks."""
    with started(home, "root") as session:
        session.run("sh", "-c", "cat >/srv/writer", stdin=SQLITE_OPEN.encode())
        session.exec("python3 /srv/writer >/srv/errors 2>&1 &")
        in_process(session, "until [ -e /srv/begun ]; do sleep 0.02; done")
        checkpoint = new_name(session)
        taken = session.checkpoint(checkpoint, tier="live")
        assert unusual(taken.degraded) == []
        copy = restore_as(home, session, checkpoint, way)
        assert copy.run("python3", "-", stdin=SQLITE_OTHER.encode()).stdout == b"database is locked\n"
        in_shell(copy, "touch /srv/commit; wait %1")
        assert copy.run("python3", "-", stdin=SQLITE_OTHER.encode()).stdout == b"written\n"
        words = "import sqlite3; print(sqlite3.connect('/srv/app.db').execute('SELECT * FROM rows').fetchall())"
        assert copy.run("python3", "-c", words).stdout == b"[('open',), ('other',)]\n"
