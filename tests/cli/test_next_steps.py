"""What a message advises is done as it is printed, in a situation that really gives the message: it helps, and nothing
is worse afterwards.
"""

import json
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.cli.next_rows import ROWS, Row, beside
from tests.cli.test_setup import as_nobody
from tests.homes import Completed, Home, open_home
from waypoint.client import Client
from waypoint.client.link import ask
from waypoint.model.errors import WaypointError

pytestmark = pytest.mark.privileged

# As sudo does: the command runs as root, without variables of the caller's.
SUDO = '#!/bin/sh\nunset WAYPOINT_HOME WAYPOINT_BRANCH\nexec "$@"\n'
COMMAND = re.compile(r"'([^']+)'|`([^`]+)`|((?:sudo )?waypoint [^'`;,()]+)")


@pytest.fixture(scope="module")
def stocked() -> Iterator[Home]:
    """A home with the live branches `main` and `other` and the checkpoint `noted`."""
    with open_home("advice") as home:
        make_programs(home)
        for branch in ("main", "other"):
            home.must("shell", branch, "-d")
            home.must("exec", "-b", branch, "--", "here=1")
        home.must("checkpoint", "noted")
        yield home


def make_programs(home: Home) -> None:
    """Make the programs that `follow` finds first: this checkout's `waypoint`, and a `sudo`."""
    programs = home.path.parent / "bin"
    programs.mkdir()
    words = " ".join(map(shlex.quote, home.argv()))
    for name, text in (("waypoint", f'#!/bin/sh\nexec {words} "$@"\n'), ("sudo", SUDO)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)


def state(home: Home) -> dict[str, Any]:
    """What no advice may cost: captures, names, and the shells of live sessions with their variables."""
    client = Client(home.path)  # not the command: this is asked twice for each step
    log = client.history.log(all=True)
    captures, names = {row.capture for row in log}, {name for row in log for name in row.names}
    return {"captures": captures, "names": names, "sessions": {row.branch: row.id for row in client.sessions()}}


def check_shells(home: Home) -> None:
    """Those of `main` and `other` have their variable."""
    for branch in ("main", "other"):
        assert Client(home.path).session(branch).exec("echo $here").output == b"1\n"


def next_of(output: str) -> str:
    """The step in what a command printed: in its message, or in its answer in JSON."""
    if output.startswith("{"):
        return str(json.loads(output)["error"]["next"])
    found = re.search(r"^  next: (.*)$", output, re.MULTILINE)
    assert found, output
    return found[1]


def is_of(printed: str, advice: str) -> bool:
    return re.search(".+".join(map(re.escape, advice.split("{}"))), printed) is not None


def commands_in(printed: str, home: Home, row: Row) -> list[str]:
    """The commands of a printed step, with what a reader fills in. The part before `, or` is another way to go on."""
    text = printed.rpartition(", or ")[2] if row.advice.startswith(", or ") else printed
    found = [next(filter(None, groups)).strip() for groups in COMMAND.findall(text)]
    return fill(home, row, found)


def fill(home: Home, row: Row, texts: Iterable[str]) -> list[str]:
    """The texts with what a reader fills in."""
    found = list(texts)
    for word, filled in row.fill.items():
        if any(word in text for text in found):
            by = filled if isinstance(filled, str) else filled(home)
            found = [re.sub(rf"\b{word}\b", by, text) for text in found]
    return found


def follow(home: Home, command: str) -> Completed:
    """Type the command at a terminal. A shell that it opens is left with `exit`, a question is answered with yes."""
    env = {**home.env, "PATH": f"{home.path.parent}/bin:{home.env['PATH']}", "SHELL": "/bin/sh"}
    terminal = pexpect.spawn("sh", ["-c", command], env=env, encoding="utf-8", timeout=60, dimensions=(50, 200))
    said = ""
    while met := terminal.expect([pexpect.EOF, r"[#$] (?:\x1b\S*)?$", r"\[y/N\]: $"]):
        said += (terminal.before or "") + str(terminal.after)
        terminal.sendline(["", "exit 0", "y"][met])
    terminal.wait()
    return Completed(said + (terminal.before or ""), "", terminal.exitstatus or 0)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.advice)
