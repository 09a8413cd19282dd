"""Starting the daemon of a home, when a command finds that none listens.

What is started is the supervisor, which detaches itself, sees to it that there is one of it, and tells when the socket
listens: docs/protocol.md, section 5.
"""

import os
import select
import subprocess
import sys
import time

from waypoint.client.address import is_inside_session
from waypoint.model.errors import Failed, HostLacks
from waypoint.model.paths import log_path

READY_S = 60.0  # a supervisor may have to wait for another one to end
SUPERVISOR = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "daemon", "supervisor.py")


def start_daemon(home: str) -> int:
    """Return once the control socket of `home` listens, whoever started what listens. May be called by many at once.

    The pid is the supervisor's; 0 if it is just being replaced.

    Raises HostLacks if this user cannot start one or the home has not been set up, Failed if it does not come up.
    """
    on = f"the daemon of {home}"
    if is_inside_session():
        raise HostLacks("reach", on, "it cannot be reached from inside a session", "run this outside")
    if os.geteuid() != 0:
        raise HostLacks(
            "start",
            on,
            "it does not run, and only root can start it",
            "use sudo, or ask an administrator to run 'waypoint setup --user YOU' and 'waypoint daemon run'",
        )
    if not os.path.exists(f"{home}/config.json"):
        raise HostLacks("start", on, "this home has not been set up", f"waypoint --home {home} setup")
    reader, writer = os.pipe()
    try:
        try:
            supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", SUPERVISOR, home, "--ready-fd", str(writer)],
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # not ended by a Ctrl-C that is meant for us
            )
        finally:
            os.close(writer)
        words = _read_line(reader)
        supervisor.wait()  # the one that we started; what goes on is a fork of it
    finally:
        os.close(reader)
    if not words.startswith("ready "):
        raise Failed("start", on, words.removeprefix("error ").strip() or "it said nothing", f"see {log_path(home)}")
    return int(words.removeprefix("ready "))


def _read_line(fd: int) -> str:
    """One line, without its end; empty if the other side ends without one. Raises Failed after READY_S."""
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
