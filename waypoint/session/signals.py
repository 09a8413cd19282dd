"""Stopping the command that a shell runs, without hurting the shell.

The shell may itself be in the foreground (a loop of builtins; everything with `set +m`). SIGINT then ends the list it
works on, as ^C does; SIGKILL to its group would end the session.
"""

import contextlib
import os
import signal
from collections.abc import Iterator

from waypoint.linux import procfs, terminals

NAMES = {
    name: signal.Signals[f"SIG{name}"]
    for name in ("HUP", "INT", "QUIT", "KILL", "TERM", "USR1", "USR2", "ALRM", "CONT", "STOP", "TSTP", "WINCH")
}
# What ends a list of commands: the shell itself must hear of it too, or it goes on with the next one.
_ENDING = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)


def send(master: int, shell_pid: int, number: signal.Signals) -> None:
    """Send `number` to what runs in the foreground of `shell_pid`'s terminal."""
    group = terminals.foreground_group(master)
    with contextlib.suppress(ProcessLookupError):
        shell_group = procfs.stat(shell_pid).group
        if group > 1 and group != shell_group:
            os.killpg(group, number)
            # The rest of the list is not to run: after a SIGINT the shell sees to that itself.
            if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP):
                os.kill(shell_pid, signal.SIGINT)
        else:
            for pid in list(_in_group(shell_pid, shell_group)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number in _ENDING:
                os.kill(shell_pid, signal.SIGINT)


def _in_group(parent: int, group: int) -> Iterator[int]:
    """The descendants of `parent` that share its group: what a shell runs without job control."""
    for pid in procfs.children(parent):
        with contextlib.suppress(ProcessLookupError):
            if procfs.stat(pid).group == group:
                yield from _in_group(pid, group)
                yield pid
