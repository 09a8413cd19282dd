"""Hiding secrets in what is shown of programs: their arguments and their environment."""

import re
from collections.abc import Iterable

HIDDEN = "***"
_MOST = 200  # characters of a command line that are shown
_MOST_OF_WORD = 1024  # that are looked at: finding secrets takes up to the square of that, and the words are hostile

# Names of variables and options whose value is a secret, and values that are secrets whatever their name is.
_NAME = (
    r"[\w.-]*(?:secret|token|passw|passphrase|pwd|credential|auth|cookie"
    r"|(?:api|access|private|session|encryption)[_-]?key)[\w.-]*"
)
_ASSIGNED = re.compile(rf"(?i)^(-{{0,2}}{_NAME}[=:])(.+)$", re.DOTALL)
_OPTION = re.compile(rf"(?i)^-{{1,2}}{_NAME}$")
_VALUE = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|hf_[A-Za-z0-9]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_IN_ADDRESS = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)(?=@)")
_ASSIGNED_INSIDE = re.compile(rf"(?i)(?<![\w.-])({_NAME}=)('[^']*'|\"[^\"]*\"|[^\s;&|]+)")
_HEADER = re.compile(r"(?i)\b((?:proxy-)?authorization|x-api-key|cookie)\s*:\s*.*", re.DOTALL)


def command_line(argv: Iterable[str]) -> str:
    """The command line for people, without its secrets, on one line, at most _MOST characters."""
    words: list[str] = []
    hide_next, length = False, 0
    for word in argv:
        if length > _MOST:
            break
        words.append(HIDDEN if hide_next else argument(word))
        hide_next = not hide_next and _OPTION.match(word[:_MOST_OF_WORD]) is not None
        length += len(words[-1]) + 1
    line = " ".join("".join(char if char.isprintable() else "?" for char in word) for word in words)
    return line if len(line) <= _MOST else f"{line[: _MOST - 1]}…"


def argument(word: str) -> str:
    """One argument, or one variable as `NAME=VALUE`, without the secrets in it; cut if it is long."""
    word = word[:_MOST_OF_WORD]
    assigned = _ASSIGNED.match(word)
    if assigned:
        return f"{assigned[1]}{HIDDEN}"
    word = _ASSIGNED_INSIDE.sub(rf"\1{HIDDEN}", word)
    word = _HEADER.sub(rf"\1: {HIDDEN}", word)
    return _VALUE.sub(HIDDEN, _IN_ADDRESS.sub(rf"\1:{HIDDEN}", word))
