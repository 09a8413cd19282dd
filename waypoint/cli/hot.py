"""What the hot verbs do once their options are known. See client/wire.py on what may be loaded here."""

import os
import time

from waypoint.cli.entry import EXIT_NO_READER, complain
from waypoint.client.address import find_home, pick_branch
from waypoint.client.command import Command
from waypoint.client.quoting import as_json_text, exec_text
from waypoint.model.errors import WaypointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import SIG_IGN, SIGHUP, SIGINT, SIGQUIT, SIGTERM, getsignal, set_wakeup_fd, signal

    from waypoint.cli.fork_command import Fleet
    from waypoint.cli.hot_verbs import Value

    Parameters = dict[str, Value]
else:
    from _signal import SIG_IGN, SIGHUP, SIGINT, SIGQUIT, SIGTERM, getsignal, set_wakeup_fd, signal

EXIT_FAILED = 125
# After the reader of our output has gone the command gets this long to end before we leave it alone.
GRACE_S = 1.0
# The third Ctrl-C within this time means it.
THREE_PRESSES_S = 2.0
_FORWARDED: dict[int, str] = {SIGINT: "INT", SIGTERM: "TERM", SIGHUP: "HUP", SIGQUIT: "QUIT"}


def run_exec(given: "Parameters") -> int:
    """`waypoint exec`. The exit status. Raises UsageProblem for what can be seen to be wrong from here."""
    home, branch = find_place(given)
    request: dict[str, object] = {"text": exec_text(_words(given)), "tty": given["tty"]}
    if given["timeout"] is not None:
        request["timeout_s"] = given["timeout"]
    if given["wait_prompt"] is not None:
        request["wait_prompt_s"] = given["wait_prompt"]
    if given["interactive"] and not given["tty"]:  # with --tty the session's terminal is the command's input
        request["stdin"] = True
    if given["json"]:
        from waypoint.cli.exec_json import run_for_json

        return run_for_json(home, branch, request)
    return _run_guarded(home, branch, "exec", request, has_input=bool(given["interactive"]))


def run_run(given: "Parameters") -> int:
    """`waypoint run`. The exit status. Raises UsageProblem for what can be seen to be wrong from here."""
    home, branch = find_place(given)
    words = [as_json_text(word) for word in _words(given)]
    request: dict[str, object] = {"argv": words, "tty": given["tty"], "stdin": given["interactive"]}
    if given["cwd"] is not None:
        request["cwd"] = given["cwd"]
    return _run_guarded(home, branch, "run", request, has_input=bool(given["interactive"]))


def run_shell(given: "Parameters") -> int:
    """`waypoint shell`. The exit status: the shell's. Raises WaypointError."""
    from waypoint.cli import hot_shell

    return hot_shell.run(given)


def run_checkpoint(given: "Parameters") -> int:
    """`waypoint checkpoint`. The exit status. Raises WaypointError."""
    from waypoint.cli import hot_moments

    return hot_moments.checkpoint(given)


def run_restore(given: "Parameters") -> int:
    """`waypoint restore`. The exit status. Raises WaypointError."""
    from waypoint.cli import hot_moments

    return hot_moments.restore(given)


def run_fork(given: "Parameters") -> int:
    """`waypoint fork`. The exit status. Raises WaypointError."""
    from waypoint.cli import hot_moments

    return hot_moments.fork(given)


ACTIONS: "dict[str, Callable[[Parameters], int]]" = {
    "exec": run_exec,
    "run": run_run,
    "shell": run_shell,
    "checkpoint": run_checkpoint,
    "restore": run_restore,
    "fork": run_fork,
}


def find_place(given: "Parameters", option: str = "branch") -> tuple[str, str]:
    """The home and the branch that are meant; `option`: the parameter that may name the branch."""
    home, branch = given["home"], given[option]
    return (
        find_home(home if isinstance(home, str) else None),
        pick_branch(branch if isinstance(branch, str) else None),
    )


def _words(given: "Parameters") -> list[str]:
    words = given["words"]
    assert isinstance(words, list)
    return words


def _run_guarded(home: str, branch: str, verb: str, request: dict[str, object], *, has_input: bool) -> int:
    try:
        if request["tty"] and os.isatty(0):
            from waypoint.cli.terminal import run_on_terminal

            end = run_on_terminal(home, branch, verb, request)
        else:
            end = _run_plainly(Command(home, branch, verb, request), verb, has_input=has_input)
    except WaypointError as error:
        complain(str(error))
        return EXIT_FAILED
    if end.get("by") == "waypoint" and end.get("said"):
        complain(str(end["said"]))
    code = end.get("exit")
    return code if isinstance(code, int) else EXIT_FAILED


def _run_plainly(command: Command, verb: str, *, has_input: bool) -> dict[str, object]:
    forward_signals(command)
    # What a pipeline's reader does to its writer, in the one form that harms no shell: bash ends on SIGPIPE.
    parting = "INT" if verb == "exec" else "PIPE"
    output, errors = Outflow(1, command, parting), Outflow(2, command, parting)
    try:
        end = command.wait(output, errors, 0 if has_input else -1)
    except TimeoutError:  # the grace is over
        end = {}
    if output.code or errors.code:
        return {"exit": output.code or errors.code, "by": "waypoint", "said": output.said or errors.said}
    return end


class Outflow:
    """Writes a stream of the command to one of our own descriptors, as it comes.

    When that cannot be written any more, the command is sent a signal, the rest is dropped and `code` is set.
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
        # Not at once: the next command in a script should find the session's shell free again.
        self._command.deadline = time.monotonic() + GRACE_S


def write_all(fd: int, view: memoryview) -> None:
    """Write all of `view`, also to a descriptor that somebody has set to O_NONBLOCK. Raises OSError."""
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            import select

            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()


def forward_signals(command: "Command | Fleet") -> None:
    """From now on Ctrl-C and its like are the command's. What our caller had us ignore stays ignored (nohup, `&`)."""
    presses: list[float] = []

    def forward(number: int, frame: object) -> None:
        name = _FORWARDED[number]
        if number == SIGINT:
            presses.append(time.monotonic())
            if len(presses) >= 3 and presses[-1] - presses[-3] <= THREE_PRESSES_S:
                name = "KILL"
        command.signal(name)

    command.wake_fd, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    set_wakeup_fd(writer)
    for number in _FORWARDED:
        if getsignal(number) != SIG_IGN:
            signal(number, forward)
