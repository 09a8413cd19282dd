"""From the state that a shell has to one that it had: the text that does it, in the shell's own language.

Only what differs is touched. Nothing is run that the shell's state contains: values are literals in the shell's own
quoting (bash gets them without attributes, which would evaluate them, and the attributes afterwards); functions are
defined, traps are set. The body is free of what the person's options, aliases and functions make of words.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.session.shell import bash_script, zsh_script
from waypoint.session.shell.dump import Dump
from waypoint.session.shell.words import DONE, quoted

_TOLD = re.compile(r"^(?:bash|zsh|\(eval\)|[^ :]*sh): ?|^\(eval\):")


class Script(NamedTuple):
    """`body` is to be evaluated by the command line `command`. `stays`: what it cannot bring back, in words."""

    body: bytes
    command: str
    stays: list[str]


def compose(now: Dump, then: Dump, title: str) -> Script:
    """Of two states of the same kind of shell. `title`: what people are shown of it."""
    shell = bash_script if then.kind == "bash" else zsh_script
    stays: list[str] = []
    lines = [line for line in shell.body(now, then, stays)]
    lines.append(b"builtin printf '%s\\n' " + quoted(DONE.encode()) + b" >&2")
    command = "\n".join(_command(title, shell.EVALUATE, shell.options(now, then)))
    return Script(b"\n".join(lines) + b"\n", command, stays)


def _command(title: str, evaluate: str, options: str) -> Iterator[str]:
    yield f"\\builtin : {title}"
    yield "IFS= \\builtin read -r -d '' __wp_t <\"$__wp_d/back\" || \\builtin :"
    yield f'{evaluate} "$__wp_t" 2>|"$__wp_d/told" || \\builtin :'
    yield "__wp_t="
    yield options


def read_told(text: str) -> list[str] | None:
    """What the shell said while it evaluated the body, a line each; None if it did not come to the end."""
    lines = text.splitlines()
    if DONE not in lines:
        return None
    return [re.sub(r"^(?:line )?\d+: ", "", _TOLD.sub("", line)) for line in lines if line != DONE and line.strip()]
