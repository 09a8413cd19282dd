"""Requests the session's shell to write its state into a file, for a capture that is about to be taken."""

import asyncio
import contextlib
import termios
import time
from dataclasses import dataclass
from typing import Literal

from shellwrap.marks import Mark
from waypoint.capture.layers.shell import END, MAX_BYTES, STATE_FILE
from waypoint.linux.tty import terminals
from waypoint.model.ids import random_hex
from waypoint.model.records import ShellLayer
from waypoint.terminal import standstill
from waypoint.terminal.exec.command_line import FIRST_PROMPT_S, CommandLine
from waypoint.terminal.exec.ending import status_in
from waypoint.terminal.hooks.asking import BRIEF_S, ask_briefly
from waypoint.terminal.hooks.exchange import HookExchange
from waypoint.terminal.hooks.prompt import Look, has_foreground
from waypoint.terminal.hooks.run_folder import RunFolder
from waypoint.terminal.hooks.shell_watch import NotAtPrompt

# How many seconds to wait for a shell from the end of a command to its prompt, and from its prompt until it reads keys.
# PROMPT_COMMAND, which may run git and other programs, runs in this time.
SETTLE_S = 2.0
_DAEMON = random_hex(4)  # part of this daemon's file names, to tell them from the files of an earlier daemon
CONTINUED = "2"  # in the answer to the request `stat`: the shell is at the prompt of a continuation line (PS2)


@dataclass(frozen=True, slots=True)
class Asked:
    """The state that the shell has written into the session's /run/waypoint. `prompts`: how many prompts the shell had
    printed when the state was requested.
    """

    layer: ShellLayer
    prompts: int


async def ask_state(line: CommandLine) -> Asked | None:
    """Let the shell write its state. Remove the file of an earlier call first.

    Return None, after a short wait, if the shell is busy, does not answer or cannot write the file.
    """
    folder, watch = line.desk.folder, line.watch
    folder.remove(STATE_FILE)
    if not await comes_to_prompt(line) or watch.shell is None:
        return None
    kind: Literal["bash", "zsh"] = "zsh" if watch.shell.kind == "zsh" else "bash"
    name = f"{STATE_FILE}.{_DAEMON}{random_hex(8)}"
    async with line.turn:
        prompts = watch.prompts
        try:
            # The shell only writes into a file that exists, so a shell that answers too late, after the file's removal,
            # writes nothing. The file keeps the mode that it gets here.
            folder.write(name, b"")
            if not await _ask(line, name.partition(".")[2]):
                return None
            folder.rename(name, STATE_FILE)
            size = folder.size(STATE_FILE)
            if folder.read(STATE_FILE, len(END), max(0, size - len(END))) != END:
                folder.remove(STATE_FILE)  # incomplete; hooks in a capture of an older version write such files
                return None
        except OSError:  # the disk is full
            return None
        finally:
            folder.remove("req")
            folder.remove(name)
    return Asked(ShellLayer(size_bytes=size, kind=kind), prompts) if size <= MAX_BYTES else None


def clear_unread(folder: RunFolder) -> None:
    """Remove the state files that shells have written for an earlier daemon, which was killed before it read them. The
    session can make this slow by creating very many names, so call this in a thread for which nothing else waits.
    """
    with contextlib.suppress(OSError):  # the session's user has removed the folder
        for name in folder.names():
            if name.startswith(f"{STATE_FILE}.") and not name.startswith(f"{STATE_FILE}.{_DAEMON}"):
                folder.remove(name)


async def comes_to_prompt(line: CommandLine) -> bool:
    """Return True if the shell is at its prompt and no command of Waypoint is running, False if the shell is busy.

    Waits a short time for the prompt: a client may be informed that its command has ended, or that its session has
    started, before the shell has printed the prompt.
    """
    watch = line.watch
    if watch.shell is None and (left_s := line.first_prompt_by - time.time()) > 0:
        await line.wait_ready(min(left_s, FIRST_PROMPT_S))
    if not line.is_idle and line.is_ending:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await line.wait_idle()
    if not line.is_idle or watch.shell is None or watch.shell.kind == "none":
        return False
    if watch.look() is Look.BUSY and has_foreground(line.desk.terminal.master, watch.shell):
        with contextlib.suppress(NotAtPrompt):
            await watch.wait_prompt(max(BRIEF_S, SETTLE_S - watch.since_prompt_s()))
    return watch.look() is Look.PROMPT


async def is_in_a_command(line: CommandLine) -> bool:
    """Return True if the shell's prompt is that of a continuation line: the shell waits for the rest of a command.
    Return False also if the shell does not answer.
    """
    mark = await _look(line)
    return mark is not None and mark.fields[3:4] == (CONTINUED,)


async def last_status(line: CommandLine) -> int:
    """Return the status of the shell's last command ($?). 0 if the shell is not at its prompt or does not answer."""
    mark = await _look(line) if await comes_to_prompt(line) else None
    return status_in(mark) & 0xFF if mark is not None else 0


async def _look(line: CommandLine) -> Mark | None:
    """Return the shell's answer to the request `stat`, or None if the shell does not answer."""
    desk = line.desk
    async with line.turn:
        try:
            with HookExchange(desk.terminal, random_hex(8), random_hex(8), desk.terminal.ring.end) as talk:
                return await ask_briefly(desk, talk, "stat", ("T",))
        except OSError:  # the disk is full
            return None
        finally:
            desk.folder.remove("req")


async def _ask(line: CommandLine, ident: str) -> bool:
    desk = line.desk
    with HookExchange(desk.terminal, ident, random_hex(8), desk.terminal.ring.end) as talk:
        mark = await ask_briefly(desk, talk, "state", ("K", "B"))
    return mark is not None and mark.kind == "K" and mark.fields[2:3] == ("ok",)


def still_holds(line: CommandLine, asked: Asked) -> bool:
    """Return True if the shell has run nothing since `ask_state` returned `asked`. Call this while the session is
    frozen and the output in its terminal has been read. May be called in any thread.
    """
    reads_keys = not terminals.modes(line.desk.terminal.master).lflag & termios.ICANON
    is_unchanged = line.watch.prompts == asked.prompts and not standstill.has_printed_prompt(line.desk.terminal)
    return reads_keys and line.is_idle and is_unchanged
