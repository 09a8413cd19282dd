"""Composes the script that brings a shell from its present state to an earlier one, in the shell's own language.

The script touches only what differs, and runs nothing that the state contains: values are literals in the shell's own
quoting (bash gets a value first and its attributes afterwards, since some attributes evaluate a value); functions are
defined and traps are set. The user's options, aliases and functions do not change what the script's words mean.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.model.late_pattern import late_pattern
from waypoint.terminal.shell import bash_script, zsh_script
from waypoint.terminal.shell.dump import ShellDump
from waypoint.terminal.shell.words import DONE, FIND, READ_BACK, quoted

_TOLD = late_pattern(r"^(?:bash|zsh|\(eval\)|[^ :]*sh): ?|^\(eval\):")  # how a shell begins its messages


class Script(NamedTuple):
    """`body`: the script. `command`: the command line that evaluates it. `stays`: in words, what it cannot restore.
    `history`: the content of the file `history` that the body reads; None if it reads none.
    """

    body: bytes
    command: str
    stays: list[str]
    history: bytes | None


def compose(now: ShellDump, then: ShellDump, title: str) -> Script:
    """The script from state `now` to state `then`, two states of the same kind of shell. `title`: shown to viewers in
    place of the command.
    """
    shell = bash_script if then.kind == "bash" else zsh_script
    stays: list[str] = []
    history = then.history if then.history != now.history else None
    lines = [line for line in shell.body(now, then, stays)]
    if then.args is not None and then.args != now.args:
        lines.append(b" ".join([b"builtin set --", *map(quoted, then.args)]))
    if history is not None:
        lines += [*shell.history(then), b"__wp_hn="]  # the hooks' note of HISTCMD: it may be the same number
    lines.append(b"builtin printf '%s\\n' " + quoted(DONE.encode()) + b" >&2")
    command = "\n".join(_command(title, shell.EVALUATE, shell.options(now, then), then.status))
    return Script(b"\n".join(lines) + b"\n", command, stays, history)


def _command(title: str, evaluate: str, options: str, status: int | None) -> Iterator[str]:
    yield f"\\builtin : {title}"
    yield READ_BACK
    yield FIND.format("told")
    yield f'{evaluate} "$__wp_t" 2>|"$__wp_p" || \\builtin :'
    yield "__wp_t="
    yield options
    if status:
        yield f"{{ (\\builtin exit {status});}}&&\\builtin :"  # runs no ERR trap, and ends no shell with `set -e`


def read_told(text: str) -> list[str] | None:
    """The shell's messages while it evaluated the body, one for each line of `text`; None if the body broke off."""
    lines = text.splitlines()
    if DONE not in lines:
        return None
    return [re.sub(r"^(?:line )?\d+: ", "", _TOLD.sub("", line)) for line in lines if line != DONE and line.strip()]
