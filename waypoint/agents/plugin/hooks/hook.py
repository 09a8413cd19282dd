"""The hook of coding agents: reads an event as JSON on stdin, and answers on stdout as Claude Code and Codex expect.

Usage: hook.py WAYPOINT, with the path of the waypoint command outside of sessions. It needs the standard library only.

Inside a session it makes points of the session. Outside, if $WAYPOINT_BRANCH names a branch, it starts the session of
this branch, makes its points, and sends the agent's shell commands into it. In a linked worktree of git, it uses a fork
of the branch instead, BRANCH-WORKTREE, which it makes. Without the variable it does nothing.

$WAYPOINT_POINTS: `prompts`: points before prompts only; `commands`: before each command, too; `off`: none. Otherwise
before prompts and before commands that can destroy something.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from typing import Any

INSIDE = "/.waypoint/asking/waypoint"
LABEL_BYTES = 400
LIMIT_S = 50
"""For all commands of one event, below the time limit of the agents (hooks.json)."""
BEGIN = time.monotonic()
DESTROYS = re.compile(
    r"\b(rm|rmdir|mv|dd|shred|truncate|unlink|mkfs[.\w]*|kill|pkill|killall|dropdb)\b"
    r"|\bgit\s+(-\S+\s+)*(reset|clean|checkout|restore|rebase|switch|stash|branch\s+-D|worktree\s+remove|push\s.*(-f|--force))"
    r"|\b(drop|truncate|delete\s+from|update\s+\S+\s+set|alter\s+table)\b"
    r"|\b(purge|remove|uninstall|prune|downgrade|migrate)\b|-delete\b|\bsed\s+(-\S+\s+)*-\S*i|(?<![0-9&>])>(?![>&])",
    re.IGNORECASE,
)


def main() -> int:
    event: dict[str, Any] = {}
    try:
        event = json.load(sys.stdin)
        return act(event)
    except Exception as error:  # any status but 2 lets an agent run its command on the machine
        if not os.environ.get("WAYPOINT_BRANCH"):
            raise
        said = f"waypoint: the hook failed: {error!r}\n"
        return report(said) if event.get("hook_event_name") not in (None, "PreToolUse") else refuse(said)


def act(event: dict[str, Any]) -> int:
    branch = os.environ.get("WAYPOINT_BRANCH")
    inside = os.path.exists(INSIDE)
    if not branch:
        return 0
    waypoint = [INSIDE] if inside else [sys.argv[1]]
    kind = event.get("hook_event_name")
    if not inside:
        branch, failed = own_branch(waypoint, branch, event.get("cwd") or "/")
        os.environ["WAYPOINT_BRANCH"] = branch
        if failed:
            return refuse(failed) if kind == "PreToolUse" else report(failed)
    if kind == "SessionStart":
        return 0 if inside else start(waypoint, branch)
    if kind == "UserPromptSubmit":
        return before_prompt(waypoint, event)
    if kind == "PreToolUse":
        return before_command(waypoint, event, None if inside else branch)
    return 0


def own_branch(waypoint: list[str], branch: str, folder: str) -> tuple[str, str]:
    """The branch for an agent in `folder`: in a linked worktree, a fork of `branch`; and why it cannot be made."""
    while not os.path.lexists(os.path.join(folder, ".git")) and folder != "/":
        folder = os.path.dirname(folder)
    try:
        with open(os.path.join(folder, ".git")) as file:  # of a linked worktree; else it is a folder
            if "/worktrees/" not in file.read(4096):
                return branch, ""
    except OSError:
        return branch, ""
    own = f"{branch}-{re.sub('[^A-Za-z0-9._-]', '-', os.path.basename(folder))}"
    _, absent = run([*waypoint, "log", own, "-n", "1", "--json"])
    if not absent:
        return own, ""
    _, failed = run([*waypoint, "shell", branch, "--detach"])
    return own, failed or run([*waypoint, "fork", branch, own])[1]


def start(waypoint: list[str], branch: str) -> int:
    _, failed = run([*waypoint, "shell", branch, "--detach"])
    if failed:
        return report(failed)
    context = (
        f"Your shell commands run in the Waypoint session of branch {branch}, on a copy of this machine's files. Files "
        f"that you write with other tools change the machine. 'waypoint apply {branch}' brings the session's changes "
        "to the machine."
    )
    return answer(hookSpecificOutput={"hookEventName": "SessionStart", "additionalContext": context})


def before_prompt(waypoint: list[str], event: dict[str, Any]) -> int:
    if os.environ.get("WAYPOINT_POINTS") == "off":
        return 0
    restored, failed = point(waypoint, event.get("prompt") or "", event.get("transcript_path"))
    if restored:
        return answer(
            decision="block",
            reason="Waypoint: this is the state before this prompt. Send the prompt again, or another one.",
        )
    return report(failed) if failed else 0


def before_command(waypoint: list[str], event: dict[str, Any], branch: str | None) -> int:
    given = event.get("tool_input") or {}
    command = given.get("command") or given.get("cmd")
    text = shlex.join(map(str, command)) if isinstance(command, list) else command
    if not isinstance(text, str):
        return 0
    when = os.environ.get("WAYPOINT_POINTS", "")
    if when == "commands" or (when not in ("off", "prompts") and DESTROYS.search(text)):
        restored, failed = point(waypoint, text, event.get("transcript_path"))
        if restored:
            said = "Waypoint: this is the state before this command. It was not run; ask before you run it again."
            return decide(permissionDecision="deny", permissionDecisionReason=said)
        if failed:
            sys.stderr.write(failed)
    if branch is None:
        return 0
    folder = ["--cwd", event["cwd"]] if event.get("cwd") else []
    within = [*waypoint, "exec", "--branch", branch, *folder, "--", text]
    changed = within if isinstance(command, list) else shlex.join(within)
    key = "command" if "command" in given else "cmd"
    return decide(permissionDecision="allow", updatedInput={**given, key: changed})


def point(waypoint: list[str], label: str, conversation: str | None) -> tuple[bool, str]:
    """Make a point. Returns whether this is a copy that was restored from it, and why it failed, or ""."""
    short = label.encode(errors="replace")[:LABEL_BYTES].decode(errors="ignore").replace("\0", " ")
    words = [*waypoint, "point", f"--label={short}"]
    if conversation and os.path.exists(conversation):
        words.append(f"--conversation={conversation}")
    printed, failed = run(words)
    return printed.startswith("restored "), failed


def run(words: list[str]) -> tuple[str, str]:
    """Run a command. Returns its output, and what it says if it fails, or ""."""
    left = max(1.0, BEGIN + LIMIT_S - time.monotonic())
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=left, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"waypoint: {error}\n"
    said = done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace"), (said or f"exit status {done.returncode}\n") if done.returncode else ""


def decide(**fields: object) -> int:
    return answer(hookSpecificOutput={"hookEventName": "PreToolUse", **fields})


def answer(**fields: object) -> int:
    print(json.dumps(fields))
    return 0


def refuse(failed: str) -> int:
    """Deny the command: after any other answer it would run on this machine."""
    said = f"Waypoint: the command was not run, because it would run on this machine. {failed.strip()}"
    return decide(permissionDecision="deny", permissionDecisionReason=said)


def report(said: str) -> int:
    """Let the agent show `said` to the user, and go on."""
    sys.stderr.write(said)
    return 1


if __name__ == "__main__":
    sys.exit(main())
