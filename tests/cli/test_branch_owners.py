"""A fully trusted user who works on a branch of another user must name that user with --user.

tests/session/test_other_users.py tests users who are not trusted.
"""

import os
import re
import shlex
from collections.abc import Iterator

import pexpect
import pytest

from tests.cli.test_setup import as_nobody
from tests.homes import Home, open_home
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.privileged
NOBODY = 65534


@pytest.fixture(scope="module")
def shared() -> Iterator[Home]:
    """A home whose fully trusted user is nobody."""
    with open_home("shared") as home:
        home.must("setup", "--user", "nobody", "--trust", "full")
        yield home


def spawn_as_nobody(home: Home, *args: str) -> "pexpect.spawn[str]":
    """Run a command as the user nobody on a terminal."""
    command, *words = home.argv(*args)

    def become_nobody() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    return pexpect.spawn(
        command, words, env=home.env, cwd="/", timeout=PATIENCE_S, preexec_fn=become_nobody, encoding="utf-8"
    )


def user_of(home: Home, branch: str) -> str:
    return home.must("run", "-b", branch, "--", "id", "-un").stdout.strip()


@pytest.mark.parametrize("state", ["live", "ended", "from"])
def test_a_branch_of_root_is_continued_only_with_user_root(shared: Home, state: str) -> None:
    branch = f"root-{state}"
    shared.must("shell", branch, "-d")
    if state != "live":
        shared.must("stop", "--files", branch)
    words = ["shell", "-d", f"new-{state}", "--from", branch] if state == "from" else ["shell", "-d", branch]
    refused = as_nobody(shared, *words)
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "it belongs to root, and you are nobody" in refused.stderr
    found = re.search(r"to continue as root: waypoint (shell .*)", refused.stderr)
    assert found
    assert as_nobody(shared, *shlex.split(found[1]), "-d").returncode == 0
    assert user_of(shared, words[2]) == "root"
    shared.must("stop", words[2], "--discard")


def test_shell_of_another_user_does_not_attach_to_roots_session(shared: Home) -> None:
    shared.must("shell", "main", "-d")
    terminal = spawn_as_nobody(shared, "shell", "main")
    terminal.expect("it belongs to root, and you are nobody")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 4
    shared.must("stop", "main", "--discard")


def test_commands_in_roots_session_need_user_root(shared: Home) -> None:
    shared.must("shell", "theirs", "-d")
    for verb, code in (("exec", 125), ("run", 125)):
        refused = as_nobody(shared, verb, "-b", "theirs", "--", "id", "-un")
        assert (refused.returncode, refused.stdout) == (code, "")
        assert "it belongs to root, and you are nobody" in refused.stderr
        found = re.search(r"to continue as root: waypoint (.*)", refused.stderr)
        assert found
        allowed = as_nobody(shared, *shlex.split(found[1]), "--", "id", "-un")
        assert (allowed.returncode, allowed.stdout) == (0, "root\n")
        wrong = as_nobody(shared, verb, "-b", "theirs", "--user", "nobody", "--", "id")
        assert (wrong.returncode, "its running session belongs to root" in wrong.stderr) == (code, True)
    shared.must("stop", "theirs", "--discard")


def test_attaching_to_roots_session_needs_user_root(shared: Home) -> None:
    shared.must("shell", "shown", "-d")
    terminal = spawn_as_nobody(shared, "attach", "shown")
    terminal.expect("it belongs to root, and you are nobody")
    terminal.expect("waypoint attach shown --user root")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 4
    terminal = spawn_as_nobody(shared, "attach", "shown", "--user", "root")
    terminal.expect_exact("[shown (a session of the user root): everything here is a copy of this machine.")
    terminal.close(force=True)
    shared.must("stop", "shown", "--discard")


def test_the_users_own_branch_is_continued_without_user(shared: Home) -> None:
    for _ in range(2):
        assert as_nobody(shared, "shell", "-d", "own").returncode == 0
    assert user_of(shared, "own") == "nobody"
    shared.must("stop", "--files", "own")
    assert as_nobody(shared, "shell", "-d", "own").returncode == 0
    [found] = [one for one in shared.must("ps", "--json").json() if one["branch"] == "own"]
    assert found["user"] == "nobody"
    shared.must("stop", "--files", "own")
    assert shared.must("show", "own", "--json").json()["user"] == "nobody"
    shared.must("shell", "-d", "own")  # the session belongs to root
    assert user_of(shared, "own") == "nobody"
    shared.must("stop", "own", "--discard")


def test_shell_with_another_user_than_that_of_the_live_session_is_refused(shared: Home) -> None:
    shared.must("shell", "-d", "fixed")
    refused = shared.cli("shell", "-d", "fixed", "--user", "nobody")
    assert refused.code == 4
    assert "its running session belongs to root, not to nobody" in refused.stderr
    shared.must("stop", "fixed", "--discard")


def test_under_sudo_the_owner_is_the_caller_of_sudo(shared: Home) -> None:
    sudo = {"SUDO_UID": str(NOBODY), "SUDO_USER": "nobody"}
    shared.must("shell", "-d", "roots")
    assert shared.cli("shell", "-d", "roots", env=sudo).code == 4
    assert shared.must("shell", "-d", "roots", "--user", "root", env=sudo).stdout == "roots\n"
    shared.must("stop", "roots", "--discard")


@pytest.mark.soak(part="setup")
def test_setup_reports_the_user_who_loses_access(shared: Home) -> None:
    shared.must("setup", "--group", "games")
    done = shared.must("setup", "--user", "games", "--group", "users")
    assert "user nobody and group games may no longer use the home, from the daemon's next start on" in done.stderr
    done = shared.must("setup", "--user", "nobody", "--trust", "full")
    assert "user games may no longer use the home" in done.stderr
    assert "no longer" not in shared.must("setup", "--user", "nobody", "--trust", "full", "--group", "users").stderr


def test_a_default_branch_never_leads_root_into_another_users_session(shared: Home) -> None:
    assert as_nobody(shared, "shell", "-d").returncode == 0
    for words, code in ((["shell", "-d"], 4), (["exec", "--", "id"], 125), (["run", "--", "id"], 125)):
        refused = shared.cli(*words)
        assert (refused.code, "it belongs to nobody, and you are root" in refused.stderr) == (code, True), words
    assert user_of(shared, "main") == "nobody"
    command, *words = shared.argv("attach", "main")
    terminal = pexpect.spawn(command, words, env=shared.env, cwd="/", timeout=PATIENCE_S, encoding="utf-8")
    terminal.expect_exact("[main (a session of the user nobody): everything here is a copy")
    terminal.close(force=True)
    shared.must("stop", "--files", "main")
    assert shared.cli("shell", "-d").code == 4
    shared.must("rm", "main")
