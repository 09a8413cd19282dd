"""The ends of a command line other than the shell's word for it, and what is left to do after the end."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from signal import SIGINT, SIGKILL, Signals

from waypoint.linux import terminals
from waypoint.session.exec.asking import Desk, ask
from waypoint.session.exec.conversation import Conversation
from waypoint.session.exec.prompt import Look
from waypoint.session.exec.record import End, ExecRecord
from waypoint.session.exec.shell_watch import NotAtPrompt

# How long a command may take to end after a signal at its timeout, before the next, harder one.
GRACE_S = 2.0
# How long the end of a session may take to arrive on both ways: the terminal's end, and the shell's exit status.
_ENDING_S = 5.0
# How long the shell may take from E to its prompt (PROMPT_COMMAND) before the next command may try its luck.
_PROMPT_S = 2.0
_LOOK_S = 0.25


async def hear_session_end(desk: Desk, talk: Conversation) -> None:
    """Interrupt `talk` when the terminal or the session has ended."""
    closed = asyncio.ensure_future(desk.terminal.closed.wait())
    try:
        await asyncio.wait((closed, desk.ended), return_when=asyncio.FIRST_COMPLETED)
        talk.interrupt()
    finally:
        closed.cancel()


async def session_end(desk: Desk) -> End:
    """How a command ended that ended the session; all its output has been read."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ENDING_S):
            await asyncio.shield(desk.ended)
            await desk.terminal.closed.wait()
    status = desk.ended.result() if desk.ended.done() else None
    if status is None:
        said = desk.terminal.epitaph or "the session ended, and its exit status is not known"
        return End(125, "waypoint", ended=True, said=said)
    return End(status, ended=True)


async def find_status(desk: Desk, talk: Conversation) -> int:
    """The status of a command that the shell has not told us the end of. Raises NotAtPrompt if it cannot be known."""
    try:
        return int((await ask(desk, talk, "stat", ("T",))).fields[2])
    except NotAtPrompt as lost:
        said = "the command has ended, but took Waypoint's hooks away from the shell: its exit status is not known"
        raise NotAtPrompt(said) from lost


async def enforce_timeout(deadline: float, send: Callable[[Signals], None], begun: Callable[[], None]) -> None:
    """Stop a command that still runs at `deadline` (of CLOCK_BOOTTIME), ever harder; returns if all that was of no
    use.
    """
    while (left_s := deadline - time.clock_gettime(time.CLOCK_BOOTTIME)) > 0:
        await asyncio.sleep(left_s)
    begun()
    for number in (SIGINT, SIGKILL, SIGKILL, SIGKILL):
        send(number)
        await asyncio.sleep(GRACE_S)


def put_modes_back(desk: Desk, record: ExecRecord) -> None:
    """Give the terminal its output processing back, if it had it before the command."""
    if record.output_processing and not record.tty and not desk.terminal.closed.is_set():
        terminals.release_output(desk.terminal.master)


async def wait_prompt_again(desk: Desk, prompts: int, say_again: Callable[[], None]) -> None:
    """Return when the shell has drawn a prompt after its first `prompts`, or takes too long for it."""
    watch = desk.watch
    deadline = time.monotonic() + _PROMPT_S
    while watch.prompts <= prompts and time.monotonic() < deadline and not desk.terminal.closed.is_set():
        if not await watch.wait_change(_LOOK_S):
            if watch.look() is not Look.BUSY:
                return
            say_again()


async def put_half_line_back(desk: Desk, talk: Conversation) -> None:
    """Give the person's half-typed line back. Without success (the shell is gone, busy, deaf) it is lost: not the
    command's fault.
    """
    with contextlib.suppress(NotAtPrompt, OSError):
        await desk.watch.wait_prompt(_PROMPT_S)
        await ask(desk, talk, "rest", ("R",))


async def wait_for_keys(desk: Desk) -> None:
    """If keys were kept back: return when the line editor takes them, or takes too long to. Earlier the terminal
    itself would act on some (^U, ^D).
    """
    with contextlib.suppress(NotAtPrompt):
        if desk.terminal.keyboard.has_held:
            await desk.watch.wait_prompt(_PROMPT_S)


def remove_files(desk: Desk, ident: str) -> None:
    for name in ("req", f"cmd.{ident}", f"in.{ident}"):
        desk.folder.remove(name)
