"""Each test causes an error about a session or capture and follows the advice in its message. The advice must solve the
problem, and nothing may be lost.
"""

import contextlib
import json
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pexpect
import pytest

from tests.acceptance.small_base import make_base
from tests.advice import follow, make_programs, next_of, state
from tests.homes import Home
from tests.waiting import PATIENCE_S, wait_until
from waypoint.client import Client, Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

DETACH = "\x1dd"
LOCK = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", autouse=True)
def programs(home: Home) -> None:
    make_programs(home)


@pytest.fixture
def main(home: Home, client: Client) -> Iterator[Session]:
    """A live session on branch `main` whose variable `kept` is `late`, and was `early` in its checkpoint `early`. After
    the test, all earlier captures, names and sessions must still exist.
    """
    main = client.start("main")
    main.exec("kept=early")
    main.checkpoint("early", tier="live", force=True)
    main.exec("kept=late")
    before = state(home)
    yield main
    after = state(home)
    assert before["captures"] <= after["captures"]
    assert before["names"] <= after["names"]
    assert before["sessions"].items() <= after["sessions"].items()


@contextlib.contextmanager
def on_terminal(home: Home, command: str) -> Iterator["pexpect.spawn[str]"]:
    """Run a shell command on a terminal; at the end of the block, detach it from the session."""
    env = {**home.env, "PATH": f"{home.path.parent}/bin:{home.env['PATH']}"}
    terminal = pexpect.spawn("sh", ["-c", command], env=env, encoding="utf-8", timeout=PATIENCE_S)
    terminal.delaybeforesend = None
    try:
        yield terminal
        terminal.send(DETACH)
        terminal.expect(pexpect.EOF)
    finally:
        terminal.close(force=True)


@pytest.mark.parametrize(("typed", "shown"), [("echo be''gun; sleep 1000", "begun"), ("if true; then", "> ")])
def test_the_advice_brings_a_busy_shell_to_its_prompt(home: Home, main: Session, typed: str, shown: str) -> None:
    with on_terminal(home, "waypoint attach main") as terminal:
        terminal.send(f"{typed}\r")
        terminal.expect_exact(shown)
    refused = home.cli("restore", "early", "--only", "shell")
    assert refused.code == 4
    printed = next_of(refused.stderr)
    assert printed.startswith("wait until the shell is at its prompt: ")
    with on_terminal(home, printed.partition(": ")[2]) as terminal:
        terminal.expect_exact(shown)
        terminal.send("\x03")
        terminal.expect("[#$] ")
    home.must("restore", "early", "--only", "shell")
    assert main.exec("echo $kept").output == b"early\n"


@pytest.mark.soak(part="advice")
def test_an_interrupted_restore_of_the_shell_can_be_undone(home: Home, main: Session) -> None:
    main.exec("large=$(head -c 10M /dev/zero | tr '\\0' x)")
    main.checkpoint("large", tier="live")
    main.exec("unset large")
    with on_terminal(home, "waypoint attach main") as terminal, ThreadPoolExecutor(1) as threads:
        restoring = threads.submit(home.cli, "restore", "large", "--only", "shell")
        terminal.expect_exact("waypoint restore large --only shell")
        terminal.send("\x03")
        refused = restoring.result()
    assert refused.code == 125
    printed = next_of(refused.stderr)
    assert printed == "'waypoint undo -b main' restores the state from before"
    assert main.exec("echo $kept").output == b"late\n"
    assert follow(home, "waypoint undo -b main").code == 0
    assert main.exec("echo $kept $large").output == b"late\n"
    home.must("rm", "large")


@pytest.mark.parametrize("kind", ["base", "bind"])
def test_a_restore_without_its_base_or_bind_fails_until_the_folder_is_back(
    home: Home, client: Client, tmp_path: Path, kind: str
) -> None:
    folder, away = tmp_path / "folder", tmp_path / "away"
    folder.mkdir()
    make_base(folder)
    given = {"base": ["--base", str(folder)], "bind": ["--bind", f"{folder}:/mnt"]}[kind]
    home.must("shell", kind, "-d", "--user", "root", *given)
    session = client.session(kind)
    session.exec("kept=early")
    session.checkpoint(f"{kind}-early", tier="live")
    session.exec("kept=late")
    folder.rename(away)
    refused = home.cli("restore", f"{kind}-early")
    assert refused.code == 125
    assert str(folder) in refused.stderr
    assert next_of(refused.stderr).startswith("restore this on the machine; to restore only the files: ")
    away.rename(folder)
    assert session.exec("echo $kept").output == b"late\n"
    home.must("restore", f"{kind}-early")
    assert session.exec("echo $kept").output == b"early\n"
    session.stop(discard=True)


def test_an_ambiguous_id_needs_more_digits(home: Home, main: Session) -> None:
    capture = home.must("show", "early", "--json").json()["capture"]
    twin = capture[:6] + "".join(f"{15 - int(digit, 16):x}" for digit in capture[6:])
    with contextlib.closing(sqlite3.connect(home.path / "names.db")) as db, db:
        (record,) = db.execute("SELECT record FROM captures WHERE id = ?", (capture,)).fetchone()
        columns = [row[1] for row in db.execute("PRAGMA table_info(captures)")]
        values = [{"id": "?1", "record": "?2"}.get(name, name) for name in columns]
        made = json.dumps({**json.loads(record), "id": twin}).encode()
        query = f"INSERT INTO captures SELECT {', '.join(values)} FROM captures WHERE id = ?3"
        db.execute(query, (twin, made, capture))
    try:
        refused = home.cli("show", capture[:6])
        assert (refused.code, next_of(refused.stderr)) == (2, "give more digits")
        assert home.must("show", capture[:7], "--json").json()["capture"] == capture
    finally:
        with contextlib.closing(sqlite3.connect(home.path / "names.db")) as db, db:
            db.execute("DELETE FROM captures WHERE id = ?", (twin,))


@pytest.mark.soak(part="advice")
def test_the_advice_finds_the_program_that_locked_the_records(home: Home, main: Session) -> None:
    command = [sys.executable, "-c", LOCK, str(home.path / "names.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        refused = home.cli("checkpoint", "locked")
        assert refused.code == 125
        printed = next_of(refused.stderr)
        found = re.fullmatch(
            r"end the program that uses it \('(fuser .*)' lists it beside the daemon, (\d+)\)", printed
        )
        assert found
        listed = subprocess.run(found[1].split(), capture_output=True, text=True, check=True).stdout.split()
        (pid,) = set(listed) - {found[2]}
        assert int(pid) == other.pid
        other.kill()
    home.must("checkpoint", "locked")
    home.must("rm", "locked")
    assert main.exec("echo $kept").output == b"late\n"


@pytest.mark.soak(part="advice")
def test_too_many_clients_are_refused_until_some_leave(home: Home, main: Session) -> None:
    with contextlib.ExitStack() as attached:
        for _ in range(600):
            one = attached.enter_context(socket.socket(socket.AF_UNIX))
            one.connect(str(home.runtime / "api.sock"))
            with contextlib.suppress(BrokenPipeError):  # the daemon has refused it already
                one.send(b"GET /v1/events?follow=true HTTP/1.1\r\nHost: x\r\n\r\n")
            if b" 503 " in one.recv(100):
                break
        refused = home.cli("ps")
        assert (refused.code, next_of(refused.stderr)) == (4, "end some clients, such as attached terminals")
    wait_until(lambda: home.cli("ps").code == 0, "the daemon has noticed that clients left")
    assert main.exec("echo $kept").output == b"late\n"
