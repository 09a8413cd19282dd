"""Running an `exec` or `run`: its input and output are this process's own, and signals to this process are sent to it.

Loaded by every `waypoint exec`: client/wire.py says what may be imported here.
"""

import os
import time

from waypoint.cli.caller import with_meant
from waypoint.cli.output import EXIT_FAILED, EXIT_NO_READER, complain, write_all
from waypoint.client.command import Command
from waypoint.model.errors import WaypointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIG_DFL, SIG_IGN, SIGHUP, SIGINT, SIGQUIT, SIGTERM, getsignal, set_wakeup_fd, signal
    from typing import Protocol

    class Signalled(Protocol):
        """A receiver of forwarded signals. `wake_fd`: set to a descriptor that becomes readable at each signal."""

        wake_fd: int

        def signal(self, name: str) -> None: ...

else:
    from _signal import SIG_DFL, SIG_IGN, SIGHUP, SIGINT, SIGQUIT, SIGTERM, getsignal, set_wakeup_fd, signal

# Seconds that the command gets to end after the reader of its output is gone. Then this process ends without it.
GRACE_S = 1.0
# Three Ctrl-C (or SIGTERM) within this time kill the command (SIGKILL).
THREE_PRESSES_S = 2.0
_FORWARDED: dict[int, str] = {SIGINT: "INT", SIGTERM: "TERM", SIGHUP: "HUP", SIGQUIT: "QUIT"}


def run_streaming(home: str, branch: str, verb: str, request: dict[str, object], *, has_input: bool) -> int:
    """Send the request of `exec` or `run`, and pass bytes and signals on until the command ends. Returns the exit
    status: the command's, or 125 if waypoint itself failed.

    `has_input`: whether this process's stdin is the command's input.
    """
    try:
        if request["tty"] and os.isatty(0):
            from waypoint.cli.terminal import run_on_terminal

            end = run_on_terminal(home, branch, verb, request)
        else:
            end = _run_plainly(Command(home, branch, verb, request), verb, has_input=has_input)
    except WaypointError as error:
        complain(str(with_meant(error)))
        return EXIT_FAILED
    failed = None
    if verb == "exec" and end.get("by") == "waypoint":
        from waypoint.cli.fast.failed_command import error_of

        failed = error_of(home, branch, end)
    if failed is not None:
        complain(str(failed))
    elif end.get("by") in ("waypoint", "reader") and end.get("said"):
        complain(str(end["said"]))
    elif end.get("ended") is True:
        complain(f"{branch} has ended with its shell; to go on from its files: waypoint shell {branch}")
    if end.get("new_shell") is True:
        state = "with its variables, functions and folder"
        if end.get("state_lost") is True:
            state = (
                "without its functions and variables, but for exported ones: they could not be written (a full disk,"
                " ulimit -f), or are too large"
            )
        complain(
            f"the command has ended the shell of {branch}; a new one has taken its place, {state}; what it had started"
            " in the background runs on, but is no job of the new one"
        )
    code = end.get("exit")
    return code if isinstance(code, int) else EXIT_FAILED


def _run_plainly(command: Command, verb: str, *, has_input: bool) -> dict[str, object]:
    forward_signals(command)
    # The signal for a command whose reader is gone: SIGPIPE, as in a pipeline. For `exec` SIGINT instead, because the
    # session's own shell may be reached by it: bash ends on SIGPIPE.
    parting = "INT" if verb == "exec" else "PIPE"
    output, errors = Outflow(1, command, parting), Outflow(2, command, parting)
    try:
        end = command.wait(output, errors, 0 if has_input else -1)
    except TimeoutError:  # the command has not ended within GRACE_S
        end = {}
    if output.code or errors.code:
        return {"exit": output.code or errors.code, "by": "reader", "said": output.said or errors.said}
    return end


class Outflow:
    """Writes a stream of the command to the descriptor `fd` of this process, as it comes.

    When the descriptor cannot be written any more, the command is sent the signal `parting`, the rest is dropped, and
    `code` is set to the exit status for that.
    """

    def __init__(self, fd: int, command: Command, parting: str) -> None:
        self._fd = fd
        self._command = command
        self._parting = parting
        self.code = 0
        self.said = ""

    def __call__(self, view: memoryview) -> None:
        if self.code:
            return
        try:
            write_all(self._fd, view)
        except BrokenPipeError:
            self._part(EXIT_NO_READER, "")
        except OSError as error:
            self._part(EXIT_FAILED, f"cannot write to {'stdout' if self._fd == 1 else 'stderr'}: {error.strerror}")

    def _part(self, code: int, said: str) -> None:
        self.code = code
        self.said = said
        self._command.signal(self._parting)
        # Wait for the command's end, so that the next command in a script finds the session's shell free again.
        self._command.deadline = time.monotonic() + GRACE_S


def forward_signals(command: "Signalled") -> None:
    """Forward SIGINT, SIGTERM, SIGHUP and SIGQUIT to the command from now on. Signals that this process was started to
    ignore (nohup, `&`) stay ignored. Once three SIGINT or SIGTERM have become a SIGKILL, the next ends this process.
    """
    presses: list[float] = []

    def forward(number: int, frame: object) -> None:
        name = _FORWARDED[number]
        if number in (SIGINT, SIGTERM):
            presses.append(time.monotonic())
            if len(presses) >= 3 and presses[-1] - presses[-3] <= THREE_PRESSES_S:
                name = "KILL"
                for one in (SIGINT, SIGTERM):  # a daemon that hangs must not keep who has asked it
                    signal(one, SIG_DFL)
        command.signal(name)

    command.wake_fd, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    set_wakeup_fd(writer)
    for number in _FORWARDED:
        if getsignal(number) != SIG_IGN:
            signal(number, forward)
