"""Help as plain text, for requests from inside a session. Outside, click lays the help out (cli/help.py)."""

import inspect
import textwrap
from collections.abc import Sequence

from waypoint.model.verbs import Verb
from waypoint.model.verbs.table import first_sentence

_WIDTH = 80
_COLUMN = 28


def of_all(text: str, verbs: Sequence[Verb]) -> str:
    """Return the help that lists `verbs`, with `text` above the list."""
    listed = "".join(_row(verb.name, first_sentence(verb)) for verb in verbs)
    return f"Usage: waypoint COMMAND [ARGS]...\n\n{_indented(text)}\nCommands:\n{listed}"


def of_verb(verb: Verb) -> str:
    listed = "".join(_row(option.usage, option.help) for option in verb.options)
    listed += _row("-h, --help", "Show this message and exit.")
    epilog = f"\n{_indented(verb.epilog)}" if verb.epilog else ""
    text = _indented(inspect.cleandoc(verb.help))
    return f"Usage: {verb.command} {verb.usage}\n\n{text}\nOptions:\n{listed}{epilog}"


def _row(name: str, about: str) -> str:
    first = f"  {name:<{_COLUMN}}"
    lines = textwrap.wrap(about, _WIDTH - _COLUMN - 2) or [""]
    if len(name) >= _COLUMN:
        lines.insert(0, "")
    rest = (" " * (_COLUMN + 2) + line for line in lines[1:])
    return "".join(f"{line}\n" for line in ((first + lines[0]).rstrip(), *rest))


def _indented(text: str) -> str:
    """Return the paragraphs of `text`, filled and indented."""
    filled = (
        textwrap.fill(paragraph, _WIDTH, initial_indent="  ", subsequent_indent="  ")
        for paragraph in text.split("\n\n")
    )
    return "\n\n".join(filled) + "\n"
