"""The check that a session which was just started or restored works: its shell must answer."""

from waypoint.model.errors import Failed
from waypoint.model.ids import random_hex
from waypoint.terminal.exec.command_line import CommandLine
from waypoint.terminal.hooks.asking import ask
from waypoint.terminal.hooks.exchange import HookExchange
from waypoint.terminal.hooks.prompt import Look
from waypoint.terminal.hooks.shell_watch import NotAtPrompt

PROOF_S = 10.0  # how many seconds a new shell may take to draw its first prompt


async def prove(line: CommandLine, *, is_new: bool, must_answer: bool) -> None:
    """Return once the session's shell has answered a question. A shell that is busy, or that need not answer
    (`must_answer`), need only be alive.

    `is_new`: the shell was just started, so its first prompt is waited for. A session without a shell of its own (one
    that runs a single program) passes. Raises Failed if the shell does not answer or has ended.
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
                await ask(desk, talk, "stat", ("T",))
        elif seen is Look.GONE:
            raise NotAtPrompt(watch.obstacle(seen))
    except NotAtPrompt as lost:
        said = f"its shell does not answer: {lost}"
        raise Failed("bring back", "the session", said, "try again") from lost
