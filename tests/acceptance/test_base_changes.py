"""The machine's files change under captured processes, as an upgrade changes them. What is in the store comes back with
the files that its processes had. The machine's stay what they are, and no change of the session's is told.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside
from tests.homes import Home, open_home
from waypoint.upper.copy_pool import GONE

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

LIBRARY = "libc.so.6"
SAID = "changed since"


class Tool:
    """A program of the machine's, with a library of its own. It repeats words: who has it running can ask it."""

    def __init__(self, folder: Path) -> None:
        self.program, self.library = folder / "tool", folder / "lib" / LIBRARY
        self.library.parent.mkdir()
        shutil.copy("/bin/bash", self.program)
        linked = subprocess.run(["ldd", "/bin/bash"], capture_output=True, text=True, check=True).stdout
        shutil.copy(next(line.split()[2] for line in linked.splitlines() if LIBRARY in line), self.library)
        self.before = digest(self.program)

    def start(self, home: Home, branch: str) -> None:
        repeat = 'exec 3<>/srv/asked 4>>/srv/held; while read -r -u 3 word; do echo "$word" >> /srv/said; done'
        run = f"LD_LIBRARY_PATH={self.library.parent} {self.program} -c '{repeat}'"
        begun = "echo begun > /srv/asked; until grep -qsx begun /srv/said; do sleep 0.02; done"
        inside(home, branch, f"mkfifo /srv/asked; {run} & tool=$!; {begun}")

    def upgrade(self) -> None:
        """As a package manager does it: another file gets the name."""
        for path in (self.program, self.library):
            new = path.with_name("new")
            new.write_bytes(path.read_bytes() + bytes(5000))
            new.chmod(0o755)
            os.replace(new, path)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return Tool(tmp_path)


def check_seen(home: Home, tool: Tool, tmp_path: Path, after: str) -> None:
    """Whoever looks at the files of a capture sees what its image has, as whoever restores it does. `after`: the digest
    of the program that the machine has.
    """
    assert copied(home, "kept", tool) == tool.before
    (tmp_path / "seen").mkdir()
    home.must("mount", "kept", str(tmp_path / "seen"))
    try:
        assert digest(Path(f"{tmp_path}/seen{tool.library}")) != digest(tool.library)
    finally:
        subprocess.run(["umount", tmp_path / "seen"], check=True)
    assert copied(home, "hot", tool) == after  # of it the image has none: they had changed before it was made


def copied(home: Home, name: str, tool: Tool) -> str:
    """The digest of the program, as `name` shows it."""
    place = home.path.parent / "copied"
    home.must("cp", f"{name}:{tool.program}", str(place))
    return digest(place)


def check_goes_on(home: Home, branch: str, tool: Tool, word: str) -> None:
    """The very process answers, and is the program that it was."""
    answered = f"echo {word} > /srv/asked; until grep -qx {word} /srv/said; do sleep 0.02; done"
    done = home.must("exec", "-b", branch, "--", f"{answered}; sha256sum < /proc/$tool/exe; cat /srv/said").stdout
    assert done.split()[0] == tool.before
    assert done.split()[2] == "begun"


