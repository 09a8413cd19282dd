"""Hiding secrets in displayed arguments and environment variables (docs/terminal.md, "Secrets on command lines")."""

import os
import re
from collections.abc import Iterable

HIDDEN = "***"
_MOST = 200  # displayed characters of a command line
_MOST_OF_WORD = 1024  # searched characters of a word: the search takes quadratic time, and the words may be hostile

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
_IN_ADDRESS = re.compile(r"(?<=://)([^/\s:@]*):([^/\s]+)(?=@)")
_QUOTED = r"'[^']*(?:'|$)|\"(?:[^\"\\]|\\.)*(?:\"|\\?$)"
_ASSIGNED_INSIDE = re.compile(rf"(?i)(?<![\w.-])({_NAME}=)(?:{_QUOTED}|\\.|[^\s;&|'\"\\])+", re.DOTALL)
_MEMBER = re.compile(rf"(?i)({_NAME}[\"']\s*:\s*)(?:{_QUOTED}|[^\s,}}]+)", re.DOTALL)
_HEADER = re.compile(r"(?i)\b((?:proxy-)?authorization|x-api-key|cookie)\s*:\s*.*", re.DOTALL)
_SHELL_WORD = re.compile(rf"(?:{_QUOTED}|\\(?:.|$)|[^\s;&|'\"\\])+", re.DOTALL)
_QUOTES = re.compile(r"['\"]")

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
"""By program, the options whose value is a secret, in the same word or as the next one."""
_ATTACHED = {name: "-p" for name in ("mysql", "mysqldump", "mysqladmin", "mariadb", "mariadb-dump", "7z", "7za", "7zz")}
"""The same for values that are always in the same word."""


def command_line(argv: Iterable[str]) -> str:
    """The command line without its secrets, on one line, cut to _MOST characters."""
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


def script(text: str) -> str:
    """A command line as shell text, without the secrets in it; cut if it is long."""
    return _Hiding().shown(f" {text[:_MOST_OF_WORD]}")[1:]


class _Hiding:
    """Hides secrets in the words of one command line or script. Whether a word is a secret depends on those before."""

    def __init__(self) -> None:
        self._is_next = False  # the next word is a secret
        self._program = ""

    def shown(self, word: str) -> str:
        """The next word without its secrets. A word that contains blanks may be a script."""
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
        """The word without its secret value; None if it is neither a secret nor an option or variable with a secret."""
        if self._is_next:
            self._is_next = False
            return HIDDEN
        if assigned := _ASSIGNED.match(word):
            return f"{assigned[1]}{HIDDEN}"
        if _OPTION.match(word):
            self._is_next = True
            return word
        if self._program and (option := re.match(_OF_PROGRAMS.get(self._program) or _ATTACHED[self._program], word)):
            self._is_next = option.end() == len(word) and self._program in _OF_PROGRAMS
            return option[0] + HIDDEN if option.end() < len(word) else word
        name = os.path.basename(word)
        if name in _OF_PROGRAMS or name in _ATTACHED:
            self._program = name
        return None


def _without_values(word: str) -> str:
    """The word without values that are secrets in any context."""
    word = _ASSIGNED_INSIDE.sub(rf"\1{HIDDEN}", word)
    return _VALUE.sub(HIDDEN, _IN_ADDRESS.sub(rf"\1:{HIDDEN}", word))
