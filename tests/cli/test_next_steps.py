"""Each test provokes an error and runs the commands of its `next:` step as printed: they succeed, nothing is lost."""

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.advice import commands_in, follow, make_programs, next_of, state
from tests.chaos import victims
from tests.cli.test_setup import as_nobody
from tests.homes import Home, open_home
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.tasks import pidfd

pytestmark = pytest.mark.privileged


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


@contextlib.contextmanager
def nothing_lost(home: Home, *given_up: str) -> Iterator[None]:
    """Check that captures, names and live sessions are kept, except the names and branches `given_up`."""
    before = state(home)
    yield
    after = state(home)
    assert before["captures"] <= after["captures"]
    assert before["names"] - set(given_up) <= after["names"]
    kept = {branch: one for branch, one in before["sessions"].items() if branch not in given_up}
    assert kept.items() <= after["sessions"].items()
    for branch in ("main", "other"):
        assert home.must("exec", "-b", branch, "--", "echo $here").stdout == "1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A command that fails, and how its advised commands are tested.

    wrong: the command that fails
    before: commands that are run first
    fill: values for the words in capitals in the advised commands
    gives_up: names and branches that the advised commands remove or replace
    again: `wrong` succeeds after the advised commands
    inside: the commands are run inside the session on `main`
    """

    wrong: str
    before: tuple[str, ...] = ()
    fill: Mapping[str, str | Callable[[Home], str]] = field(default_factory=dict)
    gives_up: tuple[str, ...] = ()
    again: bool = False
    inside: bool = False


def last_operation(home: Home) -> str:
    return str(home.must("op", "log", "-n", "1", "--json").json()[0]["number"])


ROWS = (
    Row(wrong="ps --nosuch"),
    Row(wrong="fork noted -n 0"),
    Row(wrong="restore nosuch"),
    Row(wrong="rm nosuch"),
    Row(wrong="branch delete nosuch"),
    Row(wrong="undo 99999"),
    Row(
        wrong="undo -b nosuch",
        before=("shell undone -d", "checkpoint to-undo -b undone"),
        fill={"N": last_operation},
        gives_up=("undone", "to-undo"),
    ),
    Row(wrong="rm removed", before=("shell removed -d",), gives_up=("removed",), again=True),
    Row(wrong="shell unequal -d --pids 200", before=("shell unequal -d",), gives_up=("unequal",), again=True),
    Row(wrong="show", inside=True),
    Row(wrong="gc", inside=True),
    Row(wrong="show other", inside=True),
    Row(
        wrong="shell nobodys -d --user root",
        before=("shell nobodys -d --user nobody --cwd /",),
        gives_up=("nobodys",),
    ),
    Row(
        wrong="checkpoint noted-2 -b noted",
        fill={"NEW": "from-noted"},
    ),
    Row(wrong="exec -b unborn -- true", again=True),
    Row(wrong="exec -b ended -- true", before=("shell ended -d", "exec -b ended -- true", "stop ended")),
    Row(
        wrong="stop done-with --discard",
        before=("shell done-with -d", "stop done-with"),
        gives_up=("done-with",),
    ),
    Row(
        wrong="undo -b one-of-1",
        before=("shell several -d", "fork several -n 2 --prefix one-of"),
        gives_up=("one-of-1", "one-of-2"),
    ),
    Row(wrong="shell forked-2 --from forked -d", before=("shell forked -d",)),
    Row(wrong="restore fresh", before=("shell fresh -d",), fill={"NAME": "of-fresh"}),
    Row(wrong="restore noted --new only-files --only files"),
    Row(wrong="setup --user nosuch-user"),
    Row(wrong="setup --group nosuch-group"),
)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.wrong, marks=[pytest.mark.soak(part="advice")] if number % 3 else [])
        for number, row in enumerate(ROWS)
    ],
)
def test_the_advised_commands_succeed_and_nothing_is_lost(stocked: Home, row: Row) -> None:
    for line in row.before:
        stocked.must(*line.split())
    within = ["run", "--", "waypoint"] if row.inside else []
    refused = stocked.cli(*within, *row.wrong.split())
    assert refused.code not in (0, 1)
    commands = commands_in(next_of(refused.stderr))
    assert commands, f"no command in: {refused.stderr}"
    with nothing_lost(stocked, *row.gives_up):
        for command in commands:
            for word, value in row.fill.items():
                by = value if isinstance(value, str) else value(stocked)
                command = re.sub(rf"\b{word}\b", by, command)
            done = stocked.cli("run", "--", "sh", "-c", command) if row.inside else follow(stocked, command)
            assert done.code == 0, f"{command}: {done.stdout}"
        if row.again:
            stocked.must(*row.wrong.split())


def test_a_user_without_access_gets_it_by_the_advised_command(stocked: Home) -> None:
    done = as_nobody(stocked, "ps")
    assert done.returncode == 3
    as_root, let_in = re.findall(r"sudo waypoint [^'),]+", next_of(done.stderr))
    assert follow(stocked, as_root.replace("COMMAND", "ps")).code == 0
    assert follow(stocked, let_in).code == 0
    assert as_nobody(stocked, "ps").returncode == 0
    stocked.must("daemon", "stop")
    done = as_nobody(stocked, "ps")
    assert follow(stocked, next_of(done.stderr).partition(" (")[0]).code == 0
    assert as_nobody(stocked, "ps").returncode == 0
    assert stocked.must("exec", "--", "echo $here").stdout == "1\n"


# --- faults


@pytest.mark.soak(part="advice")
@pytest.mark.parametrize(
    ("words", "shows"),
    [
        ("logs -f main", "here=1"),
        ("exec -i -b other -- echo on-$((40 + 2)); read x", "on-42"),
        ("run -b main -- sh -c 'echo on; exec sleep 1001'", "sleep 1001"),
    ],
)
def test_after_the_daemon_was_killed_the_advised_command_shows_the_state(stocked: Home, words: str, shows: str) -> None:
    options, _, text = words.partition(" -- ")
    argv = [*options.split(), *(["--", text] if text else [])]
    if words.startswith("run"):
        argv = [*options.split(), "--", "sh", "-c", "echo on; exec sleep 1001"]
    with (
        nothing_lost(stocked),
        subprocess.Popen(
            stocked.argv(*argv),
            env=stocked.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as command,
    ):
        assert command.stdout is not None
        assert os.read(command.stdout.fileno(), 1)
        (daemon,) = victims.pids(stocked, "daemon")
        ended = pidfd.open(daemon)
        os.kill(daemon, signal.SIGKILL)
        assert pidfd.wait_ended(ended, PATIENCE_S)
        os.close(ended)
        said = command.communicate(timeout=PATIENCE_S)[1].decode()
        assert command.returncode not in (0, 1), said
        (advised,) = commands_in(next_of(said))
        assert shows in follow(stocked, advised).stdout


@pytest.mark.soak(part="advice")
def test_if_the_daemon_cannot_start_the_advised_command_shows_its_log(stocked: Home) -> None:
    stocked.must("daemon", "stop")
    lock = stocked.runtime / "supervisor.lock"
    wait_until(lambda: not victims.pids(stocked, "supervisor"), "the supervisor has ended")
    lock.unlink()
    lock.mkdir()
    try:
        done = stocked.cli("ps")
        assert done.code == 125
        (advised,) = commands_in(next_of(done.stderr))
        assert "cannot start: [Errno 21] Is a directory" in follow(stocked, advised).stdout
    finally:
        lock.rmdir()


@pytest.mark.soak(part="advice")
def test_a_session_whose_processes_cannot_be_kept_is_replaced_by_the_advised_command(stocked: Home) -> None:
    nested = "unshare -Ur sh -c 'echo > /srv/on; exec sleep 1004' & until [ -s /srv/on ]; do :; done"
    stocked.must("shell", "nested", "-d", "--allow", "userns")
    stocked.must("exec", "-b", "nested", "--", nested)
    refused = stocked.cli("restore", "noted", "-b", "nested")
    assert refused.code == 5
    with nothing_lost(stocked, "nested"):
        assert follow(stocked, commands_in(next_of(refused.stderr))[-1]).code == 0
    stocked.must("stop", "--files", "nested")


def test_a_damaged_record_is_replaced_from_a_copy_of_names_db(stocked: Home) -> None:
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
    assert capture in refused.stderr
    assert stocked.must("exec", "--", "echo $here").stdout == "1\n"  # everything else works
    stocked.must("ps", "--all")
    (stop,) = commands_in(next_of(refused.stderr))
    assert follow(stocked, stop).code == 0
    for log in stocked.path.glob("names.db-*"):
        log.unlink()
    shutil.copy(copy, database)
    assert stocked.must("show", "noted", "--json").json()["capture"] == capture
    assert stocked.must("exec", "--", "echo $here").stdout == "1\n"


@pytest.mark.parametrize("repair", ["correct", "remove"])
def test_a_broken_config_json_can_be_corrected_or_replaced_by_setup(stocked: Home, repair: str) -> None:
    config = stocked.path / "config.json"
    with nothing_lost(stocked):
        whole = config.read_bytes()
        stocked.must("daemon", "stop")
        config.write_text("{")
        try:
            for words in (("ps",), ("setup",)):
                done = stocked.cli(*words)
                assert done.code == 125
                assert str(config) in done.stderr
            if repair == "remove":
                config.unlink()
                stocked.must("setup")
                kept, made = json.loads(whole), json.loads(config.read_bytes())
                assert (made["home_id"], made["format"]) == (kept["home_id"], kept["format"])
        finally:
            config.write_bytes(whole)


@pytest.mark.soak(part="advice")
def test_setup_removes_a_home_after_foreign_mounts_and_files_were_removed() -> None:
    with open_home("removed") as home:
        mounted, own = home.path / "mounted", home.path / "own"
        mounted.mkdir()
        own.touch()
        home.must("shell", "main", "-d")
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mounted)], check=True)
        done = home.cli("setup", "--remove", "--yes")
        assert done.code == 4
        assert str(mounted) in done.stderr
        home.must("exec", "-b", "main", "--", "true")
        subprocess.run(["umount", str(mounted)], check=True)
        mounted.rmdir()
        assert home.cli("setup", "--remove", "--yes").code == 4
        assert own.is_file()
        own.unlink()
        home.must("setup", "--remove", "--yes")
        assert not home.path.exists()


def test_a_command_in_a_removed_directory_is_refused(stocked: Home, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    argv = ["sh", "-c", script, "sh", str(gone), *stocked.argv("shell", "elsewhere", "-d")]
    done = subprocess.run(argv, env=stocked.env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "this directory: it was removed" in done.stderr
