"""The parser for a shell's state in the form in which the shell's hooks write it (docs/protocol.md, section 3)."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from waypoint.capture.layers.shell import LAST_RECORD
from waypoint.terminal.shell import printed

ShellKind = Literal["bash", "zsh"]

_BASH_VARIABLE = re.compile(rb"declare -([-A-Za-z]+) ([A-Za-z_][A-Za-z0-9_]*)((?:=.*)?)", re.DOTALL)
_ZSH_VARIABLE = re.compile(
    rb"((?:typeset|export|readonly)((?: -\w+(?: \d+)?)*) ([A-Za-z_]\w*)(?: (\w+))?)(?:=(.*))?", re.DOTALL
)
_ESCAPE = re.compile(rb"\\[\\0]")
_LIMIT = {
    "bash": re.compile(rb".*-(\w)\) +(unlimited|\d{1,20})"),
    "zsh": re.compile(rb"-(\w): .* (unlimited|\d{1,20})"),
}
_MOST_OF_LINE = 200  # characters of a line about a limit: the time for a match grows with the square of the length
_MOST_OF_OPTIONS = 1 << 14
MOST_ENTRIES = 20_000
"""The limit for variables, functions and other entries of a state. Any program of the session may write a state file,
and each entry costs the daemon, and the shell that is given the state, some microseconds.
"""

_RECORD = 4  # fields of a record, each ended by a NUL


class Entry(NamedTuple):
    """The attributes of one variable or function, and its value or text. Both have the form that the shell prints."""

    attributes: bytes
    text: bytes


@dataclass(slots=True)
class ShellDump:
    """A shell's state. `options`: the options that are on (for bash: those of `set -o`). `shopts`: bash's `shopt`
    options that are on. `folders`: the working directory, then the rest of the directory stack. `args`: the positional
    parameters. `history`: the content of the history file. `status`: the status of the last command ($?). None means
    unknown. `unclear`: the names of variables whose text does not tell their value; this text is never evaluated.
    `traps`: quoted commands by the names of the signals; the command is None if it is unclear.
    """

    kind: ShellKind
    options: set[str] = field(default_factory=set)
    shopts: set[str] = field(default_factory=set)
    folders: list[bytes] = field(default_factory=list)
    umask: bytes = b""
    limits: dict[str, bytes] = field(default_factory=dict)
    variables: dict[bytes, Entry] = field(default_factory=dict)
    functions: dict[bytes, Entry] = field(default_factory=dict)
    aliases: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict)  # by option of `alias` (-g, -s) and name
    unclear: set[bytes] = field(default_factory=set)
    traps: dict[bytes, bytes | None] = field(default_factory=dict)
    args: list[bytes] | None = None
    history: bytes | None = None
    status: int | None = None


def parse(data: bytes, kind: ShellKind, history: bytes | None = None) -> ShellDump:
    """Parse the state that a shell of `kind` has written. Raises ValueError if `data` is not the complete state of such
    a shell, or has more than MOST_ENTRIES entries.
    """
    _check_number(data, b"\0", _RECORD * MOST_ENTRIES)
    fields = iter(data.split(b"\0"))
    dump = ShellDump(kind, history=history)
    types: dict[bytes, bytes] = {}
    while (record := list(itertools.islice(fields, _RECORD))) != LAST_RECORD:
        if len(record) < _RECORD:
            raise ValueError("the shell's state is incomplete: its last record is missing")
        what, name, attributes, text = record
        if kind == "zsh" and what in (b"p", b"f", b"F"):
            whole = itertools.islice(fields, 2 * int(text))
            pairs = map(_unescaped, whole) if what == b"F" else whole
            found = dict(zip(pairs, pairs, strict=True))
            if what == b"p":
                types = found
            else:
                theirs = (name for name in found if not name.startswith(b"__wp"))
                dump.functions = {name: Entry(b"", found[name]) for name in theirs}
        elif kind == "zsh" and what in (b"A", b"G"):
            _take(dump, what.lower(), _unescaped(name), attributes, _unescaped(text))
        else:
            _take(dump, what, name, attributes, text)
    if kind == "zsh":
        known = dump.variables.keys() & types.keys()
        dump.variables = {name: Entry(types[name], dump.variables[name].text) for name in known}
    if not dump.folders or not dump.umask.isdigit():
        raise ValueError("a part of the shell's state is missing")
    return dump


def _check_number(text: bytes, end: bytes, most: int) -> None:
    if text.count(end) > most:
        raise ValueError(f"the state has more than {MOST_ENTRIES} variables, functions and other entries")


def _take(dump: ShellDump, what: bytes, name: bytes, attributes: bytes, text: bytes) -> None:
    if what in (b"l", b"v", b"t"):  # an entry is a line
        _check_number(text, b"\n", MOST_ENTRIES)
    match what:
        case b"o":
            _take_options(dump, attributes, text)
        case b"d":
            dump.folders.append(text)
        case b"m":
            dump.umask = text.strip()
        case b"l":
            lines = (line for line in text.split(b"\n") if len(line) <= _MOST_OF_LINE)
            found = filter(None, map(_LIMIT[dump.kind].fullmatch, lines))
            dump.limits = {match[1].decode(): match[2] for match in found}
        case b"v":
            dump.unclear = set()
            dump.variables = dict(_variables(dump, text))
        case b"f":
            dump.functions[name] = Entry(attributes, text)
        case b"a":
            dump.aliases[attributes, name] = text
        case b"t" | b"s" | b"g" | b"h":
            _take_moment(dump, what, text)
        case _:
            raise ValueError(f"the shell's state has a record of unknown kind {what!r}")


def _take_moment(dump: ShellDump, what: bytes, text: bytes) -> None:
    match what:
        case b"t":
            dump.traps = printed.traps(text, {name: entry.text for name, entry in dump.functions.items()})
        case b"s":
            dump.status = int(text) & 0xFF
        case b"g":  # the first of these records is $0
            if dump.args is None:
                dump.args = []
            else:
                dump.args.append(text)
        case _:
            pass  # "h": the name of the history file


def _take_options(dump: ShellDump, attributes: bytes, text: bytes) -> None:
    if len(attributes) + len(text) > _MOST_OF_OPTIONS:
        raise ValueError("the shell's state has more options than any shell")
    if dump.kind == "bash":
        dump.options = set(attributes.decode().split(":"))
        dump.shopts = set(text.decode().split(":"))
    else:
        words = text.decode().split()
        dump.options = {name for name, state in zip(words[::2], words[1::2], strict=True) if state == "on"}


def _unescaped(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda found: b"\0" if found[0] == b"\\0" else b"\\", text)


def _variables(dump: ShellDump, text: bytes) -> Iterator[tuple[bytes, Entry]]:
    """Yield the variables in the output of `declare -p` or `typeset -p`. Both print a newline in a value as \\n, so
    each variable takes one line. Add the names of those with unclear values to `dump.unclear`.
    """
    for line in text.split(b"\n"):
        if dump.kind == "bash":
            match = _BASH_VARIABLE.fullmatch(line)
            if match is not None:
                yield match[2], Entry(match[1].replace(b"-", b""), match[3])
        else:
            match = _ZSH_VARIABLE.fullmatch(line)
            if match is not None:  # the line of a tied pair (PATH and path) names both variables, the scalar first
                name = match[4] if match[4] and b"a" in match[2] else match[3]
                value = match[5] and printed.readable_value(match[5])
                if value is None and match[5] is not None:
                    dump.unclear.add(name)
                yield name, Entry(b"", line if value is None else match[1] + b"=" + value)