def test_processes_have_the_files_that_they_had(tool: Tool, tmp_path: Path) -> None:
    with open_home("upgraded") as home:
        home.must("shell", "-d", "main")
        tool.start(home, "main")
        assert home.must("checkpoint", "kept", "--wait", "--json").json()["degraded"] == []
        home.must("checkpoint", "hot")
        tool.upgrade()
        after = digest(tool.program)

        done = home.cli("restore", "hot")
        assert (done.code, "has changed" in done.stderr, str(tmp_path) in done.stderr) == (5, True, True), done
        check_goes_on(home, "main", tool, "stays")
        check_seen(home, tool, tmp_path, after)
        (said,) = home.must("restore", "kept", "--json").json()["degraded"]
        assert said.startswith("2 files of the machine, ")
        assert SAID in said
        assert str(tool.program) in said
        check_goes_on(home, "main", tool, "back")
        assert (digest(tool.program), tool.before != after) == (after, True)
        assert str(tmp_path) not in home.must("diff", "main", "--stat").stdout
        assert str(tmp_path) not in home.must("apply", "main", "--dry-run").stdout

        # What is attached afterwards takes none of it away: before that is in the store, and then.
        (tmp_path / "trace").write_text("later")
        home.must("layer", "attach", "kept", f"trace={tmp_path / 'trace'}")
        for word in ("attached", "put"):
            assert SAID in home.must("restore", "kept", "--json").json()["degraded"][0]
            check_goes_on(home, "main", tool, word)
            home.must("export", "kept", str(tmp_path / word))  # which puts it

        # What is captured of that session has them, also without the store, and after a new change.
        tool.program.unlink()
        home.must("checkpoint", "again")
        home.must("fork", "again", "copy")
        check_goes_on(home, "copy", tool, "copied")
        shown = subprocess.run(home.argv("cat", f"again:{tool.program}"), env=home.env, capture_output=True, check=True)
        assert hashlib.sha256(shown.stdout).hexdigest() == tool.before
        home.must("checkpoint", "again", "--force", "-b", "copy", "--wait")
        home.must("evict", "--all")
        (said,) = home.must("restore", "kept", "-b", "main", "--json").json()["degraded"]
        assert said.startswith("2 files of the machine")
        home.must("restore", "again", "-b", "copy")
        check_goes_on(home, "copy", tool, "recalled")
        assert home.must("verify", "--read-data", "--json").json()["problems"] == []

        # A new shell has the machine's.
        home.must("stop", "copy")
        home.must("shell", "-d", "copy")
        assert home.cli("exec", "-b", "copy", "--", f"test -e {tool.program}").code == 1
        check_elsewhere(home, tool, tmp_path)


def check_elsewhere(home: Home, tool: Tool, tmp_path: Path) -> None:
    """Another home, whose pool is on the machine's own file system, gets all of it as a file."""
    home.must("export", "kept", str(tmp_path / "kept"))
    with open_home("elsewhere") as other:
        other.must("daemon", "stop")
        (other.path / "pool.img").unlink(missing_ok=True)
        (other.path / "pool" / GONE).mkdir(parents=True)
        other.must("import", str(tmp_path / "kept"))
        said = other.must("restore", "kept", "--new", "there", "--json").json()["degraded"]
        assert any(SAID in one for one in said)
        assert any(one.startswith("/srv/held has another inode number: ") for one in said)
        check_goes_on(other, "there", tool, "moved")
        other.must("checkpoint", "given", "-b", "there")
        assert [copied(other, name, tool) for name in ("kept", "given")] == [tool.before, tool.before]
        assert other.must("cat", "kept:/srv/said").stdout.startswith("begun\n")
        inside(other, "there", "echo changed > /srv/said")
        other.must("restore", "kept", "-b", "there", "--only", "files")
        assert inside(other, "there", "cat /srv/said").startswith("begun\n")
        check_another_processor(other)
        assert not tool.program.exists()


def check_another_processor(home: Home) -> None:
    """Processes of one are refused before anything is made, and all else comes back."""
    home.must("daemon", "stop")
    with contextlib.closing(sqlite3.connect(home.path / "names.db")) as db, db:
        for ident, record in db.execute("SELECT id, record FROM captures").fetchall():
            capture = json.loads(record)
            capture["machine"] = {**capture["machine"], "boot_id": "another", "cpu_features": ["avx9"]}
            db.execute("UPDATE captures SET record = ? WHERE id = ?", (json.dumps(capture).encode(), ident))
    done = home.cli("restore", "kept", "--new", "refused")
    assert done.code == 5, done
    assert "they may be using what this processor" in done.stderr
    assert "lacks: avx9" in done.stderr
    assert "--tier files" in done.stderr
    home.must("restore", "kept", "--new", "lower", "--tier", "files")
    assert inside(home, "lower", "cat /srv/said").startswith("begun\n")
