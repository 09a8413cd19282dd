"""`waypoint setup`."""

import contextlib
import os
import stat
import subprocess
import sys

import waypoint
from waypoint.cli.caller import ask_passphrase
from waypoint.cli.output import EXIT_INTERRUPTED, note, print_json
from waypoint.client.sdk import Client
from waypoint.model import plainjson
from waypoint.model.errors import Failed, UsageProblem, from_json
from waypoint.model.packages import make_importable
from waypoint.model.paths import is_of_root, quoted, spelled
from waypoint.model.verbs import Given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from waypoint.model.facts import StatusFacts

_NOT_OWN = "have sessions of others or as others, --base, a --bind of what you could not use; import, apply, mount"

# The program that does the work on this machine. It reports on stdout in lines of JSON.
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(waypoint.__file__)), "setup", "work_program.py")


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    client = Client(given.text("home"))
    check, remove = given.flag("check"), given.flag("remove")
    if check and remove:
        raise UsageProblem("use", "--check", "--check and --remove exclude each other", "leave one out")
    if given.flag("json") and not check:
        raise UsageProblem("use", "--json", "it goes with --check", "say --check, too, or leave --json out")
    if check and os.geteuid() != 0 and is_of_root(client.home) and (status := client.running()) is not None:
        return _tell_own(status, as_json=given.flag("json"))
    if check:
        facts = carry_out("check", client.home).get("facts", {})
        status = client.running()
        if status is not None and status.is_behind:
            setup = spelled(client.home, "setup")
            note(f"that holds from the daemon's next start: '{setup}' starts it anew")
        if status is not None and status.problem:
            raise from_json(status.problem)
        if given.flag("json"):
            print_json({**facts, "daemon": status.pid if status is not None else None})
    elif remove:
        return _remove(client, yes=given.flag("yes"))
    else:
        options = {f"--{name}": given.text(name) for name in ("user", "group", "trust")}
        options |= {f"--hot-{name}": _in_bytes(given.number(f"hot_{name}")) for name in ("budget", "memory")}
        options["--encrypt"] = "yes" if given.flag("encrypt") else None
        options["--passphrase-file"] = _passphrase_file(given.text("passphrase_file"))
        options["--passphrase"] = "yes" if given.flag("passphrase") else None
        passphrase = ask_passphrase(is_new=given.flag("encrypt")) if given.flag("passphrase") else ""
        _install(client, options, passphrase)
    return 0


def _tell_own(status: "StatusFacts", *, as_json: bool) -> int:
    """What a user whom root has let in can do with root's home, and what not. Returns the exit status. Raises the error
    that all get who would write to the home.
    """
    import pwd

    name = pwd.getpwuid(os.geteuid()).pw_name
    note(f"the home {status.home} is there, its daemon runs (pid {status.pid}), and you, {name}, may use it")
    if status.is_bound:
        note("you can: have sessions as yourself, capture, fork and restore them, and see and undo what you have done")
        note(f"you cannot: {_NOT_OWN}; set it up, or stop its daemon; what root has set up is shown to root")
    else:
        note("root trusts you fully: you can have all that root has in it; what root has set up is shown to root")
    note(f"for that: sudo {spelled(status.home, 'setup', '--check')}")
    if status.problem:
        raise from_json(status.problem)
    if as_json:
        facts = {"home": status.home, "user": name, "trusted": not status.is_bound, "daemon": status.pid}
        print_json({**facts, "group": None, "store_key": None, "criu": None})
    return 0


def _in_bytes(size: int | None) -> str | None:
    return None if size is None else str(size)


def _passphrase_file(path: str | None) -> str | None:
    """Its absolute path. Says so if others may read it."""
    if path is None:
        return None
    with contextlib.suppress(OSError):  # it is told when it is read
        if os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH):
            note(f"others than its owner may read {path}, which has the passphrase: chmod 600 {quoted(path)}")
    return os.path.abspath(path)