def test_a_step_that_is_followed_helps_and_costs_nothing(stocked: Home, row: Row) -> None:
    for words in row.before:
        stocked.must(*fill(stocked, row, words))
    within = ["run", "--", "waypoint"] if row.inside else []
    refused = stocked.cli(*within, *fill(stocked, row, row.meet))
    assert refused.code not in (0, 1)
    printed = next_of(refused.stdout or refused.stderr)
    assert is_of(printed, row.advice), printed
    before = state(stocked)
    try:
        commands = [row.follow] if row.follow else commands_in(printed, stocked, row)
        assert commands, f"nothing to do in: {printed}"
        for command in commands:
            done = stocked.cli("run", "--", "sh", "-c", command) if row.inside else follow(stocked, command)
            assert done.code == 0, f"{command}: {done.stdout}"
        if row.again:
            stocked.must(*row.meet)
    finally:
        if Path(beside(stocked)).exists():
            stocked.must("--home", beside(stocked), "setup", "--remove", "--yes")
    after = state(stocked)
    assert before["captures"] <= after["captures"]
    assert before["names"] - set(row.gives_up) <= after["names"]
    assert before["sessions"].items() - after["sessions"].items() <= {
        (branch, before["sessions"].get(branch)) for branch in row.gives_up
    }
    check_shells(stocked)


# --- situations of their own


@pytest.mark.requires("public-checkout")
def test_who_is_not_let_in_is_let_in_by_what_is_advised(stocked: Home) -> None:
    done = as_nobody(stocked, "ps")
    assert done.returncode == 3
    printed = next_of(done.stderr)
    let_in = "or be let in, in place of the user before (for several: --group, with a group of theirs): sudo {}"
    assert is_of(printed, "be root ('sudo {} COMMAND'); " + let_in)
    as_root, let_in = re.findall(r"sudo waypoint [^'),]+", printed)
    assert follow(stocked, as_root.replace("COMMAND", "ps")).code == 0
    assert follow(stocked, let_in).code == 0
    assert as_nobody(stocked, "ps").returncode == 0
    stocked.must("daemon", "stop")
    done = as_nobody(stocked, "ps")
    printed = next_of(done.stderr)
    assert is_of(printed, "sudo {} (any command of root's starts it)")
    assert follow(stocked, printed.partition(" (")[0]).code == 0
    assert as_nobody(stocked, "ps").returncode == 0
    assert stocked.must("exec", "--", "echo $here").stdout == "1\n"


def test_a_damaged_record_is_mended_with_a_copy_and_costs_nothing_else(stocked: Home) -> None:
    database, copy = stocked.path / "names.db", stocked.path.parent / "copy.db"
    capture = stocked.must("show", "noted", "--json").json()["capture"]
    stocked.must("daemon", "stop")
    with sqlite3.connect(database) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(database, copy)
        db.execute("UPDATE captures SET record = x'7b' WHERE id = ?", (capture,))
    db.close()
    refused = stocked.cli("show", "noted")
    assert refused.code == 10
    assert f"cannot read capture {capture} of the home {stocked.path}: its record is damaged" in refused.stderr
    printed = next_of(refused.stderr)
    assert is_of(
        printed, "put a copy of {} back in its place after '{}'; until then only what needs this record does not work"
    )
    assert stocked.must("exec", "--", "echo $here").stdout == "1\n"  # all else works
    stocked.must("ps", "--all")
    command = re.search("'(waypoint [^']+)'", printed)
    assert command
    assert follow(stocked, command[1]).code == 0
    for log in stocked.path.glob("names.db-*"):
        log.unlink()
    shutil.copy(copy, database)
    assert stocked.must("show", "noted", "--json").json()["capture"] == capture
    assert stocked.must("exec", "--", "echo $here").stdout == "1\n"


