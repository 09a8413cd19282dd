"""`waypoint setup`."""

import json
import os
import subprocess
import sys
from typing import Any

import waypoint
from waypoint.cli.output import EXIT_INTERRUPTED, agrees, note
from waypoint.client.sdk import Client
from waypoint.model.errors import Failed, HostLacks, UsageProblem, from_json
from waypoint.model.paths import may_exist, spelled
from waypoint.model.verbs import Given

# The program that sets up this machine. It reports on stdout in lines of JSON.
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(waypoint.__file__)), "setup", "work_program.py")


def run(given: Given) -> int:
    client = Client(given.text("home"))
    check, remove = given.flag("check"), given.flag("remove")
    if check and remove:
        raise UsageProblem("use", "--check", "it cannot be combined with --remove", "leave out one of them")
    if check:
        _check(client)
    elif remove:
        return _remove(client, yes=given.flag("yes"))
    else:
        _install(client, {f"--{name}": given.text(name) for name in ("user", "group", "trust")})
    return 0


def _install(client: Client, options: dict[str, str | None]) -> None:
    """Install, then make sure that a daemon with the new settings runs. A user who is not root, but may use the home,
    gets completion only.
    """
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    if os.geteuid() != 0 and not given and client.running() is not None:
        share = _own_share()
        carry_out("add-completion", client.home, "--share", share)
        note(f"you may use the home {client.home}; for completion in zsh: fpath+=({share}/zsh/site-functions)")
        return
    carry_out("install", client.home, *given)
    if given:
        client.stop_daemon()  # the next daemon reads who may use it
    status = client.status()
    note(f"the daemon is running (pid {status.pid}); sessions: {status.sessions}")
    if status.pool == "copy":
        said = "every checkpoint copies the changed files of its session, because this home was created without btrfs"
        doctor, remove = spelled(client.home, "doctor"), spelled(client.home, "setup", "--remove")
        note(f"{said}\n  next: see the row 'btrfs pool' of '{doctor}'; then start again: {remove}")


def _check(client: Client) -> None:
    """Report what has been set up. Raises HostLacks for the first thing that is missing. Only root can read a home, so
    for other users the daemon answers.
    """
    if os.geteuid() == 0:
        carry_out("check", client.home)
    status = client.running()
    if status is not None and status.problem:
        raise from_json(status.problem)
    if os.geteuid() == 0:
        return
    if status is None:
        on, sudo = f"the home {client.home}", spelled(client.home, "setup")
        if not may_exist(client.home):
            raise HostLacks("use", on, "it has not been set up", f"sudo {sudo}")
        said = "its daemon is not running, and only root can read the home itself"
        raise HostLacks("check", on, said, f"sudo {sudo} --check")
    note(f"the home {client.home} exists; you may use it; its daemon is running (pid {status.pid})")
    rows = client.doctor()
    for row in rows:
        if row.state == "missing" and row.required_for in ("session", "live"):
            raise HostLacks("use", row.name, row.why, row.remedy)
    for row in rows:
        if row.name == "CRIU":
            note(f"CRIU: {row.why}")


def _remove(client: Client, *, yes: bool) -> int:
    """Remove the home after a confirmation. A user who is not root is refused if the home exists; otherwise the user's
    own completion is removed.
    """
    if os.geteuid() != 0:
        if may_exist(client.home) or client.running() is not None:
            carry_out("remove", client.home)  # refuses
        carry_out("remove-completion", client.home, "--share", _own_share())
        return 0
    if not yes and os.path.lexists(client.home):
        if not sys.stdin.isatty():
            said = "this deletes all sessions and captures, and stdin is no terminal on which to ask for confirmation"
            next_step = f"see what the home contains: {spelled(client.home, 'ps', '--all')}; then add --yes"
            raise UsageProblem("remove", f"the home {client.home}", said, next_step)
        if not agrees(f"End all sessions and delete everything in {client.home}?"):
            return EXIT_INTERRUPTED
    carry_out("remove", client.home)
    return 0


def _own_share() -> str:
    """Return the caller's data directory (XDG Base Directory Specification)."""
    named = os.environ.get("XDG_DATA_HOME", "")
    return named if os.path.isabs(named) else os.path.expanduser("~/.local/share")


def carry_out(verb: str, home: str, *options: str) -> list[dict[str, Any]]:
    """Run the program, and print its reports on stderr. Returns the rows of `doctor`; raises reported errors."""
    words = [verb, home, *options]
    for option, variable in (("--criu", "WAYPOINT_CRIU"), ("--root", "WAYPOINT_SETUP_ROOT")):
        words += [option, os.environ[variable]] if os.environ.get(variable) else []
    error: dict[str, object] = {}
    rows: list[dict[str, Any]] = []
    with subprocess.Popen([sys.executable, "-I", "-S", PROGRAM, *words], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        for line in program.stdout:
            facts = json.loads(line)
            if "say" in facts:
                note(facts["say"])
            error = facts.get("error", error)
            rows = facts.get("rows", rows)
    if error:
        raise from_json(error)
    if program.returncode != 0:
        ended = f"ended with status {program.returncode}"
        if program.returncode < 0:
            ended = f"was killed by signal {-program.returncode}"
        next_step = "run it again; if it fails again, please report the messages above"
        raise Failed("set up", home, f"the setup program {ended}", next_step)
    return rows
