"""Starting the daemon of a home, when a command finds that no process listens on the home's socket.

The command starts the supervisor, which detaches itself, makes sure that it is the only one, and reports when the
socket listens (docs/protocol.md, section 5).
"""

import os
import select
import subprocess
import sys
import time

from waypoint.client.address import is_inside_session, own_home
from waypoint.model.errors import Failed, HostLacks, from_json
from waypoint.model.paths import as_root, config_path, is_config_of_home, is_of_root, spelled

READY_S = 60.0  # how long a supervisor may take to report; it may have to wait for another one to end
SUPERVISOR = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "daemon", "supervisor.py")


def start_daemon(home: str) -> int:
    """Return once a process listens on the control socket of `home`. Many processes may call this at once.

    Returns the supervisor's pid, or 0 if the supervisor is just being replaced. Raises HostLacks if this user cannot
    start a daemon or the home has not been set up, Failed if the daemon does not start.
    """
    on = f"the daemon of {home}"
    if is_inside_session():
        raise HostLacks("reach", on, "it cannot be reached from inside a session", "run this outside")
    if os.geteuid() != 0 and home == os.path.realpath(own_home()):
        _make_own(home, on)
    if os.geteuid() != 0 and is_of_root(home):
        raise HostLacks(
            "start",
            on,
            "it does not run, and only root can start it",
            f"sudo {spelled(home, 'ps')} (any command of root's starts it)",
        )
    _check_is_home(home, on)
    reader, writer = os.pipe()
    try:
        try:
            supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", SUPERVISOR, home, "--ready-fd", str(writer)],
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C that is meant for this command does not reach it
            )
        finally:
            os.close(writer)
        words = _read_line(reader)
        supervisor.wait()  # the process that was started ends at once; the supervisor is a fork of it
    finally:
        os.close(reader)
    if words.startswith("refused "):
        import json

        raise from_json(json.loads(words.removeprefix("refused ")))
    if not words.startswith("ready "):
        said = words.removeprefix("error ").strip() or "the supervisor ended without a message"
        raise Failed("start", on, said, f"see the daemon's log: {spelled(home, 'daemon', 'logs')}")
    return int(words.removeprefix("ready "))


def _make_own(home: str, on: str) -> None:
    """Make an ordinary user's own home, which needs no setup, unless it is there. Raises HostLacks."""
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        if not os.listdir(home):
            with open(config_path(home), "x") as file:
                file.write(f'{{"owner_uid": {os.getuid()}}}\n')
    except FileExistsError:  # another command has been first
        return
    except OSError as error:
        next_step = "name a folder that you can make: waypoint --home DIR setup"
        raise HostLacks("start", on, f"it cannot be made: {error.strerror}", next_step) from error


def _check_is_home(home: str, on: str) -> None:
    """Raise HostLacks if no home has been set up at `home`: a folder that is not Waypoint's is left as it is. Raise
    Failed if its config.json is no JSON.
    """
    import json

    said = "this home has not been set up"
    try:
        with open(config_path(home), "rb") as file:
            if is_config_of_home(json.load(file)):
                return
        said = f"{config_path(home)} is not that of a home of Waypoint"
    except ValueError as error:
        next_step = f"mend it, or remove it and run '{as_root(home, 'setup')}', which loses nothing but its settings"
        raise Failed("read", config_path(home), str(error), next_step) from error
    except NotADirectoryError as error:
        raise HostLacks("start", on, "it is not a folder", "name another folder") from error
    except OSError as error:
        said += "" if isinstance(error, FileNotFoundError) else f": {error.strerror}"
    raise HostLacks("start", on, said, as_root(home, "setup"))


def _read_line(fd: int) -> str:
    """Read one line, without its newline; empty if the other end is closed without one. Raises Failed after READY_S."""
    deadline = time.monotonic() + READY_S
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise Failed("start", "the daemon", f"it was not ready within {READY_S:g} s", "try again")
        piece = os.read(fd, 4096)
        if not piece:
            break
        line += piece
    return line.decode(errors="replace").strip()
