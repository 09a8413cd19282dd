"""Reads the text in which zsh prints variables (`typeset -p`), and both shells print traps (`trap`, `trap -p`), and
returns values that a shell can evaluate without running a command.

zsh 5.9 prints the bytes 1c, a7, dc and 9c as `\\C-\\`, `\\M-'`, `\\M-\\` and `\\M-\\C-\\`, without escaping the last
character. When zsh evaluates such a text, the quoting ends at the wrong place. With the option `printeightbit`, which
the hooks set, zsh prints only the byte 1c in this way. `\\C-\\` has one meaning only and is replaced here. In text from
older hooks, `\\M-'` and `\\M-\\` have more than one meaning, so such a value is left out.
"""

import re

from waypoint.terminal.shell.words import quoted

_TOKEN = rb"(?:[^'\\\n]++|\\(?:['\\abefnrtv]|C-[?-_]|M-[^'\\\n]|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-7]{3}))"
_ESCAPED = rb"\$'" + _TOKEN + rb"*+'"
_QUOTED = rb"(?:'[^']*+'|\\')++"
_PLAIN = rb"[^\0-\x20\x7f#$^*()=|{}\[\]`<>?~;&\\'\"]++"
_WORD = rb"(?:%s|%s|%s)" % (_ESCAPED, _QUOTED, _PLAIN)
_VALUE = re.compile(
    rb"(?:%(word)s|-?[0-9]++\#[0-9A-Za-z_]++|\( +(?:(?:\[%(word)s\]=)?%(word)s +)*+\)(?: %(word)s)?)?"
    % {b"word": _WORD}
)
_PART = re.compile(rb"%s|%s" % (_ESCAPED, _QUOTED))
_IN_QUOTES = re.compile(rb"'([^']*)'|\\(')")
_BACKSLASH = re.compile(rb"(\\C-\\)|\\.")  # the group: the byte 1c
_TRAP = re.compile(rb"trap -- (?:(%s)|.*) ([A-Z0-9+-]+)\n" % _WORD)
_FUNCTION = re.compile(rb"(TRAP\w+) \(\) \{\n")


def readable_value(text: bytes) -> bytes | None:
    """Return the value `text` of a zsh variable (behind the `=`) in a form that zsh evaluates to that value. None if
    the text is not a value, or does not tell which one.
    """
    return _repaired(text) if _VALUE.fullmatch(text) else None


def traps(text: bytes, functions: dict[bytes, bytes]) -> dict[bytes, bytes | None]:
    """Return the commands of the traps, quoted for the shell, by the names of the signals. The command is None if the
    text does not tell it. `functions`: the bodies of functions: zsh prints a function that is a trap among the traps.
    """
    found: dict[bytes, bytes | None] = {}
    text += b"\n"
    at = 0
    while at < len(text):
        if trap := _TRAP.match(text, at):
            found[trap[2]] = None if trap[1] is None else _requoted(trap[1])
            at = trap.end()
            continue
        function = _FUNCTION.match(text, at)
        body = functions.get(function[1], b"") + b"\n}\n" if function else b""
        if function and text.startswith(body, function.end()):
            at = function.end() + len(body)
        else:
            at = text.index(b"\n", at) + 1
    return found


def _requoted(word: bytes) -> bytes:
    return _repaired(word) if word.startswith(b"$") else quoted(_IN_QUOTES.sub(rb"\1\2", word))


def _repaired(text: bytes) -> bytes:
    return _PART.sub(_repair_part, text) if b"\\C-\\" in text else text


def _repair_part(part: re.Match[bytes]) -> bytes:
    if not part[0].startswith(b"$"):
        return part[0]
    return _BACKSLASH.sub(lambda found: b"\\034" if found[1] else found[0], part[0])
