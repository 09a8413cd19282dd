"""Find the next step in a message, and type its commands at a terminal as a user would."""

import json
import re
import shlex
from typing import Any

import pexpect

from tests.homes import Completed, Home

# A stand-in for sudo: runs the command as root, without the caller's variables.
SUDO = '#!/bin/sh\nunset WAYPOINT_HOME WAYPOINT_BRANCH\nexec "$@"\n'
_COMMAND = re.compile(r"'([^']+)'|`([^`]+)`|((?:sudo )?waypoint [^'`;,()]+)")


def make_programs(home: Home) -> None:
    """Put this checkout's `waypoint` and the stand-in for sudo into the folder that `follow` puts first on the PATH."""
    programs = home.path.parent / "bin"
    programs.mkdir()
    words = " ".join(map(shlex.quote, home.argv()))
    for name, text in (("waypoint", f'#!/bin/sh\nexec {words} "$@"\n'), ("sudo", SUDO)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)


def state(home: Home) -> dict[str, Any]:
    """Return what following advice must not destroy: captures, names, and live sessions by branch."""
    log = home.must("log", "--all", "--json").json()
    captures, names = {row["capture"] for row in log}, {name for row in log for name in row["names"]}
    sessions = {row["branch"]: row["id"] for row in home.must("ps", "--json").json()}
    return {"captures": captures, "names": names, "sessions": sessions}


def next_of(output: str) -> str:
    """Return the next step from the output of a command, which is text or JSON."""
    if output.startswith("{"):
        return str(json.loads(output)["error"]["next"])
    found = re.search(r"^  next: (.*)$", output, re.MULTILINE)
    assert found, output
    return found[1]


def commands_in(step: str) -> list[str]:
    """Return the commands quoted in a next step."""
    return [next(filter(None, groups)).strip() for groups in _COMMAND.findall(step)]


def follow(home: Home, command: str) -> Completed:
    """Type the command at a terminal. If it opens a shell, exit the shell; if it asks a question, answer yes."""
    env = {**home.env, "PATH": f"{home.path.parent}/bin:{home.env['PATH']}", "SHELL": "/bin/sh"}
    terminal = pexpect.spawn("sh", ["-c", command], env=env, encoding="utf-8", timeout=60, dimensions=(50, 200))
    said = ""
    while met := terminal.expect([pexpect.EOF, r"[#$] (?:\x1b\S*)?$", r"\[y/N\]: $"]):
        said += (terminal.before or "") + str(terminal.after)
        terminal.sendline(["", "exit 0", "y"][met])
    terminal.wait()
    return Completed(said + (terminal.before or ""), "", terminal.exitstatus or 0)
