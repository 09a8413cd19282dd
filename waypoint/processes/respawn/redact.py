"""Hiding secrets in what is shown of programs: their arguments and their environment.

What is hidden is listed in docs/security.md ("Secrets on command lines").
"""

import os
import re
from collections.abc import Iterable

from waypoint.model.late_pattern import late_pattern

HIDDEN = "***"
_MOST = 200  # characters of a command line that are shown
_MOST_OF_WORD = 1024  # that are looked at

# Names of variables and options whose value is a secret, and values that are secrets whatever their name is. The words
# are hostile, and nothing else of the daemon runs while a pattern is searched for: so each reads a name once, from its
# beginning, and never goes back into it (`++`).
_NAME = (
    r"(?<![\w.-])(?=[\w.-]*?(?:secret|token|passw|passphrase|pwd|credential|auth|cookie"
    r"|(?:api|access|private|session|encryption)[_-]?key))[\w.-]++"
)
_ASSIGNED = late_pattern(rf"(?i)^({_NAME}[=:])(.+)$", re.DOTALL)
_OPTION = late_pattern(rf"(?i)^(?=-){_NAME}$")
_VALUE = late_pattern(
    r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|hf_[A-Za-z0-9]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_IN_ADDRESS = late_pattern(r"(?<=://)([^/\s:@]*):([^/\s]+)(?=@)")
_QUOTED = r"'[^']*(?:'|$)|\"(?:[^\"\\]|\\.)*(?:\"|\\?$)"
_ASSIGNED_INSIDE = late_pattern(rf"(?i)({_NAME}=)(?:{_QUOTED}|\\.|[^\s;&|'\"\\])+", re.DOTALL)
_MEMBER = late_pattern(rf"(?i)({_NAME}[\"']\s*+:\s*+)(?:{_QUOTED}|[^\s,}}]+)", re.DOTALL)
_HEADER = late_pattern(r"(?i)\b((?:proxy-)?authorization|x-api-key|cookie)\s*:\s*.*", re.DOTALL)
_SHELL_WORD = late_pattern(rf"(?:{_QUOTED}|\\(?:.|$)|[^\s;&|'\"\\])+", re.DOTALL)
_QUOTES = late_pattern(r"['\"]")

_OF_PROGRAMS = {
    "curl": r"-[#0-9BGIJLNORSafgijklnpqsv]*[uU]|--(?:proxy-)?user(?:=|$)",
    "sshpass": "-p",
    "http": "-a",
    "https": "-a",
    "redis-cli": "-a|--pass(?:=|$)",
    "ldapsearch": "-w",
    "ldapmodify": "-w",
    "ldapadd": "-w",
    "smbclient": "-U|--user(?:=|$)",
    "mongo": "-p",
    "mongosh": "-p",
    "mongodump": "-p",
    "zip": "-P",
    "unzip": "-P",
    "openssl": "-pass(?:in|out)?$",
    "ssh-keygen": "-[NP]",
}
"""By program, its options whose value is a secret, as the same word or as the next one."""
_ATTACHED = {name: "-p" for name in ("mysql", "mysqldump", "mysqladmin", "mariadb", "mariadb-dump", "7z", "7za", "7zz")}
"""The same where the value is always in the same word."""


def command_line(argv: Iterable[str]) -> str:
    """The command line for people, without its secrets, on one line, at most _MOST characters."""
    words: list[str] = []
    hiding, length = _Hiding(), 0
    for word in argv:
        if length > _MOST:
            break
        words.append(hiding.shown(word[:_MOST_OF_WORD]))
        length += len(words[-1]) + 1
    line = " ".join("".join(char if char.isprintable() else "?" for char in word) for word in words)
    return line if len(line) <= _MOST else f"{line[: _MOST - 1]}…"


def argument(word: str) -> str:
    """One argument, or one variable as `NAME=VALUE`, without the secrets in it; cut if it is long."""
    return _Hiding().shown(word[:_MOST_OF_WORD])


class _Hiding:
    """Hides secrets in the words of one command line, or of a script: those before tell which are secrets."""

    def __init__(self) -> None:
        self._is_next = False  # the next word is a secret
        self._program = ""

    def shown(self, word: str) -> str:
        """The next word without its secrets. A word with blanks in it may be a script."""
        whole = self._shown_as_option(word)
        if whole is not None:
            return whole
        word = _MEMBER.sub(rf"\1{HIDDEN}", _HEADER.sub(rf"\1: {HIDDEN}", word))
        if any(char.isspace() for char in word):
            inside = _Hiding()
            word = _SHELL_WORD.sub(lambda found: inside._shown_in_script(found[0]), word)
        return _without_values(word)

    def _shown_in_script(self, word: str) -> str:
        plain = _QUOTES.sub("", word)
        whole = self._shown_as_option(plain)
        return word if whole is None or whole == plain else whole

    def _shown_as_option(self, word: str) -> str | None:
        """The word without its secret, if it is a secret, or an option or a variable that has one; else None."""
        if self._is_next:
            self._is_next = False
            return HIDDEN
        # First: a password may look like an option's name, as in `mysql -pPassword base`.
        if self._program and (option := re.match(_OF_PROGRAMS.get(self._program) or _ATTACHED[self._program], word)):
            self._is_next = option.end() == len(word) and self._program in _OF_PROGRAMS
            return option[0] + HIDDEN if option.end() < len(word) else word
        if assigned := _ASSIGNED.match(word):
            return f"{assigned[1]}{HIDDEN}"
        if _OPTION.match(word):
            self._is_next = True
            return word
        name = os.path.basename(word)
        if name in _OF_PROGRAMS or name in _ATTACHED:
            self._program = name
        return None


def _without_values(word: str) -> str:
    """The word without what is a secret wherever it stands."""
    word = _ASSIGNED_INSIDE.sub(rf"\1{HIDDEN}", word)
    return _VALUE.sub(HIDDEN, _IN_ADDRESS.sub(rf"\1:{HIDDEN}", word))
