"""Composes the script that changes a shell's present state to an earlier state, in the shell's own language.

The script changes only what differs, and runs no code from the state: values are quoted (bash gets a value first and
its attributes afterwards, since some attributes evaluate a value), functions are only defined, and traps are only set.
The script works under any options, aliases and functions of the user.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.terminal.shell import bash_script, zsh_script
from waypoint.terminal.shell.dump import ShellDump
from waypoint.terminal.shell.words import DONE, FIND, READ_BACK, quoted

_TOLD = re.compile(r"^(?:bash|zsh|\(eval\)|[^ :]*sh): ?|^\(eval\):")  # the beginning of a shell's messages


class Script(NamedTuple):
    """`body`: the script. `command`: the command line that evaluates the body. `stays`: a sentence for each thing that
    the script cannot restore. `history`: the content of the file `history` that the body reads; None if the body does
    not change the history.
    """

    body: bytes
    command: str
    stays: list[str]
    history: bytes | None


def compose(now: ShellDump, then: ShellDump, title: str) -> Script:
    """Compose the script that changes the state `now` to the state `then`; both must be of the same kind of shell.
    `title`: the text that viewers see instead of the command.
    """
    shell = bash_script if then.kind == "bash" else zsh_script
    stays: list[str] = []
    history = then.history if then.history != now.history else None
    lines = [line for line in shell.body(now, then, stays)]
    if then.args is not None and then.args != now.args:
        lines.append(b" ".join([b"builtin set --", *map(quoted, then.args)]))
    if history is not None:
        # The hooks remember HISTCMD in __wp_hn to notice new history. The new history may end with the same number.
        lines += [*shell.history(then), b"__wp_hn="]
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
        # Sets $? without running an ERR trap, and without ending a shell with `set -e`.
        yield f"{{ (\\builtin exit {status});}}&&\\builtin :"


def read_told(text: str) -> list[str] | None:
    """Return the shell's messages in `text`, its output while it evaluated the body. None if the body did not run to
    its end.
    """
    lines = text.splitlines()
    if DONE not in lines:
        return None
    return [re.sub(r"^(?:line )?\d+: ", "", _TOLD.sub("", line)) for line in lines if line != DONE and line.strip()]
