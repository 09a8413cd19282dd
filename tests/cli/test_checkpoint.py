"""`waypoint checkpoint` and `restore` as commands."""

import re
import subprocess

import pytest

from tests.answers import texts
from tests.cli.conftest import Spawn, exit_status
from tests.cli.test_shell import PROMPT
from tests.homes import Home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

KEYS = {"name", "capture", "image", "tier", "paused_ms", "total_ms", "durable", "degraded", "proof", "reused"}
# CRIU cannot dump a traced process: the kernel allows only one tracer.
TRACED = """
mkfifo /tmp/is-traced
python3 -c '
import ctypes, signal
ctypes.CDLL(None).ptrace(0, 0, 0, 0)
open("/tmp/is-traced", "w").write("yes")
signal.pause()
' &
cat /tmp/is-traced
"""


def value_of(home: Home, branch: str, word: str) -> str:
    return home.must("exec", "-b", branch, "--", f"echo ${word}").stdout.strip()


def test_checkpoint_prints_name_id_tier_and_frozen_time(home: Home, branch: str) -> None:
    done = home.must("checkpoint", f"{branch}-c", "-b", branch)
    found = re.fullmatch(rf"{branch}-c  ([0-9a-f]{{12}})  live  paused \d+ ms\n", done.stdout)
    assert found
    assert home.must("show", found[1], "--json").json()["names"] == sorted([branch, f"{branch}-c"])
    assert done.stderr == ""


def test_checkpoint_json_has_exactly_these_keys(home: Home, branch: str) -> None:
    found = home.must("checkpoint", f"{branch}-c", "-b", branch, "-m", "a message", "--json").json()
    assert set(found) == KEYS
    assert (found["name"], found["image"], found["tier"]) == (f"{branch}-c", None, "live")
    assert (found["durable"], found["degraded"]) == (False, [])
    assert 0 < found["paused_ms"] <= found["total_ms"]
    assert home.must("show", found["capture"], "--json").json()["message"] == "a message"


