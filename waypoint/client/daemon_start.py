"""Starting the daemon of a home.

The command starts the supervisor, which detaches itself, makes sure that it is the only one, and reports when the
socket is ready (docs/protocol.md, section 5).
"""

import os
import subprocess
import sys
import time

from waypoint.client.address import is_inside_session, own_home
from waypoint.client.wire import Wait
from waypoint.model.errors import Failed, HostLacks, from_json
from waypoint.model.paths import (
    SET_UP_BY_ROOT,
    WITHOUT_ROOT,
    as_root,
    config_path,
    is_config_of_home,
    spelled,
)

READY_S = 60.0  # how long the supervisor may take to report; it may wait for another one to end
SUPERVISOR = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "daemon", "supervisor.py")


def start_daemon(home: str) -> int:
    """Return when a daemon listens on the control socket of `home`. Many processes may call this at the same time.

    Returns the supervisor's pid, or 0 while it is being replaced. Raises HostLacks if this user cannot start a daemon
    or the home has not been set up, Failed if the daemon does not start.
    """
    on = f"the daemon of {home}"
    if is_inside_session():
        raise HostLacks(
            "reach", on, "it cannot be reached from inside a session", "run the command outside of the session"
        )
    is_made = os.geteuid() != 0 and home == os.path.realpath(own_home()) and _make_own(home)
    if os.geteuid() != 0 and not is_without_root(home):
        raise HostLacks(
            "start",
            on,
            "it is not running, and only root can start it",
            f"sudo {spelled(home, 'ps')} (any command run by root starts it)",
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
                start_new_session=True,  # a Ctrl-C for this command must not reach it
            )
        finally:
            os.close(writer)
        words = _read_line(reader)
        supervisor.wait()  # the started process ends at once; the supervisor is its child
    finally:
        os.close(reader)
    if words.startswith("refused "):
        import json

        raise from_json(json.loads(words.removeprefix("refused ")))
    if not words.startswith("ready "):
        said = words.removeprefix("error ").strip() or "the supervisor ended without a message"
        raise Failed("start", on, said, f"see the daemon's log: {spelled(home, 'daemon', 'logs')}")
    if is_made:
        _say_what_root_adds(home)
    return int(words.removeprefix("ready "))


def _make_own(home: str) -> bool:
    """Make the home of an ordinary user, which works without root, if it is missing. Root's setup makes all others.
    Return whether it was made.
    """
    import json

    from waypoint.model.paths import home_id

    uid = os.getuid()
    config = {"format": 1, "home_id": home_id(home), "owner_uid": uid, "group_gid": None, "trusted_uid": uid}
    config |= {WITHOUT_ROOT: uid, "ids": {"first": 0}}
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        if os.listdir(home):
            return False
        aside = f"{config_path(home)}.{os.getpid()}"
        with open(aside, "x") as file:
            file.write(json.dumps(config, indent=1) + "\n")
        os.rename(aside, config_path(home))
    except OSError as error:
        said = error.strerror or str(error)
        raise HostLacks("make", f"the home {home}", said, SET_UP_BY_ROOT) from error
    return True


def _say_what_root_adds(home: str) -> None:
    sys.stderr.write(
        f"waypoint: made {home}, which works without root: checkpoints keep files, shells and the command lines of "
        f"programs; root would add their memory (CRIU), limits and fast snapshots: {SET_UP_BY_ROOT}\n"
    )


def is_without_root(home: str) -> bool:
    """Whether the daemon of the home runs as this user, without root."""
    import json

    try:
        with open(config_path(home), "rb") as file:
            config = json.load(file)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get(WITHOUT_ROOT) == os.getuid()


def _check_is_home(home: str, on: str) -> None:
    """Raise HostLacks if no home has been set up at `home`, Failed if its config.json is not JSON."""
    import json

    said = "this home has not been set up"
    try:
        with open(config_path(home), "rb") as file:
            if is_config_of_home(json.load(file)):
                return
        said = f"{config_path(home)} does not belong to a home of Waypoint"
    except ValueError as error:
        setup = as_root(home, "setup")
        next_step = f"correct the file, or remove it and run '{setup}', which resets only the settings of the home"
        raise Failed("read", config_path(home), str(error), next_step) from error
    except NotADirectoryError as error:
        raise HostLacks("start", on, "it is not a directory", "name another directory") from error
    except OSError as error:
        said += "" if isinstance(error, FileNotFoundError) else f": {error.strerror}"
    raise HostLacks("start", on, said, as_root(home, "setup"))


def _read_line(fd: int) -> str:
    """Read one line, without its newline; "" if the other end is closed. Raises Failed after READY_S."""
    deadline = time.monotonic() + READY_S
    line, wait = b"", Wait('{"code": "start-daemon"}')
    try:
        while not line.endswith(b"\n"):
            if not wait.until_readable(fd, deadline):
                said = f"it was not ready within {READY_S:g} s"
                raise Failed("start", "the daemon", said, "try again", code="daemon-not-ready")
            piece = os.read(fd, 4096)
            if not piece:
                break
            line += piece
    finally:
        wait.end()
    return line.decode(errors="replace").strip()
