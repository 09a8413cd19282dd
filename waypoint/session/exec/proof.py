"""Does a session's shell answer? Asked of one that was just brought up, before anything depends on it."""

import secrets

from waypoint.model.errors import Failed
from waypoint.session.exec.asking import ask
from waypoint.session.exec.command_line import CommandLine
from waypoint.session.exec.conversation import Conversation
from waypoint.session.exec.prompt import Look
from waypoint.session.exec.shell_watch import NotAtPrompt

FIRST_PROMPT_S = 10.0


async def prove(line: CommandLine, *, is_new: bool) -> None:
    """Return once the shell has answered a question, or, if it is busy as it was before, has turned out to live.

    `is_new`: it was just started, and is to draw its first prompt. Raises Failed.
    """
    watch, desk = line.watch, line.desk
    try:
        if is_new:
            await watch.wait_first(FIRST_PROMPT_S)
            await watch.wait_prompt(FIRST_PROMPT_S)
        if watch.shell is None:
            return  # it was captured without one: a program of its own
        seen = watch.look()
        if seen is Look.PROMPT and line.is_idle:
            nonce = secrets.token_hex(8)
            with Conversation(desk.terminal, secrets.token_hex(8), nonce, desk.terminal.ring.end) as talk:
                await ask(desk, talk, "stat", ("T",))
        elif seen is Look.GONE:
            raise NotAtPrompt(watch.obstacle(seen))
    except NotAtPrompt as lost:
        raise Failed("bring back", "the session", f"it does not answer: {lost}", "try again, or --only files") from lost
