"""`waypoint setup`."""

import contextlib
import getpass
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import waypoint
from waypoint.cli.caller import absolute
from waypoint.cli.output import EXIT_INTERRUPTED, agrees, note
from waypoint.client.daemon_start import is_without_root
from waypoint.client.sdk import Client
from waypoint.client.wire import Wait
from waypoint.model import plainjson
from waypoint.model.errors import Failed, HostLacks, UsageProblem, from_json
from waypoint.model.paths import config_path, may_exist, spelled
from waypoint.model.stages import Stage
from waypoint.model.verbs import Given

# The program that sets up this machine. It reports on stdout in lines of JSON.
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(waypoint.__file__)), "setup", "work_program.py")
_MAX_PASSPHRASE_BYTES = 1 << 10


def run(given: Given) -> int:
    client = Client(given.text("home"))
    asked = [name for name in ("check", "remove", "encrypt", "unlock") if given.flag(name)]
    if len(asked) > 1:
        raise UsageProblem("use", f"--{asked[0]}", f"it cannot be combined with --{asked[1]}", "leave out one of them")
    what = asked[0] if asked else ""
    encryption = _encryption(given)
    if what == "check":
        _check(client)
    elif what == "remove":
        return _remove(client, yes=given.flag("yes"))
    elif what == "unlock":
        _unlock(client, given)
    else:
        options = {f"--{name}": given.text(name) for name in ("user", "group", "trust", "standbys")}
        for name in ("undo-budget", "hot-memory"):
            size = given.number(name.replace("-", "_"))
            options[f"--{name}"] = str(size) if size is not None else None
        _install(client, options | encryption, _passphrase(given) if given.flag("passphrase") else "")
    return 0


def _encryption(given: Given) -> dict[str, str | None]:
    """The options of the program for --encrypt. Raises UsageProblem for options that need --encrypt, or each other."""
    key_file, by_passphrase = given.text("key_file"), given.flag("passphrase")
    for option, is_given in (("--key-file", key_file), ("--passphrase", by_passphrase)):
        if is_given and not given.flag("encrypt"):
            raise UsageProblem("use", option, "it works with --encrypt only", "add --encrypt")
    if key_file and by_passphrase:
        raise UsageProblem("use", "--key-file", "it cannot be combined with --passphrase", "leave out one of them")
    if given.text("passphrase_file") and not (by_passphrase or given.flag("unlock")):
        raise UsageProblem(
            "use", "--passphrase-file", "it works with --passphrase and --unlock only", "add one of them"
        )
    kind = ("passphrase" if by_passphrase else "key-file") if given.flag("encrypt") else None
    return {"--encrypt": kind, "--key-file": absolute(key_file) if key_file else None}


def _passphrase(given: Given) -> str:
    """The passphrase from the given file or the terminal; a new one is asked for twice. It is never an argument or
    a variable of the environment, which other programs can read.
    """
    path, is_new = given.text("passphrase_file"), not given.flag("unlock")
    if path:
        try:
            with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
                found = file.read(_MAX_PASSPHRASE_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageProblem("read", f"the passphrase in {path}", str(error), "name another file") from error
    elif sys.stdin.isatty():
        found = getpass.getpass("Passphrase: ").strip()
        if is_new and getpass.getpass("The same again: ").strip() != found:
            raise UsageProblem("use", "the passphrase", "the second one is another one", "try again")
    else:
        said = "stdin is no terminal on which to ask for it"
        raise UsageProblem("read", "the passphrase", said, "add --passphrase-file FILE")
    if not found:
        raise UsageProblem("use", "the passphrase", "it is empty", "try again")
    return found


def _unlock(client: Client, given: Given) -> None:
    """Unlock the store. If a key file does this, the daemon reads it again."""
    has_key_file = False
    with contextlib.suppress(OSError, ValueError, KeyError), open(config_path(client.home), "rb") as file:
        has_key_file = bool(json.load(file)["encryption"]["key_file"])
    client.unlock("" if has_key_file else _passphrase(given))
    note("the store is unlocked until the daemon ends")


def _install(client: Client, options: dict[str, str | None], passphrase: str) -> None:
    """Install, then make sure that a daemon with the new settings runs. A user who is not root, but may use the home,
    gets completion only.
    """
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    if os.geteuid() != 0 and not given and client.running() is not None:
        share = _own_share()
        carry_out("add-completion", client.home, "--share", share)
        note(f"you may use the home {client.home}; for completion in zsh: fpath+=({share}/zsh/site-functions)")
        return
    if options["--encrypt"] is not None:
        client.stop_daemon()  # it could write to the store meanwhile
    carry_out("install", client.home, *given, secret=passphrase)
    if given:
        client.stop_daemon()  # the next daemon reads who may use it
    status = client.status()
    if passphrase:
        client.unlock(passphrase)
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
    if os.geteuid() != 0 and not is_without_root(client.home):
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


def _lines(fd: int) -> Iterator[bytes]:
    """The lines of a pipe. A long wait for one is shown."""
    rest = b""
    while True:
        wait = Wait(plainjson.encode({"code": Stage.SET_UP.value}))
        wait.until_readable(fd)
        wait.end()
        piece = os.read(fd, 1 << 16)
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines


def _own_share() -> str:
    """Return the caller's data directory (XDG Base Directory Specification)."""
    named = os.environ.get("XDG_DATA_HOME", "")
    return named if os.path.isabs(named) else os.path.expanduser("~/.local/share")


def carry_out(verb: str, home: str, *options: str, secret: str = "") -> list[dict[str, Any]]:
    """Run the program, and print its reports on stderr. Returns the rows of `doctor`; raises reported errors. `secret`:
    what the program reads from stdin.
    """
    words = [verb, home, *options]
    for option, variable in (("--criu", "WAYPOINT_CRIU"), ("--root", "WAYPOINT_SETUP_ROOT")):
        words += [option, os.environ[variable]] if os.environ.get(variable) else []
    error: dict[str, object] = {}
    rows: list[dict[str, Any]] = []
    stdin = subprocess.PIPE if secret else None
    with subprocess.Popen(
        [sys.executable, "-I", "-S", PROGRAM, *words], stdin=stdin, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        if program.stdin is not None:
            program.stdin.write(secret.encode())
            program.stdin.close()
        for line in _lines(program.stdout.fileno()):
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
