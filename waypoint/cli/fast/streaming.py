"""Running an `exec` or `run` with this process's own stdin, stdout, stderr and signals.

Loaded by every `waypoint exec`: client/wire.py says what may be imported here.
"""

import os
import time

from waypoint.cli.output import EXIT_FAILED, EXIT_NO_READER, print_error, write_all
from waypoint.client.command import Command
from waypoint.model.errors import Failed, StateConflict, WaypointError
from waypoint.model.paths import spelled

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

# After the reader of the output is gone, wait so many seconds for the command to end.
GRACE_S = 1.0
# Three Ctrl-C (or SIGTERM) within this time kill the command.
THREE_PRESSES_S = 2.0
_EXIT_TIMEOUT = 124
_FORWARDED: dict[int, str] = {SIGINT: "INT", SIGTERM: "TERM", SIGHUP: "HUP", SIGQUIT: "QUIT"}


def run_streaming(home: str, branch: str, verb: str, request: dict[str, object], *, has_input: bool) -> int:
    """Run an `exec` or `run`, as `verb` says. Returns the exit status: the command's, or 125 if waypoint itself failed.

    `has_input`: whether this process's stdin is the command's input.
    """
    try:
        if request["tty"] and os.isatty(0):
            from waypoint.cli.terminal import run_on_terminal

            end = run_on_terminal(home, branch, verb, request)
        else:
            end = _run_plainly(Command(home, branch, verb, request, shows_waits=True), verb, has_input=has_input)
    except WaypointError as error:
        print_error(str(error))
        return EXIT_FAILED
    failed = error_of(home, branch, end) if verb == "exec" else None
    if failed is not None:
        print_error(str(failed))
    elif end.get("by") in ("waypoint", "reader") and end.get("said"):
        print_error(str(end["said"]))
    elif end.get("ended") is True:
        print_error(f"the session of {branch} has ended with its shell; to continue: waypoint shell {branch}")
    report_return(end)
    report_new_shell(branch, end)
    code = end.get("exit")
    return code if isinstance(code, int) else EXIT_FAILED


def report_return(end: "dict[str, object]") -> None:
    """Print what the session lacks since the command has brought it back from its park."""
    returned = end.get("returned")
    if isinstance(returned, dict):
        from waypoint.cli.fast.answers import warn_degraded

        warn_degraded(returned)


def report_new_shell(branch: str, end: "dict[str, object]") -> None:
    """Print that a new shell replaces the one that the command has ended, or that Waypoint has killed."""
    lost = "are too large, or could not be written (a full disk, ulimit -f)"
    degraded = end.get("degraded")
    if isinstance(degraded, list) and degraded:
        for condition in degraded:
            print_error(str(condition["text"]))
        if end.get("state_lost") is True:
            print_error(f"the new shell of {branch} has none of the variables and functions: they {lost}")
    elif end.get("new_shell") is True:
        state = "with the same variables, functions and directory"
        if end.get("state_lost") is True:
            state = f"with the same exported variables only: the other variables and the functions {lost}"
        print_error(
            f"the command has ended the shell of {branch}; a new shell has replaced it, {state}; background programs "
            "continue, but are not jobs of the new shell"
        )


def error_of(home: str, branch: str, end: "dict[str, object]") -> "WaypointError | None":
    """Return the error in `end`, the fields of an exec's `x` frame, if Waypoint could not run the command or has lost
    it. None if the command ended by itself or at its timeout.
    """
    said = str(end.get("said") or "")
    if end.get("by") != "waypoint" or end.get("exit") == _EXIT_TIMEOUT or not said:
        return None
    on, code = f"branch {branch}", str(end.get("code") or "")
    if end.get("ended"):
        next_step = f"to continue in the session: {spelled(home, 'shell', branch)}"
        return Failed("follow the command on", on, said, next_step, code=code)
    if code == "shell-lost":
        return Failed("follow the command on", on, said, "run it again: the new shell serves commands", code=code)
    beside = spelled(home, "run", "-b", branch, "--", "CMD")
    next_step = f"wait until its shell is idle (exec --wait-prompt S), or run a separate process: {beside}"
    return StateConflict("run the command on", on, said, next_step, code=code)


def _run_plainly(command: Command, verb: str, *, has_input: bool) -> dict[str, object]:
    forward_signals(command)
    # When the reader is gone, a `run` gets SIGPIPE, as in a pipeline. An `exec` gets SIGINT, because SIGPIPE could end
    # the session's own shell.
    stop_signal = "INT" if verb == "exec" else "PIPE"
    output, errors = Outflow(1, command, stop_signal), Outflow(2, command, stop_signal)
    try:
        end = command.wait(output, errors, 0 if has_input else -1)
    except TimeoutError:  # the command has not ended within GRACE_S
        end = {}
    if output.code or errors.code:
        return {"exit": output.code or errors.code, "by": "reader", "said": output.said or errors.said}
    return end


class Outflow:
    """Writes a stream of the command to the descriptor `fd` of this process, as it arrives.

    When the descriptor cannot be written, the command is sent the signal `stop_signal`, the rest is dropped, and `code`
    is set to this process's exit status.
    """

    def __init__(self, fd: int, command: Command, stop_signal: str) -> None:
        self._fd = fd
        self._command = command
        self._stop_signal = stop_signal
        self.code = 0
        self.said = ""

    def __call__(self, view: memoryview) -> None:
        if self.code:
            return
        try:
            write_all(self._fd, view)
        except BrokenPipeError:
            self._stop(EXIT_NO_READER, "")
        except OSError as error:
            self._stop(EXIT_FAILED, f"cannot write to {'stdout' if self._fd == 1 else 'stderr'}: {error.strerror}")

    def _stop(self, code: int, said: str) -> None:
        self.code = code
        self.said = said
        self._command.signal(self._stop_signal)
        # Wait for the command to end, so that the next command of a script finds the session's shell idle.
        self._command.deadline = time.monotonic() + GRACE_S


def forward_signals(command: "Signalled") -> None:
    """Forward SIGINT, SIGTERM, SIGHUP and SIGQUIT to the command from now on. Signals that this process ignored at its
    start (nohup, `&`) stay ignored. After three SIGINT or SIGTERM have become a SIGKILL, the next ends this process.
    """
    presses: list[float] = []

    def forward(number: int, frame: object) -> None:
        name = _FORWARDED[number]
        if number in (SIGINT, SIGTERM):
            presses.append(time.monotonic())
            if len(presses) >= 3 and presses[-1] - presses[-3] <= THREE_PRESSES_S:
                name = "KILL"
                for one in (SIGINT, SIGTERM):  # if the daemon hangs, the user can still end this process
                    signal(one, SIG_DFL)
        command.signal(name)

    command.wake_fd, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    set_wakeup_fd(writer)
    for number in _FORWARDED:
        if getsignal(number) != SIG_IGN:
            signal(number, forward)
