"""Giving a live session's shell a captured state: one that this shell had, or another shell of the same kind."""

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
    """Parse the shell's state in the capture `origin`. Raises StoreDamaged if the state is not complete or too large.
    Blocks.
    """
    try:
        return parse(state.data, state.layer.kind, state.history)
    except ValueError as error:
        raise unreadable(origin, str(error)) from error


async def check_shell(line: CommandLine, branch: str, then: ShellDump) -> None:
    """Raise StateConflict if the shell cannot be asked now, CannotCapture if its kind is not that of `then`."""
    if not await comes_to_prompt(line) or line.watch.shell is None:
        refuse(branch, line.watch.obstacle(line.watch.look()))
    if await is_in_a_command(line):
        refuse(branch, "its shell waits for the rest of a command")
    if line.watch.shell.kind != then.kind:
        said = f"its shell is a {line.watch.shell.kind}, the state is that of a {then.kind}"
        raise CannotCapture("restore the shell on", f"branch {branch}", said, "restore all of it")


def refuse(branch: str, said: str) -> NoReturn:
    """Raise the StateConflict for a shell that cannot be asked now. `said`: why not, in words."""
    next_step = f"let the shell come to its prompt: waypoint attach {branch}"
    raise StateConflict("restore the shell on", f"branch {branch}", said, next_step)


async def put_back(
    line: CommandLine, branch: str, now: ShellDump, then: ShellDump, title: str, *, in_turn: bool = False
) -> list[str]:
    """Bring the shell on `branch` from its state `now` to the state `then`. Returns, in words, what could not be
    changed.

    `title`: words that are shown to viewers, without anything that means something to a shell. `in_turn`: as for
    `CommandLine.execute`. Raises Failed if the
    shell breaks off; a part of the state may have changed by then.
    """
    made = await asyncio.to_thread(script.compose, now, then, title)
    folder = line.desk.folder
    try:
        await apart(folder, functools.partial(_write, made=made))
        # With a terminal (tty): a plain exec sets variables such as PAGER while its command runs, which would mix with
        # the variables that are restored.
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
        raise _failed(branch, str(ended["said"]) or "the shell broke off in the midst of it")
    return made.stays + told


def _write(folder: RunFolder, made: script.Script) -> None:
    folder.write("back", made.body)
    folder.write("told", b"\n")  # so that it is where there is room
    if made.history is not None:
        folder.write("history", made.history)


def _read_told(folder: RunFolder) -> str:
    """What the shell has printed while it evaluated the script; "" if it has not begun to."""
    try:
        try:
            data = read_aside(folder, "told", _TOLD_BYTES)
        except OSError:
            data = folder.read("told", _TOLD_BYTES)
        return data.decode(errors="backslashreplace")
    except FileNotFoundError:
        return ""


def _failed(branch: str, said: str) -> Failed:
    next_step = f"'waypoint undo -b {branch}' brings back what was before"
    return Failed("restore the shell on", f"branch {branch}", said, next_step)


class Nobody:
    """The client of an exec that nobody watches."""

    async def receive(self) -> Frame | None:
        await asyncio.Event().wait()
        return None

    async def output(self, data: bytes | memoryview) -> None: ...

    async def errors(self, data: bytes | memoryview) -> None: ...

    async def note(self, facts: dict[str, object]) -> None: ...
