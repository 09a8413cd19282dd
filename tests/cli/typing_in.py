"""Commands that ask on a terminal."""

from collections.abc import Iterable

import pexpect

from tests.homes import Home
from tests.waiting import PATIENCE_S


def typed(home: Home, *words: str, answers: Iterable[str]) -> tuple[int | None, str]:
    """Run a command on a terminal, and type an answer at each of its questions. Returns the exit status, and all that
    the terminal showed.
    """
    program, *rest = home.argv(*words)
    with pexpect.spawn(program, rest, env=home.env, timeout=PATIENCE_S, encoding="utf-8") as terminal:
        shown = ""
        for answer in answers:
            terminal.expect(["Passphrase: ", "once more: "])
            shown += terminal.before
            terminal.sendline(answer)
        terminal.expect(pexpect.EOF)
        shown += terminal.before
    return terminal.exitstatus, shown
