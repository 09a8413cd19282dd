"""Handles the end of a command that the shell does not report (timeout, end of the session, removed hooks), and the
steps after every command's end.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from signal import SIGINT, SIGKILL, SIGTERM, Signals

from shellwrap.marks import Mark
from waypoint.capture.layers.shell import MAX_BYTES, last_states
from waypoint.linux.tty import terminals
from waypoint.terminal.exec.command_record import End, ExecRecord
from waypoint.terminal.hooks.asking import Desk, ask
from waypoint.terminal.hooks.exchange import HookExchange
from waypoint.terminal.hooks.prompt import Look
from waypoint.terminal.hooks.run_folder import RunFolder, read_aside
from waypoint.terminal.hooks.shell_watch import NotAtPrompt, ShellLost

# The signals that a command gets at its timeout, in this order. After each signal, the next is sent that many seconds
# after the timeout. Time in which the session is frozen for a capture does not count; that time is measured in steps of
# _STEP_S. SIGINT stops most commands and lets them clean up. SIGTERM stops editors, which then restore the terminal's
# modes. A list of commands in a shell that ignores SIGINT continues with its next command after the first SIGKILL, so a
# second SIGKILL follows. At the end the shell itself is killed and replaced (lost_shell.py), until MARGIN_S. While
# the shell still acts on the last signal, no other is sent until _ACTING_S after the timeout.
STOPS = ((SIGINT, 0.2), (SIGTERM, 0.34), (SIGKILL, 0.4), (SIGKILL, 0.46))
MARGIN_S = 0.5
REPORT_S = 0.48
"""So many seconds after its timeout, the end of a command is reported in any case."""
_STEP_S = 0.05
_ACTING_S = 4.0
_LOOK_AGAIN_S = 0.01
_STATUS_DIGITS = 10
# How many seconds to wait for the terminal's end and the shell's exit status when a session ends.
_ENDING_S = 5.0
# How many seconds the shell gets from the mark E to its prompt (PROMPT_COMMAND runs in this time). After that, the next
# command is tried anyway.
_PROMPT_S = 2.0
_LOOK_S = 0.25
# How many seconds a new shell gets until its prompt (the user's startup files run in this time), and the interval at
# which the shell is checked.
NEW_SHELL_S = 5.0
_NEW_SHELL_LOOK_S = 0.01


async def hear_session_end(desk: Desk, talk: HookExchange) -> None:
    """Wait until the terminal or the session has ended, then call `talk.interrupt`."""
    closed = asyncio.ensure_future(desk.terminal.closed.wait())
    try:
        await asyncio.wait((closed, desk.ended), return_when=asyncio.FIRST_COMPLETED)
        talk.interrupt()
    finally:
        closed.cancel()


async def session_end(desk: Desk) -> End:
    """Return the End of a command that ended the session, when all of the command's output was read, or after
    `_ENDING_S`.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ENDING_S):
            await asyncio.shield(desk.ended)
            await desk.terminal.closed.wait()
    status = desk.ended.result() if desk.ended.done() else None
    if status is None:
        said = desk.terminal.epitaph or "the session ended, and its exit status is not known"
        return End(125, "waypoint", ended=True, said=said, code="session-ended")
    return End(status, ended=True)


async def find_status(desk: Desk, talk: HookExchange) -> int:
    """Ask the shell for the exit status of a command whose end it did not report. Raises ShellLost if the shell does
    not answer.
    """
    try:
        return status_in(await ask(desk, talk, "stat", ("T",)))
    except ShellLost as lost:
        said = "the command has ended but removed Waypoint's hooks from the shell, so its exit status is not known"
        raise ShellLost(said) from lost


def status_in(mark: Mark) -> int:
    """Return the exit status in a mark E or T. 125 if the field has none: a user may have changed the hooks."""
    text = mark.fields[2] if len(mark.fields) > 2 else ""
    return int(text) if text.isdecimal() and len(text) <= _STATUS_DIGITS else 125


async def wait_deadline(deadline: float) -> None:
    """Wait until `deadline` (CLOCK_BOOTTIME, seconds)."""
    while (left_s := deadline - time.clock_gettime(time.CLOCK_BOOTTIME)) > 0:
        await asyncio.sleep(left_s)


