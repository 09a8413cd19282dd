"""Programs that compare the file they have open with the one of its name go on where they are brought back from the
store, or it is said that they may not.
"""

import pytest

from tests.acceptance.sessions import inside
from tests.homes import open_home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "btrfs", "cgroup2", "criu")]

WRITER = """
import os, sqlite3, sys
base = sqlite3.connect("/srv/data.db", isolation_level=None)
base.execute("CREATE TABLE IF NOT EXISTS rows (number)")
other = open("/srv/other", "a") if len(sys.argv) > 1 else None
for line in sys.stdin:
    base.execute("INSERT INTO rows VALUES (1)")
    print(base.execute("SELECT count(*) FROM rows").fetchone()[0], flush=True)
"""
ASK = 'echo >&"${WRITER[1]}"; read -r said <&"${WRITER[0]}"; echo "$said"'
MANY = 5001
"""Files that are made before one is, so that its number is too far away to be had again."""


def test_a_database_that_is_open_is_written_to_after_it_comes_from_the_store() -> None:
    with open_home("inodes") as home:
        home.must("shell", "-d", "main")
        inside(home, "main", f"cat >/srv/writer.py <<'end'\n{WRITER}\nend")
        inside(home, "main", "ln /srv/writer.py /srv/again; coproc WRITER { exec python3 /srv/writer.py; }")
        assert inside(home, "main", ASK) == "1\n"
        inside(home, "main", "ln /srv/data.db /srv/also.db")
        number = inside(home, "main", "stat -c %i /srv/data.db")
        assert "degraded" not in home.must("checkpoint", "near", "--wait").stderr
        home.must("evict", "near")
        assert "degraded" not in home.must("fork", "near", "copy").stderr
        assert inside(home, "copy", "stat -c %i /srv/data.db /srv/also.db") == 2 * number
        assert inside(home, "copy", ASK) == "2\n"
        assert inside(home, "copy", ASK) == "3\n"
        home.must("stop", "copy", "--discard")
        inside(home, "main", f"mkdir /srv/many; (cd /srv/many; seq {MANY} | xargs touch); exec {{far}}>/srv/far")
        inside(home, "main", "rm -r /srv/many")
        home.must("checkpoint", "far", "--wait")
        home.must("evict", "far")
        said = "/srv/far has another inode number: a program may take that for a replaced file (SQLite does)"
        for branch in ("copy", "next"):  # and each time
            assert f"degraded: {said}" in home.must("fork", "far", branch).stderr
            assert inside(home, branch, ASK) == "2\n"