def test_the_branch_may_come_from_the_environment(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-c", env={"WAYPOINT_BRANCH": branch})
    home.must("restore", f"{branch}-c", env={"WAYPOINT_BRANCH": branch})


def test_checkpoint_reaches_the_requested_tier(home: Home, branch: str) -> None:
    for tier in ("files", "respawn"):
        found = home.must("checkpoint", f"{branch}-{tier}", "-b", branch, "--tier", tier, "--json").json()
        assert found["tier"] == tier


def test_what_a_checkpoint_cannot_keep_is_reported_on_stderr(home: Home, branch: str) -> None:
    assert home.must("exec", "-b", branch, "--", TRACED).stdout.endswith("yes")
    done = home.must("checkpoint", f"{branch}-c", "-b", branch)
    assert re.fullmatch(rf"{branch}-c  [0-9a-f]{{12}}  respawn  paused \d+ ms\n", done.stdout)
    assert done.stderr.startswith("degraded: without its processes: ")
    again = home.must("checkpoint", f"{branch}-j", "-b", branch, "--json")
    assert again.stderr == ""
    assert [f"degraded: {text}\n" for text in texts(again.json()["degraded"])] == [done.stderr]
    assert [(one["code"], one["subject"]) for one in again.json()["degraded"]] == [("no-processes", "criu-traced")]
    refused = home.cli("checkpoint", f"{branch}-l", "-b", branch, "--tier", "live")
    assert (refused.code, refused.stdout) == (5, "")
    assert home.cli("show", f"{branch}-l").code == 2


def test_a_taken_name_is_refused_and_moves_by_force(home: Home, branch: str) -> None:
    first = home.must("checkpoint", f"{branch}-c", "-b", branch, "--json").json()
    done = home.cli("checkpoint", f"{branch}-c", "-b", branch)
    assert (done.code, done.stdout) == (4, "")
    assert "--force" in done.stderr
    second = home.must("checkpoint", f"{branch}-c", "-b", branch, "--force", "--anew", "--json").json()
    assert second["capture"] != first["capture"]
    assert home.must("show", f"{branch}-c", "--json").json()["capture"] == second["capture"]
    assert home.cli("checkpoint", branch, "-b", branch, "--force").code == 4  # --force does not move branches


def test_a_checkpoint_of_a_missing_or_stopped_branch_is_refused(home: Home, branch: str) -> None:
    assert home.cli("checkpoint", "x", "-b", "nosuch").code == 2
    home.must("stop", "--files", branch)
    done = home.cli("checkpoint", f"{branch}-c", "-b", branch)
    assert (done.code, done.stdout) == (4, "")
    assert "next:" in done.stderr


def test_shell_continues_a_session_stopped_by_checkpoint_park(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "cd /usr/lib; mine=42")
    home.must("checkpoint", f"{branch}-c", "-b", branch, "--park")
    [found] = [one for one in home.must("branch", "--json").json() if one["name"] == branch]
    assert (found["live"], found["tier"]) == (False, "live")
    home.must("shell", branch, "-d")
    assert home.must("exec", "-b", branch, "--", "echo $mine $PWD").stdout == "42 /usr/lib\n"


def test_a_stop_with_a_checkpoint_keeps_the_processes(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "mine=42")
    done = home.must("stop", branch, "--checkpoint", f"{branch}-c")
    assert re.fullmatch(rf"{branch}  kept as [0-9a-f]{{12}}  live\n", done.stdout)
    assert home.must("show", f"{branch}-c", "--json").json()["tier"] == "live"
    home.must("shell", branch, "-d")
    assert value_of(home, branch, "mine") == "42"


def test_a_stop_with_a_checkpoint_takes_one_session_and_no_discard(home: Home, branch: str) -> None:
    for args in ([branch, "other"], ["--all"], [branch, "--discard"]):
        assert home.cli("stop", *args, "--checkpoint", f"{branch}-c").code == 2
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    assert home.cli("stop", branch, "--checkpoint", f"{branch}-c").code == 4
    assert value_of(home, branch, "WAYPOINT_BRANCH") == branch


# --- restore


def test_restore_without_b_uses_the_branch_of_the_checkpoint(home: Home, branch: str) -> None:
    home.must("shell", "main", "-d")
    home.must("exec", "--", "mine=main")
    home.must("exec", "-b", branch, "--", "mine=before")
    taken = home.must("checkpoint", f"{branch}-c", "-b", branch, "--json").json()["capture"]
    home.must("exec", "-b", branch, "--", "mine=after")
    for name in (f"{branch}-c", taken[:8]):
        assert home.must("restore", name).stdout == f"{branch}\n"
        assert (value_of(home, branch, "mine"), value_of(home, "main", "mine")) == ("before", "main")
    home.must("fork", f"{branch}-c", f"{branch}-f")
    assert home.must("restore", f"{branch}-f").stdout == f"{branch}-f\n"  # NAME is a branch: restore on it
    home.must("stop", "main", f"{branch}-f", "--discard")


def test_restore_prints_the_command_that_restores_the_replaced_session(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "mine=before")
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    home.must("exec", "-b", branch, "--", "mine=after")
    told = home.must("restore", f"{branch}-c").stderr
    found = re.fullmatch(
        rf"replaced: the session on {branch}, kept as ([0-9a-f]{{12}}), tier live; to get it back: waypoint (.*)\n",
        told,
    )
    assert found
    assert home.must("show", found[1], "--json").json()["reason"] == "replaced"
    home.must(*found[2].split())
    assert value_of(home, branch, "mine") == "after"
    home.must("stop", "--files", branch)
    tip = home.must("show", branch, "--json").json()["capture"]
    ended = home.must("restore", f"{branch}-c", "--json").json()
    assert (ended["branch"], ended["replaced"]) == (branch, {"capture": tip, "tier": "files"})


def test_restore_with_json_prints_the_session(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    found = home.must("restore", f"{branch}-c", "-b", branch, "--json").json()
    assert (found["branch"], found["state"]) == (branch, "live")
    assert found["pid"] > 0


def test_restore_starts_a_branch_that_is_not_live(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "mine=42")
    capture = home.must("checkpoint", f"{branch}-c", "-b", branch, "--json").json()["capture"]
    home.must("stop", "--files", branch)
    home.must("restore", capture[:6], "-b", branch)
    assert value_of(home, branch, "mine") == "42"


def test_an_attached_terminal_stays_attached(home: Home, branch: str, on_terminal: Spawn) -> None:
    terminal = on_terminal("attach", branch)
    terminal.expect(PROMPT)
    terminal.send(b"mine=before\r")
    terminal.expect(PROMPT)
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    terminal.send(b"mine=after\r")
    terminal.expect(PROMPT)
    home.must("restore", f"{branch}-c", "-b", branch)
    terminal.send(b"echo $mine$((1+1))\r")
    terminal.expect(b"before2\r\n")
    terminal.send(b"exit 7\r")
    assert exit_status(terminal) == 7


def test_restore_on_a_new_branch_leaves_the_old_one(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "mine=before")
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    home.must("exec", "-b", branch, "--", "mine=after")
    assert home.must("restore", f"{branch}-c", "--new", f"{branch}-n").stdout == f"{branch}-n\n"
    assert value_of(home, f"{branch}-n", "mine") == "before"
    assert value_of(home, branch, "mine") == "after"
    found = home.must("restore", f"{branch}-c", "--new", f"{branch}-m", "--json").json()
    assert (found["branch"], found["state"]) == (f"{branch}-m", "live")


def test_restore_json_has_the_same_keys_in_place_and_on_a_new_branch(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    in_place = home.must("restore", f"{branch}-c", "-b", branch, "--json").json()
    beside = home.must("restore", f"{branch}-c", "--new", f"{branch}-n", "--json").json()
    assert list(in_place) == list(beside)
    assert [name for name in in_place if (in_place[name] is None) != (beside[name] is None)] == ["replaced"]
    measured = home.must("ps", "--json").json()
    for found in (in_place, beside):
        assert (found["degraded"], found["upper_bytes"], found["memory_bytes"]) == ([], None, None)
    assert all(one["upper_bytes"] is not None for one in measured)  # `ps` does measure the sizes
    home.must("stop", f"{branch}-n", "--discard")


def test_an_existing_new_branch_is_refused(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    done = home.cli("restore", f"{branch}-c", "--new", branch)
    assert (done.code, done.stdout) == (4, "")
    assert home.cli("restore", f"{branch}-c", "--new", f"{branch}-c").code == 4


@pytest.mark.parametrize(
    "args",
    [
        ["nosuch"],
        ["bad name"],
        [],
        ["nosuch", "--new", "bad name"],
        ["nosuch", "--only", "nothing"],
        ["nosuch", "--new", "new", "-b", "main"],
        ["nosuch", "--new", "new", "--only", "files"],
    ],
)
def test_restore_of_an_unknown_name_exits_with_2(home: Home, args: list[str]) -> None:
    done = home.cli("restore", *args)
    assert (done.code, done.stdout) == (2, "")


def test_a_closed_pipe_ends_checkpoint_silently(home: Home, branch: str) -> None:
    words = home.argv("checkpoint", f"{branch}-c", "-b", branch)
    done = subprocess.run(
        ["/bin/bash", "-c", '"$@" | :; echo ${PIPESTATUS[0]}', "-", *words],
        env=home.env,
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    assert done.stdout in (b"141\n", b"0\n")  # depends on which process ends first


# --- finding


def test_a_checkpoint_without_a_name_gets_the_branch_and_the_next_number(home: Home, branch: str) -> None:
    assert home.must("checkpoint", "-b", branch).stdout.startswith(f"{branch}-1  ")
    home.must("checkpoint", f"{branch}-7", "-b", branch)
    assert home.must("checkpoint", "-b", branch, "--json").json()["name"] == f"{branch}-8"
    said = home.must("exec", "-b", branch, "--", "waypoint checkpoint -m inside").stdout
    assert said.startswith(f"checkpointed {branch}-9  ")


def test_list_shows_the_checkpoints_of_a_branch_and_ps_all_the_last_capture(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-a", "-b", branch, "-m", "the first")
    home.must("exec", "-b", branch, "--", "echo x >/srv/x")
    home.must("checkpoint", f"{branch}-b", "-b", branch, "-m", "the second")
    found = home.must("list", branch, "--json").json()
    assert [(one["name"], one["message"], one["tier"]) for one in found] == [
        (f"{branch}-b", "the second", "live"),
        (f"{branch}-a", "the first", "live"),
    ]
    lines = home.must("list").stdout.splitlines()
    assert lines[0].split() == ["CHECKPOINT", "BRANCH", "AGE", "TIER", "PROCESSES", "CHANGES", "MESSAGE"]
    assert any(line.startswith(f"{branch}-b ") and line.endswith("the second") for line in lines)
    assert home.cli("list", "nosuch").code == 2
    home.must("checkpoint", f"{branch}-c", "-b", branch, "-m", "the end", "--park")
    (row,) = [one for one in home.must("ps", "--all", "--json").json() if one["branch"] == branch]
    assert (row["message"], row["state"]) == ("the end", "parked")
    assert any(line.endswith("the end") for line in home.must("ps", "--all").stdout.splitlines())


def test_a_clash_of_names_says_whose_the_name_is(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    home.must("fork", f"{branch}-c", f"{branch}-f")
    refused = home.cli("checkpoint", f"{branch}-c", "-b", f"{branch}-f")
    assert (refused.code, f"a checkpoint of this name, of branch {branch}\n" in refused.stderr) == (4, True)
    own = f"{branch}-f/{branch}-c"
    assert f"choose another name, such as {own}, or" in refused.stderr
    made = home.must("checkpoint", own, "-b", f"{branch}-f", "--json").json()["capture"]
    home.must("exec", "-b", f"{branch}-f", "--", "touch /later")
    home.must("restore", f"{branch}-c", "-b", f"{branch}-f")
    assert home.cli("exec", "-b", f"{branch}-f", "--", "test -e /later").code == 1
    shown = home.must("exec", "-b", f"{branch}-f", "--", f"waypoint show {branch}-c --json").json()
    assert (shown["capture"], shown["names"]) == (made, [f"{branch}-f", own])
    assert home.must("fork", own, "-n", "1").stdout == f"{branch}-f-{branch}-c-1\n"
    home.must("stop", f"{branch}-f-{branch}-c-1", "--discard")
    home.must("stop", f"{branch}-f", "--discard")