def test_a_daemon_that_does_not_run_starts_with_the_next_command(stocked: Home) -> None:
    stocked.must("daemon", "stop")
    done = stocked.cli("daemon", "status")
    assert done.code == 4
    assert next_of(done.stderr) == "none is needed: it starts with the next command that needs it"
    assert stocked.must("exec", "-b", "main", "--", "echo $here").stdout == "1\n"
    stocked.must("daemon", "status")


@pytest.mark.parametrize("follow", ["mend", "remove"])
def test_a_broken_config_json_is_mended_or_made_anew_and_nothing_is_lost(stocked: Home, follow: str) -> None:
    config, before = stocked.path / "config.json", state(stocked)
    whole = config.read_bytes()
    stocked.must("daemon", "stop")
    config.write_text("{")
    try:
        for words in (("ps",), ("setup",)):
            done = stocked.cli(*words)
            assert done.code == 125
            assert str(config) in done.stderr
            assert "mend it, or remove it and run" in next_of(done.stderr)
        if follow == "remove":
            config.unlink()
            stocked.must("setup")
            kept = json.loads(whole)
            made = json.loads(config.read_bytes())
            assert (made["home_id"], made["format"]) == (kept["home_id"], kept["format"])
    finally:
        config.write_bytes(whole)
    assert state(stocked) == before
    assert stocked.must("exec", "-b", "main", "--", "echo $here").stdout == "1\n"


def test_a_home_that_cannot_be_removed_is_when_what_is_in_the_way_has_gone() -> None:
    with open_home("removed") as home:
        mounted, own = home.path / "mounted", home.path / "own"
        mounted.mkdir()
        own.touch()
        home.must("shell", "main", "-d")
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mounted)], check=True)
        done = home.cli("setup", "--remove", "--yes")
        assert (done.code, next_of(done.stderr)) == (4, "umount it first")
        assert str(mounted) in done.stderr
        home.must("exec", "-b", "main", "--", "true")
        subprocess.run(["umount", str(mounted)], check=True)
        mounted.rmdir()
        done = home.cli("setup", "--remove", "--yes")
        assert (done.code, next_of(done.stderr)) == (4, "remove or move it, and run this again")
        assert own.is_file()
        own.unlink()
        home.must("setup", "--remove", "--yes")
        assert not home.path.exists()


def test_in_a_folder_that_was_removed_one_is_told_to_go_elsewhere(stocked: Home, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    argv = ["sh", "-c", script, "sh", str(gone), *stocked.argv("shell", "elsewhere", "-d")]
    done = subprocess.run(argv, env=stocked.env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "this folder: it was removed" in done.stderr
    assert next_of(done.stderr) == "go to another one (cd /)"
    subprocess.run(stocked.argv("shell", "elsewhere", "-d"), env=stocked.env, cwd="/", check=True)
    stocked.must("stop", "elsewhere", "--discard")


def test_what_a_request_must_be_like_is_described_where_is_said(stocked: Home) -> None:
    with pytest.raises(WaypointError) as refused:
        ask(str(stocked.path), "POST", "/v1/forks", {"name": "noted", "count": 0})
    assert refused.value.next_step == "GET /v1/openapi.json describes every request"
    described = ask(str(stocked.path), "GET", "/v1/openapi.json")
    assert "/v1/forks" in described["paths"]


def test_a_job_that_is_unknown_is_looked_for_and_started_again(stocked: Home) -> None:
    home = str(stocked.path)
    with pytest.raises(WaypointError) as refused:
        ask(home, "GET", "/v1/jobs/0123456789abcdef")
    assert refused.value.next_step == "'GET /v1/jobs' lists what there is; start the job again"
    job = ask(home, "POST", "/v1/jobs", {"kind": "gc"})["job"]["id"]
    assert job in [row["id"] for row in ask(home, "GET", "/v1/jobs")["jobs"]]
