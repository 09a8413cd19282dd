"""Ends a shell that no longer serves commands: Waypoint kills it, and pid 1 of the session starts a new one in its
place (shellwrap/first.sh). The new shell gets the state that the killed shell wrote at its last prompt
(terminal/shell/renewal.py).
"""

import asyncio
import contextlib
import os
import termios
from signal import SIGKILL

from shellwrap.marks import Mark
from waypoint.capture.layers.shell import MAX_BYTES, last_number
from waypoint.linux.tasks import pidfd, procfs, signals
from waypoint.linux.tty import terminals
from waypoint.model.conditions import Degradation, degradation
from waypoint.terminal.exec.command_record import End, ExecRecord
from waypoint.terminal.hooks.asking import Desk
from waypoint.terminal.hooks.prompt import Shell, has_foreground
from waypoint.terminal.hooks.run_folder import RunFolder, apart
from waypoint.terminal.hooks.shell_watch import NotAtPrompt

RENEW_FILE = "renew"
"""In the run folder: asks pid 1 to start a new shell when the present one was killed (docs/protocol.md, section 3)."""
SHELL_LOST = "shell-lost"
"""The code of the error of a command that ran in a shell that was lost, so that nothing is known about its end."""
# How long a killed process may take to end. A process that the kernel does not let end keeps its session's shell.
_GONE_S = 0.05
_READ_S = 0.03
# How long a shell that hangs in its hooks may take to its prompt after SIGINT.
_BACK_S = 0.4
# Processor time. A shell that has used less since the timeout of its command may still act on the signals: it needs
# some milliseconds to its hooks' mark E.
_ACTING_NS = 20_000_000
# Where a shell has the input of its command open: as its stdin, or as a descriptor that it keeps while a part of the
# command has another stdin (the first free descriptor from 10 on).
_INPUT_FDS = (0, *range(10, 30))


def renewed(why: str) -> Degradation:
    """Return the condition of a session whose shell was killed and replaced. `why`: in words."""
    return degradation("shell-renewed", "shell", why)


def is_new_shell(mark: Mark | None) -> bool:
    """Return True for a mark E of a command that has ended the shell, which is about to execute a new shell."""
    return mark is not None and mark.fields[3:] == ("X",)


def refused(said: str) -> End:
    """Return the End of a command that was not begun, because the shell was lost before."""
    return End(125, "waypoint", said=f"{said}; the command was not begun", code=SHELL_LOST)


async def hangs(desk: Desk) -> bool:
    """Return True if the shell hangs in its hooks: it does not return to its prompt soon after SIGINT, which the caller
    has sent, and no program is in the foreground.
    """
    shell = desk.watch.shell
    try:
        await desk.watch.wait_prompt(_BACK_S)
    except NotAtPrompt:
        if shell is not None and not desk.terminal.closed.is_set():
            return has_foreground(desk.terminal.master, shell)
    return False


async def leave_state(desk: Desk) -> bool:
    """Tell pid 1 to start a new shell, and which state the new shell takes over. Return False if there is no complete
    state. Raises OSError.
    """
    number = await apart(desk.folder, _last_number)
    desk.folder.write(RENEW_FILE, f"{number or '0:'}\n".encode("ascii"))
    return number is not None


def _last_number(folder: RunFolder) -> str | None:
    return last_number(lambda name: folder.read(name, MAX_BYTES))


async def kill(desk: Desk, shell: Shell) -> bool:
    """Kill the shell. Return whether it has ended within `_GONE_S`."""
    try:
        fd = pidfd.open(shell.pid)
    except ProcessLookupError:
        return True
    try:
        if not procfs.is_same(shell.pid, shell.start_ticks):
            return True
        signals.send(shell.pid, SIGKILL, desk.watch.processes)
        return await asyncio.to_thread(pidfd.wait_ended, fd, _GONE_S)
    finally:
        os.close(fd)


def clean_terminal(desk: Desk) -> None:
    """Give the terminal the modes of a new terminal, and remove the input that the killed shell has not read: the key
    of the hooks may be in it.
    """
    master = desk.terminal.master
    if desk.terminal.closed.is_set():
        return
    fresh, slave = os.openpty()
    try:
        numbers, characters = terminals.attributes(fresh)
    finally:
        os.close(fresh)
        os.close(slave)
    with contextlib.suppress(OSError):
        termios.tcflush(master, termios.TCOFLUSH)
    terminals.release_output(master)
    terminals.set_attributes(master, numbers, characters)


async def wait_read(desk: Desk) -> None:
    """Wait until the terminal's output is read, at most `_READ_S`: programs in the background may print on."""
    terminal = desk.terminal
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_READ_S):
            while not terminal.closed.is_set() and terminals.unread_bytes(terminal.master):
                await terminal.wait_news()


def after_a_crash(record: ExecRecord) -> End:
    """Return the End of a command whose shell an earlier daemon has killed, or was about to kill."""
    why = "Waypoint's daemon was replaced while it replaced the shell"
    said = "the command was stopped with its shell"
    code = 124 if record.timeout_s is not None and record.start is not None else 125
    return End(code, "waypoint", said=said, code=SHELL_LOST, new_shell=True, degraded=[renewed(why)])


class Reaction:
    """Tells how the shell reacts to the signals of its command's timeout. Create this right before the first signal."""

    def __init__(self, desk: Desk, shell: Shell) -> None:
        self._master, self._pid = desk.terminal.master, shell.pid
        self._begun_ns = 0
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._begun_ns = procfs.processor_ns(self._pid)
        # False for a command with the terminal as stdin, and after `exec <file`: then the descriptors tell nothing.
        self._had_input = _has_input(self._pid)

    def has_left_command(self) -> bool:
        """Return True if the shell certainly no longer evaluates the command: it has closed the command's input, and
        runs its hooks or the user's PROMPT_COMMAND.
        """
        return self._had_input and not _has_input(self._pid)

    def is_acting(self) -> bool:
        """Return True if the shell is on its way to the prompt, or had no time yet to act on the last signal: it waits
        for a processor, or for the end of a program that is killed.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            state = procfs.stat(self._pid).state
            if state in "ZX":
                return False
            if self.has_left_command():
                return True
            if procfs.processor_ns(self._pid) - self._begun_ns > _ACTING_NS:
                return False
            group = terminals.foreground_group(self._master)
            programs = [pid for pid in procfs.children(self._pid) if _is_in(pid, group)]
            return all(map(_is_ending, programs)) if programs else state in "RD"
        return False


def _has_input(shell_pid: int) -> bool:
    """Return True if the shell has the input of a command open: /dev/null or a file `in.<id>` (hooks.bash)."""
    paths = [procfs.open_path(shell_pid, number) for number in _INPUT_FDS]
    return any(path == "/dev/null" or os.path.basename(path).startswith("in.") for path in paths)


def _is_in(pid: int, group: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return procfs.stat(pid).group == group
    return False


def _is_ending(pid: int) -> bool:
    """Return True if the process has ended, or will end at the next moment at which it gets a processor."""
    with contextlib.suppress(ProcessLookupError):
        stat = procfs.stat(pid)
        return stat.state in "ZX" or not stat.stack_start or procfs.is_killed(pid)
    return True
