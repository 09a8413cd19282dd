"""Checks that a session works after it was started or restored: its shell must answer a request."""

import asyncio

from waypoint.model.errors import Failed
from waypoint.model.ids import random_hex
from waypoint.terminal.exec.command_line import CommandLine
from waypoint.terminal.hooks.asking import Desk, ask
from waypoint.terminal.hooks.exchange import HookExchange
from waypoint.terminal.hooks.prompt import Look, has_foreground
from waypoint.terminal.hooks.shell_watch import NotAtPrompt

PROOF_S = 10.0  # how many seconds a new shell may take until its first prompt


async def prove(line: CommandLine, *, is_new: bool, must_answer: bool) -> None:
    """Return when the session's shell has answered a request. A shell that is busy, or any shell if `must_answer` is
    False, only has to exist. The same holds for a shell that runs a command, typed before, instead of answering.
    A session that runs a single program and no shell passes.

    `is_new`: the shell was just started, so first wait for its first prompt. Raises Failed if the shell does not answer
    or has ended.
    """
    watch, desk = line.watch, line.desk
    try:
        if is_new:
            await watch.wait_first(PROOF_S)
            await watch.wait_prompt(PROOF_S)
        if watch.shell is None:
            return  # the session was captured without a shell: it runs a single program
        seen = watch.look()
        if must_answer and seen is Look.PROMPT and line.is_idle:
            nonce = random_hex(8)
            with HookExchange(desk.terminal, random_hex(8), nonce, desk.terminal.ring.end) as talk:
                await _ask(desk, talk)
        elif seen is Look.GONE:
            raise NotAtPrompt(watch.obstacle(seen))
    except NotAtPrompt as lost:
        said = f"its shell does not answer: {lost}"
        raise Failed("start", "the session", said, "try again") from lost


async def _ask(desk: Desk, talk: HookExchange) -> None:
    """Let the shell answer a request. Raises NotAtPrompt after PROOF_S, unless the shell runs a command then."""
    try:
        async with asyncio.timeout(PROOF_S):
            await ask(desk, talk, "stat", ("T",))
    except TimeoutError:
        seen, shell = desk.watch.look(), desk.watch.shell
        if seen is not Look.BUSY or shell is None or has_foreground(desk.terminal.master, shell):
            raise NotAtPrompt(f"no answer within {PROOF_S:.0f} s: {desk.watch.obstacle(seen)}") from None
    finally:
        desk.folder.remove("req")