def _install(client: Client, options: dict[str, str | None], passphrase: str) -> None:
    """Install, then make sure that a daemon runs and that it knows the new settings. A user who is not root, but may
    use the home, gets completion alone.
    """
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    if os.geteuid() != 0 and is_of_root(client.home) and not given and client.running() is not None:
        share = _own_share()
        carry_out("add-completion", client.home, "--share", share)
        note(f"you may use {client.home}; for completion in zsh: fpath+=({share}/zsh/site-functions)")
        return
    try:
        carry_out("install", client.home, *given, secret=passphrase)
    finally:  # what could be done holds
        running = client.running()
        if running is not None and running.is_behind:
            note("the daemon starts anew, for that to hold: commands and terminals from outside end, sessions go on")
            client.stop_daemon()
    carry_out("add-outside", client.home, *_for_own(client.home))  # may fail where what is above holds
    status = client.status()
    note(f"the daemon runs (pid {status.pid}); sessions: {status.sessions}")
    if status.pool == "copy" and is_of_root(client.home):
        said = "every checkpoint copies the files that its session has changed, as this home was made without btrfs"
        doctor, remove = spelled(client.home, "doctor"), spelled(client.home, "setup", "--remove")
        note(f"{said}\n  next: see the row 'btrfs pool' of '{doctor}'; then begin anew: {remove}")


def _remove(client: Client, *, yes: bool) -> int:
    """Remove the home, if the user agrees to it; of a user who is not root, first the own completion. Returns the exit
    status.
    """
    if os.geteuid() != 0 and is_of_root(client.home):
        carry_out("remove-completion", client.home, "--share", _own_share())
    elif not yes and os.path.lexists(client.home):
        if not sys.stdin.isatty():
            said = "that ends all sessions and throws away all that was kept, and nobody can be asked: no terminal"
            next_step = f"see what is in it: {spelled(client.home, 'ps', '--all')}; then say --yes"
            raise UsageProblem("remove", f"the home {client.home}", said, next_step)
        if not _agrees(f"End all sessions and throw away everything kept in {client.home}?"):
            return EXIT_INTERRUPTED
    if os.geteuid() == 0 or os.path.lexists(client.home) or client.running() is not None:
        carry_out("remove", client.home, *_for_own(client.home))
    return 0


def _agrees(question: str) -> bool:
    make_importable("click")
    import click

    try:
        return click.confirm(question, err=True)
    except click.Abort:
        return False


def _for_own(home: str) -> list[str]:
    """The options by which the program finds the places of an ordinary user who has a home of their own."""
    return [] if is_of_root(home) else ["--share", _own_share()]


def _own_share() -> str:
    """The caller's folder for data (XDG Base Directory Specification)."""
    named = os.environ.get("XDG_DATA_HOME", "")
    return named if os.path.isabs(named) else os.path.expanduser("~/.local/share")


def carry_out(verb: str, home: str, *options: str, secret: str = "") -> "dict[str, Any]":
    """Run the program, and print its reports on stderr. `secret`: a line on its stdin, where nobody else sees it.

    Returns what it has for programs: the `rows` of `doctor`, the `facts` of `check`. Raises the error that it reports.
    """
    words = [verb, home, *options]
    for option, variable in (("--criu", "WAYPOINT_CRIU"), ("--root", "WAYPOINT_SETUP_ROOT")):
        words += [option, os.environ[variable]] if os.environ.get(variable) else []
    answer: dict[str, Any] = {}
    words = [sys.executable, "-I", "-S", PROGRAM, *words]
    with subprocess.Popen(words, stdin=subprocess.PIPE if secret else None, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        if program.stdin is not None:
            with contextlib.suppress(BrokenPipeError), program.stdin:
                program.stdin.write(f"{secret}\n".encode())
        for line in program.stdout:
            facts: dict[str, Any] = plainjson.decode_object(line)
            if "say" in facts:
                note(facts["say"])
            answer.update(facts)
    if "error" in answer:
        raise from_json(answer["error"])
    if program.returncode != 0:
        ended = f"ended with status {program.returncode}"
        if program.returncode < 0:
            ended = f"was killed by signal {-program.returncode}"
        next_step = "run it again; if it ends so again, please report its messages above"
        raise Failed("set up", home, f"its program {ended}", next_step)
    return answer
