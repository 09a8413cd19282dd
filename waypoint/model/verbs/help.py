"""Help as plain text, made from the table of verbs, for where there is no click: inside sessions."""

import inspect
import textwrap
from collections.abc import Collection, Sequence

from waypoint.model.verbs import Option, Verb
from waypoint.model.verbs.table import first_sentence

_WIDTH = 80
_COLUMN = 28


def of_all(text: str, verbs: Sequence[Verb]) -> str:
    """The help that lists `verbs`, with `text` above the list."""
    rows = [(verb.name, first_sentence(verb)) for verb in verbs]
    listed = "".join(_row(name, about) for name, about in rows)
    return f"Usage: waypoint COMMAND [ARGS]...\n\n{_indented(text)}\nCommands:\n{listed}"


def of_verb(verb: Verb, flags: Collection[str]) -> str:
    """The help of one verb, with those of its options that have a spelling in `flags`."""
    options = [option for option in verb.options if any(flag in flags for flag in option.flags)]
    usage = ["Usage: waypoint", verb.name, "[OPTIONS]", *(argument.usage for argument in verb.arguments)]
    listed = "".join(_row(_spelled(option), option.help) for option in options)
    listed += _row("-h, --help", "Show this message and exit.")
    epilog = f"\n{_indented(verb.epilog)}" if verb.epilog else ""
    return f"{' '.join(usage)}\n\n{_indented(inspect.cleandoc(verb.help))}\nOptions:\n{listed}{epilog}"


def _spelled(option: Option) -> str:
    value = f"[{'|'.join(option.choices)}]" if option.choices else option.metavar
    return f"{', '.join(option.flags)} {value}".rstrip()


def _row(name: str, about: str) -> str:
    first = f"  {name:<{_COLUMN}}"
    lines = textwrap.wrap(about, _WIDTH - _COLUMN - 2) or [""]
    if len(name) >= _COLUMN:
        lines.insert(0, "")
    rest = (" " * (_COLUMN + 2) + line for line in lines[1:])
    return "".join(f"{line}\n" for line in ((first + lines[0]).rstrip(), *rest))


def _indented(text: str) -> str:
    """The paragraphs of `text`, filled and indented."""
    filled = (
        textwrap.fill(paragraph, _WIDTH, initial_indent="  ", subsequent_indent="  ")
        for paragraph in text.split("\n\n")
    )
    return "\n\n".join(filled) + "\n"
