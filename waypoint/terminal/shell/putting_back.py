"""Restores a captured state in the shell of a running session. The state may come from this shell or from another shell
of the same kind.
"""

import asyncio
import functools
from typing import NoReturn

from waypoint.capture.layers.shell import KeptShell, unreadable
from waypoint.model.errors import CannotCapture, Failed, StateConflict
from waypoint.model.records import Capture
from waypoint.model.requests import ExecRequest
from waypoint.model.streams import Frame
from waypoint.terminal.exec.command_line import CommandLine
from waypoint.terminal.hooks.run_folder import RunFolder, apart, read_aside
from waypoint.terminal.shell import script
from waypoint.terminal.shell.asked import comes_to_prompt, is_in_a_command
from waypoint.terminal.shell.dump import ShellDump, parse

LIMIT_S = 30.0
_TOLD_BYTES = 1 << 16


def parse_state(origin: Capture, state: KeptShell) -> ShellDump:
    """Parse the shell's state in the capture `origin`. Blocks. Raises StoreDamaged if the state is incomplete or too
    large.
    """
    try:
        return parse(state.data, state.layer.kind, state.history)
    except ValueError as error:
        raise unreadable(origin, str(error)) from error


async def check_shell(line: CommandLine, branch: str, then: ShellDump) -> None:
    """Raise StateConflict if the shell is not at its prompt, CannotCapture if its kind differs from that of `then`."""
    if not await comes_to_prompt(line) or line.watch.shell is None:
        refuse(branch, line.watch.obstacle(line.watch.look()))
    if await is_in_a_command(line):
        refuse(branch, "its shell waits for the rest of a command")
    if line.watch.shell.kind != then.kind:
        said = f"its shell is {line.watch.shell.kind}, but the captured state is of {then.kind}"
        next_step = "restore the whole capture, without --only"
        raise CannotCapture("restore the shell on", f"branch {branch}", said, next_step)


def refuse(branch: str, said: str) -> NoReturn:
    """Raise StateConflict for a shell that is not at its prompt. `said`: the reason, in words."""
    next_step = f"wait until the shell is at its prompt: waypoint attach {branch}"
    raise StateConflict("restore the shell on", f"branch {branch}", said, next_step, code="shell-busy")


async def put_back(
    line: CommandLine, branch: str, now: ShellDump, then: ShellDump, title: str, *, in_turn: bool = False
) -> list[str]:
    """Change the state of the shell on `branch` from `now` to `then`. Return a sentence for each thing that could not
    be changed.

    `title`: words that viewers see, without characters that have a meaning to a shell. `in_turn`: see
    `CommandLine.execute`. Raises Failed if the shell does not complete the script; a part of the state may have changed
    by then.
    """
    made = await asyncio.to_thread(script.compose, now, then, title)
    folder = line.desk.folder
    try:
        await apart(folder, functools.partial(_write, made=made))
        # tty=True, since an exec without a terminal sets variables such as PAGER while its command runs. These would
        # change the restored variables.
        request = ExecRequest(text=made.command, tty=True, timeout_s=LIMIT_S)
        ended = await line.execute(request, Nobody(), Nobody(), in_turn=in_turn)
        told = script.read_told(_read_told(folder))
    except OSError as error:
        raise _failed(branch, error.strerror or str(error)) from error
    finally:
        folder.remove("back")
        folder.remove("history")
        folder.remove("told")
    if told is None:
        raise _failed(branch, str(ended["said"]) or "the shell did not complete the script that restores its state")
    return made.stays + told


def _write(folder: RunFolder, made: script.Script) -> None:
    folder.write("back", made.body)
    folder.write("told", b"\n")  # creates the file for the shell's output: in the spare folder if the disk is full
    if made.history is not None:
        folder.write("history", made.history)


def _read_told(folder: RunFolder) -> str:
    """Return the shell's output while it evaluated the script. "" if the file was removed."""
    try:
        try:
            data = read_aside(folder, "told", _TOLD_BYTES)
        except OSError:
            data = folder.read("told", _TOLD_BYTES)
        return data.decode(errors="backslashreplace")
    except FileNotFoundError:
        return ""


def _failed(branch: str, said: str) -> Failed:
    next_step = f"'waypoint undo -b {branch}' restores the state from before"
    return Failed("restore the shell on", f"branch {branch}", said, next_step)


class Nobody:
    """The client of an exec that Waypoint runs for itself: sends no input and ignores the output."""

    async def receive(self) -> Frame | None:
        await asyncio.Event().wait()
        return None

    async def output(self, data: bytes | memoryview) -> None: ...

    async def errors(self, data: bytes | memoryview) -> None: ...

    async def note(self, facts: dict[str, object]) -> None: ...