async def stop_command(
    moving: asyncio.Event, stop: Callable[[Signals], Awaitable[None]], is_acting: Callable[[], bool] = lambda: False
) -> None:
    """`stop` the command at its timeout with the signals of STOPS. The caller cancels this when the command ends.
    Returns after the last moment of STOPS if no signal has ended the command.

    `moving`: cleared while the session is frozen for a capture. No signal is sent in this time: the command could not
    act on SIGINT before SIGKILL ends it, and its end would make the capture fail. `is_acting`: whether the shell still
    acts on the last signal. Meanwhile no other signal is sent, since it would interrupt the shell on its way to the
    prompt.
    """
    await moving.wait()
    begun = time.monotonic()
    for number, until_s in STOPS:
        await stop(number)
        begun += await wait_moment(begun + until_s, moving)
        while is_acting() and time.monotonic() < begun + _ACTING_S:
            begun += await wait_moment(time.monotonic() + _LOOK_AGAIN_S, moving)


async def wait_moment(moment: float, moving: asyncio.Event) -> float:
    """Wait until `moment` (of time.monotonic), and longer by the time in which the session is frozen for a capture.
    Return that time in seconds. `moving`: cleared while the session is frozen.
    """
    late_s = 0.0
    while (left_s := moment + late_s - time.monotonic()) > 0:
        await asyncio.sleep(min(left_s, _STEP_S))
        if not moving.is_set():
            still_from = time.monotonic()
            await moving.wait()
            late_s += time.monotonic() - still_from
    return late_s


def put_modes_back(desk: Desk, record: ExecRecord) -> None:
    """Turn the terminal's output processing (OPOST) on again if it was on before the command."""
    if record.output_processing and not record.tty and not desk.terminal.closed.is_set():
        terminals.release_output(desk.terminal.master)


async def wait_prompt_again(desk: Desk, prompts: int, say_again: Callable[[], None]) -> None:
    """Return when the shell has printed more than `prompts` prompts or is no longer busy, or after `_PROMPT_S`. Until
    then call `say_again` from time to time, since the shell may have missed the line in `go` that lets it continue.
    """
    watch = desk.watch
    deadline = time.monotonic() + _PROMPT_S
    while watch.prompts <= prompts and time.monotonic() < deadline and not desk.terminal.closed.is_set():
        if not await watch.wait_change(_LOOK_S):
            if watch.look() is not Look.BUSY:
                return
            say_again()


def has_left_state(folder: RunFolder) -> bool:
    """Return True if a shell that has ended has left a complete state in the folder, for the new shell. Blocks."""
    states = last_states(lambda name: read_aside(folder, name, MAX_BYTES)) or last_states(
        lambda name: folder.read(name, MAX_BYTES)
    )
    return bool(states) and states[-1] is not None


async def wait_new_shell(desk: Desk) -> None:
    """Return when the shell that replaces an ended shell is at its prompt, or after `NEW_SHELL_S`."""
    watch, deadline = desk.watch, time.monotonic() + NEW_SHELL_S
    while watch.look() is not Look.PROMPT and time.monotonic() < deadline and not desk.terminal.closed.is_set():
        await watch.wait_change(_NEW_SHELL_LOOK_S)


async def put_half_line_back(desk: Desk, talk: HookExchange) -> None:
    """Let the shell restore the line that a person had partly typed before the command. If the shell has ended, is busy
    or does not answer, the line is lost. This raises no error, since the command itself has not failed.
    """
    with contextlib.suppress(NotAtPrompt, OSError):
        await desk.watch.wait_prompt(_PROMPT_S)
        await ask(desk, talk, "rest", ("R",))


async def wait_for_keys(desk: Desk) -> None:
    """If keystrokes are held back, wait until the shell's line editor reads keys, at most `_PROMPT_S`. Before that, the
    terminal's line discipline would act on some keys (^U, ^D).
    """
    with contextlib.suppress(NotAtPrompt):
        if desk.terminal.keyboard.has_held:
            await desk.watch.wait_prompt(_PROMPT_S)


def remove_files(desk: Desk, ident: str) -> None:
    """Remove the files of command `ident` from the session's folder."""
    for name in ("req", f"cmd.{ident}", f"in.{ident}"):
        desk.folder.remove(name)


def clear_folder(folder: RunFolder) -> None:
    """Remove the files of all commands from the folder of a session that has ended, before the session's files are
    captured. A command that was running at the session's end has not removed its files, and the capture must not
    contain the command's text. Slow if the session has created many files there.
    """
    with contextlib.suppress(OSError):  # the session's user has removed the folder
        for name in folder.names():
            if name == "req" or name.startswith(("cmd.", "in.")):
                folder.remove(name)
