"""The text that brings bash from one state to another (see script.py).

`declare` is the only word that takes an array's value as it was written, and only when nothing stands before it: so
functions of its name are put away first, and come last.
"""

import re
from collections.abc import Iterator

from waypoint.session.shell.dump import Dump, Entry
from waypoint.session.shell.words import quoted, told

EVALUATE = "\\builtin eval"

# What the shell itself, the terminal or Waypoint decides.
_NOT_OURS = frozenset(
    b"BASH BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_LINENO"
    b" BASH_MONOSECONDS BASH_REMATCH BASH_SOURCE BASH_SUBSHELL BASH_TRAPSIG BASH_VERSINFO BASH_VERSION"
    b" COLUMNS COMP_CWORD COMP_KEY COMP_LINE COMP_POINT COMP_TYPE COMP_WORDS COPROC DIRSTACK EPOCHREALTIME"
    b" EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD LINENO LINES PIPESTATUS POSIXLY_CORRECT PPID PWD RANDOM"
    b" READLINE_ARGUMENT READLINE_LINE READLINE_MARK READLINE_POINT SECONDS SHELLOPTS SHLVL SRANDOM UID"
    b" WAYPOINT_BRANCH _".split()
)
_USED = frozenset({b"declare", b"trap"})  # words of the body that a function could take
_DYNAMIC = frozenset({b"COMP_WORDBREAKS"})  # loses its meaning when unset
_HARMLESS = frozenset(b"aAtx")  # attributes that do not change what an assignment means
_FIXED_SHOPTS = {"login_shell", "restricted_shell"}
_FIXED_OPTIONS = {"privileged", "onecmd", "restricted", ""}
# What the body turns on and off for itself.
_ON = {"extglob"}
_OFF_SHOPTS = {"expand_aliases"}
_OFF = {"errexit", "noglob", "noexec", "nounset", "xtrace", "verbose", "posix"}
_OF_POSIX = {"expand_aliases", "interactive_comments", "sourcepath"}  # changed when posix mode is
_TRAPPED = re.compile(rb"' (\S+)$", re.MULTILINE)


def body(now: Dump, then: Dump, stays: list[str]) -> Iterator[bytes]:
    """Lines. Adds to `stays` what cannot be brought back."""
    yield b"\\builtin set +efnuxv +o posix; \\builtin shopt -u expand_aliases; \\builtin shopt -s extglob"
    yield b" ".join([b"\\builtin trap -", *_TRAPPED.findall(now.traps), b"DEBUG"])
    yield b"\\builtin unset -f " + b" ".join(sorted(_USED))
    functions = list(_changed_functions(now, then, stays))
    yield from (b"builtin unset -f -- " + quoted(name) for name in functions if name in now.functions)
    if then.umask != now.umask:
        yield b"builtin umask " + then.umask
    for letter, value in then.limits.items():
        if now.limits.get(letter, value) != value:
            yield f"builtin ulimit -S -{letter} ".encode() + value
    yield from _folders(then)
    yield from _variables(now, then, stays)
    for key in now.aliases:
        if then.aliases.get(key) != now.aliases[key]:
            yield b"builtin unalias -- " + quoted(key[1])
    for key, value in then.aliases.items():
        if now.aliases.get(key) != value:
            yield b"builtin alias -- " + quoted(key[1] + b"=" + value)
    yield then.traps
    for name in functions:
        if name in then.functions:
            yield from _function(name, then.functions[name])


def options(now: Dump, then: Dump) -> str:
    """A line that sets them, from how `body` has left them."""
    shopts = (((now.shopts | _ON) - _OFF_SHOPTS) ^ then.shopts) | _OF_POSIX
    others = (now.options - _OFF) ^ then.options
    words = [
        f"set {'-' if name in then.options else '+'}o {name}" for name in _order(others - _FIXED_OPTIONS, then.options)
    ]
    at = 1 if "posix" in others else 0
    words[at:at] = [f"shopt -{'s' if name in then.shopts else 'u'} {name}" for name in sorted(shopts - _FIXED_SHOPTS)]
    return "; ".join(f"\\builtin {word}" for word in words)


def _order(names: set[str], on: set[str]) -> list[str]:
    """posix first, as it changes others; of two that exclude each other first the one that goes."""
    return sorted(names, key=lambda name: (name != "posix", name in on, name))


def _changed_functions(now: Dump, then: Dump, stays: list[str]) -> Iterator[bytes]:
    for name in sorted({*now.functions, *then.functions}):
        before, after = now.functions.get(name), then.functions.get(name)
        if before is not None and before != after and b"r" in before.attributes.partition(b"-f")[2]:
            stays.append(f"the function {told(name)} stays as it is: it is read-only")
        elif before != after or name in _USED:
            yield name


def _function(name: bytes, entry: Entry) -> Iterator[bytes]:
    yield entry.text
    more = entry.attributes.partition(b"-f")[2]
    if more:
        yield b"builtin declare -f" + more + b" -- " + quoted(name)


def _folders(then: Dump) -> Iterator[bytes]:
    yield b"builtin cd -- " + quoted(then.folders[0])
    yield b"builtin dirs -c"
    for folder in reversed(then.folders[1:]):
        yield b"builtin pushd -n " + quoted(folder) + b" >/dev/null"


def _variables(now: Dump, then: Dump, stays: list[str]) -> Iterator[bytes]:
    """First all that goes, then what comes; references last, as nothing is to go through them."""
    names = sorted(name for name in {*now.variables, *then.variables} if _is_state(name))
    setting: list[bytes] = []
    for name in names:
        before, after = now.variables.get(name), then.variables.get(name)
        if before == after and name != b"OLDPWD":  # `cd` has moved that
            continue
        if before is not None and b"r" in before.attributes:
            stays.append(f"the variable {told(name)} stays as it is: it is read-only")
            continue
        if before is not None and not _can_be_assigned(name, before, after):
            yield (b"builtin unset -n " if b"n" in before.attributes else b"builtin unset -v ") + name
        if after is not None:
            setting.append(name)
    for name in sorted(setting, key=lambda name: b"n" in then.variables[name].attributes):
        yield from _declare(name, then.variables[name])


def _is_state(name: bytes) -> bool:
    return name not in _NOT_OURS and not name.startswith(b"__wp")


def _can_be_assigned(name: bytes, before: Entry, after: Entry | None) -> bool:
    if after is None or not after.text:
        return False
    same = before.attributes == after.attributes and not set(after.attributes) - _HARMLESS
    return same or name in _DYNAMIC


def _declare(name: bytes, entry: Entry) -> Iterator[bytes]:
    """The value first, the attributes then: they would evaluate it, or change it."""
    array = bytes(letter for letter in entry.attributes if letter in b"aA")
    if b"n" in entry.attributes:
        yield b"declare -" + entry.attributes + b" " + name + entry.text
        return
    if entry.text:
        yield b"declare -" + (array or b"-") + b" " + name + entry.text
    if entry.attributes != array or not entry.text:
        yield b"declare -" + (entry.attributes or b"-") + b" " + name
