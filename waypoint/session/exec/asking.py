"""Pressing the key that the hooks listen to, and getting an answer."""

import asyncio
import termios
from collections.abc import Callable
from dataclasses import dataclass

from shellwrap.marks import KEY, Mark
from waypoint.linux import terminals
from waypoint.session.exec.conversation import Conversation
from waypoint.session.exec.go_fifo import GoFifo
from waypoint.session.exec.prompt import Look
from waypoint.session.exec.record import ExecRecord
from waypoint.session.exec.run_folder import RunFolder
from waypoint.session.exec.shell_watch import NotAtPrompt, ShellWatch
from waypoint.session.terminal.keyboard import PREFIXES
from waypoint.session.terminal.terminal import Terminal

# The shell answers the key within a millisecond; it is taken for deaf when it still sits at its prompt after twice
# this time.
ANSWER_S = 0.5
# The same for what can be done without.
BRIEF_S = 0.05
# What the hooks do at the key can take so long, in a shell with very much state on a busy machine.
_LONG_S = 1.0
# ^G: readline drops a half-typed key or a search and keeps the line. In zsh it would drop the line.
_ABORT = b"\x07"
_START = b"\x11"


@dataclass(frozen=True, slots=True)
class Desk:
    """What all commands of a session work with. `ended`: the shell's exit status, once the session has ended (None:
    not known).
    """

    terminal: Terminal
    watch: ShellWatch
    folder: RunFolder
    go: GoFifo
    ended: asyncio.Future[int | None]
    save: Callable[[ExecRecord], None]


async def ask(desk: Desk, talk: Conversation, operation: str, answers: tuple[str, ...]) -> Mark:
    """Ask the shell, which sits at its prompt, for `operation`; its answer, one of the marks `answers`.

    Raises NotAtPrompt if it does not answer, OSError if the request cannot be written (disk full).
    """
    for again in (False, True):
        _press(desk, talk, operation, answers, again=again)
        mark = await hear(desk, talk, answers)
        if mark is not None:
            return mark
    raise NotAtPrompt(
        "the session's shell does not answer: Waypoint's hooks were removed from it (bind, unset), or cannot act"
    )


async def ask_briefly(desk: Desk, talk: Conversation, operation: str, answers: tuple[str, ...]) -> Mark | None:
    """As `ask`, for what can be done without: None as soon as the shell sits at its prompt and has not answered.

    The caller removes the request, so that an answer which comes too late finds none. Raises OSError as `ask`.
    """
    _press(desk, talk, operation, answers, again=False)
    waited_s = 0.0
    while (mark := await talk.wait(*answers, timeout_s=BRIEF_S)) is None and waited_s < _LONG_S:
        if desk.watch.look() is not Look.BUSY:  # it works on the answer
            return talk.heard(*answers)
        waited_s += BRIEF_S
    return mark


def _press(desk: Desk, talk: Conversation, operation: str, answers: tuple[str, ...], *, again: bool) -> None:
    if not again:
        talk.forget(*answers)
        desk.folder.write("req", f"{operation} {talk.ident} {talk.nonce}\n".encode("ascii"))
    bash = desk.watch.shell is not None and desk.watch.shell.kind == "bash"
    # ^S may have stopped the terminal's output. Where that means something ^Q undoes it; else it would be a key.
    start = _START if terminals.modes(desk.terminal.master).iflag & termios.IXON else b""
    abort = _ABORT if bash and (again or desk.terminal.keyboard.last in PREFIXES) else b""
    desk.terminal.typed.write(start + abort + KEY)


async def hear(desk: Desk, talk: Conversation, answers: tuple[str, ...]) -> Mark | None:
    """The first of the marks `answers`; None if the shell sits at its prompt and has said nothing. Raises NotAtPrompt
    if it is gone.
    """
    silent = 0
    while silent < 2:
        mark = await talk.wait(*answers, timeout_s=ANSWER_S)
        if mark is not None:
            return mark
        seen = desk.watch.look()
        if seen in (Look.GONE, Look.REPLACED) or desk.terminal.closed.is_set():
            raise NotAtPrompt(desk.watch.obstacle(seen))
        silent = silent + 1 if seen is Look.PROMPT else 0
    return None
