"""Requests to the shell's hooks: write the request file, press the key that the hooks are bound to, and wait for the
mark (an escape sequence in the terminal's output) by which the hooks answer. docs/protocol.md, section 3, lists the
requests.
"""

import asyncio
import termios
from collections.abc import Callable
from dataclasses import dataclass, field

from shellwrap.marks import KEY, Mark
from waypoint.linux.tty import terminals
from waypoint.terminal.hooks.exchange import HookExchange
from waypoint.terminal.hooks.go_fifo import GoFifo
from waypoint.terminal.hooks.prompt import Look
from waypoint.terminal.hooks.run_folder import RunFolder
from waypoint.terminal.hooks.shell_watch import NotAtPrompt, ShellLost, ShellWatch
from waypoint.terminal.keyboard import PREFIXES
from waypoint.terminal.terminal import Terminal

# The shell usually answers the key within a millisecond. If it still waits at its prompt after twice this time, the
# daemon concludes that the shell's hooks were removed.
ANSWER_S = 0.5
# The interval at which `ask_briefly` checks whether the shell waits at its prompt without having answered.
BRIEF_S = 0.05
# How long the hooks may work on an answer. A shell with much state on a busy machine needs this long.
_LONG_S = 1.0
# ^G: bash's readline cancels an incomplete key sequence or a search, and keeps the typed line. zsh would discard the
# line, so ^G is only sent to bash.
_ABORT = b"\x07"
_START = b"\x11"  # ^Q


@dataclass(frozen=True, slots=True)
class Desk:
    """The objects by which the daemon communicates with a session's shell. `ended` completes when the session ends,
    with the shell's exit status, or None if that is unknown. `hung_up` is set when the daemon begins to end the
    session. `can_renew`: whether pid 1 of the session can start a new shell in the place of a killed one.
    """

    terminal: Terminal
    watch: ShellWatch
    folder: RunFolder
    go: GoFifo
    ended: asyncio.Future[int | None]
    can_renew: Callable[[], bool] = lambda: False
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)


async def ask(desk: Desk, talk: HookExchange, operation: str, answers: tuple[str, ...]) -> Mark:
    """Request `operation` (docs/protocol.md, section 3: `req`) from a shell at its prompt. Return the answer: the first
    mark whose kind is in `answers`.

    Presses the key a second time if the shell does not answer the first. Raises ShellLost if it answers neither,
    NotAtPrompt if the shell has ended, OSError if the request cannot be written (disk full).
    """
    for again in (False, True):
        _press(desk, talk, operation, answers, again=again)
        mark = await hear(desk, talk, answers)
        if mark is not None:
            return mark
    raise ShellLost(
        "the session's shell does not answer: Waypoint's hooks were removed from it (bind, unset), or cannot run"
    )


async def ask_briefly(desk: Desk, talk: HookExchange, operation: str, answers: tuple[str, ...]) -> Mark | None:
    """Request `operation` like `ask`, but return None as soon as the shell waits at its prompt without having answered,
    or after `_LONG_S`.

    The caller removes the request file, so that hooks that run too late find no request.
    """
    _press(desk, talk, operation, answers, again=False)
    waited_s = 0.0
    while (mark := await talk.wait(*answers, timeout_s=BRIEF_S)) is None and waited_s < _LONG_S:
        if desk.watch.look() is not Look.BUSY:  # while busy, the shell works on the answer
            return talk.heard(*answers)
        waited_s += BRIEF_S
    return mark


def _press(desk: Desk, talk: HookExchange, operation: str, answers: tuple[str, ...], *, again: bool) -> None:
    if not again:
        talk.forget(*answers)
        desk.folder.write("req", f"{operation} {talk.ident} {talk.nonce}\n".encode("ascii"))
    bash = desk.watch.shell is not None and desk.watch.shell.kind == "bash"
    # ^S may have stopped the terminal's output. ^Q starts the output again, but only with IXON: without IXON, ^Q would
    # be an ordinary key.
    start = _START if terminals.modes(desk.terminal.master).iflag & termios.IXON else b""
    abort = _ABORT if bash and (again or desk.terminal.keyboard.last in PREFIXES) else b""
    desk.terminal.typed.write(start + abort + KEY)


async def hear(desk: Desk, talk: HookExchange, answers: tuple[str, ...]) -> Mark | None:
    """Wait for the first mark whose kind is in `answers`. Return None if the shell waits at its prompt and has not
    answered within twice ANSWER_S. Raises NotAtPrompt if the shell or the terminal no longer exists.
    """
    silent = 0
    while silent < 2:
        mark = await talk.wait(*answers, timeout_s=ANSWER_S)
        if mark is not None:
            return mark
        if not desk.terminal.moving.is_set():
            await desk.terminal.moving.wait()  # a frozen session prints no mark
            continue
        seen = desk.watch.look()
        if seen in (Look.GONE, Look.REPLACED) or desk.terminal.closed.is_set():
            raise NotAtPrompt(desk.watch.obstacle(seen))
        silent = silent + 1 if seen is Look.PROMPT else 0
    return None
