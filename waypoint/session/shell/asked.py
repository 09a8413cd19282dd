"""Asking the session's shell to write down its state, for a capture that is about to be taken."""

import asyncio
import contextlib
import secrets
import termios
from dataclasses import dataclass
from typing import Literal

from waypoint.linux import terminals
from waypoint.model.records import ShellLayer
from waypoint.session.exec.asking import BRIEF_S, ask_briefly
from waypoint.session.exec.command_line import CommandLine
from waypoint.session.exec.conversation import Conversation
from waypoint.session.exec.prompt import Look, has_foreground
from waypoint.session.exec.shell_watch import NotAtPrompt

STATE_FILE = "state"
MAX_BYTES = 16 << 20
# What a shell is given for its way from the end of a command to its prompt (PROMPT_COMMAND).
SETTLE_S = 0.25


@dataclass(frozen=True, slots=True)
class Asked:
    """The state is in the session's /run/waypoint, as of the shell's prompt number `prompts`."""

    layer: ShellLayer
    prompts: int


async def ask_state(line: CommandLine) -> Asked | None:
    """Have the shell write its state down; None, soon, if it is busy, deaf or cannot. Never raises for that.

    What an earlier call has left is gone in any case.
    """
    folder, watch = line.desk.folder, line.watch
    folder.remove(STATE_FILE)
    if not await comes_to_prompt(line) or watch.shell is None:
        return None
    kind: Literal["bash", "zsh"] = "zsh" if watch.shell.kind == "zsh" else "bash"
    name = f"{STATE_FILE}.{secrets.token_hex(8)}"
    async with line.turn:
        prompts = watch.prompts
        try:
            folder.write(name, b"")  # without it the shell writes nothing: neither too late, nor with modes of its own
            if not await _ask(line, name.partition(".")[2]):
                return None
            size = folder.size(name)
            folder.rename(name, STATE_FILE)
        except OSError:  # no room
            return None
        finally:
            folder.remove("req")
            folder.remove(name)
    return Asked(ShellLayer(size_bytes=size, kind=kind), prompts) if size <= MAX_BYTES else None


async def comes_to_prompt(line: CommandLine) -> bool:
    """True if the shell is at its prompt with no command in flight, or comes to it at once: it does so after a command
    whose client knows of the end already. False, soon, if it is busy.
    """
    watch = line.watch
    if not line.is_idle and line.is_ending:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await line.wait_idle()
    if not line.is_idle or watch.shell is None or watch.shell.kind == "none":
        return False
    if watch.look() is Look.BUSY and has_foreground(line.desk.terminal.master, watch.shell):
        with contextlib.suppress(NotAtPrompt):
            await watch.wait_prompt(BRIEF_S)
    return watch.look() is Look.PROMPT


async def _ask(line: CommandLine, ident: str) -> bool:
    desk = line.desk
    with Conversation(desk.terminal, ident, secrets.token_hex(8), desk.terminal.ring.end) as talk:
        mark = await ask_briefly(desk, talk, "state", ("K", "B"))
    return mark is not None and mark.kind == "K" and mark.fields[2] == "ok"


def still_holds(line: CommandLine, asked: Asked) -> bool:
    """True if the shell has run nothing since. To be asked when the session stands still and its terminal is empty."""
    reads_keys = not terminals.modes(line.desk.terminal.master).lflag & termios.ICANON
    return reads_keys and line.is_idle and line.watch.prompts == asked.prompts
