"""The script that changes the state of a zsh to another state (see script.py)."""

import re
from collections.abc import Iterator

from waypoint.terminal.shell.differences import changed_variables, limits, set_traps
from waypoint.terminal.shell.dump import Entry, ShellDump
from waypoint.terminal.shell.words import FIND, quoted, readable

_OPTIONS = ("noaliases", "noerrexit", "noerrreturn", "unset", "noxtrace", "noverbose", "glob")
EVALUATE = f"\\builtin emulate zsh {' '.join(f'-o {name}' for name in _OPTIONS)} -c"

# Variables that the shell itself, the terminal or Waypoint sets.
_NOT_OURS = frozenset(
    b"ARGC COLUMNS EGID EPOCHREALTIME EPOCHSECONDS ERRNO EUID GID HISTCMD LINENO LINES PPID PWD RANDOM SECONDS SHLVL"
    b" TTY TTYIDLE UID USERNAME WAYPOINT_BRANCH _ argv pipestatus status".split()
)
_FIXED_OPTIONS = {"interactive", "shinstdin", "singlecommand", "zle", "login", "privileged", "restricted", "rcs"}
# Functions that zsh would call while the script runs. The script first removes them, and defines them again at the end.
_RUN = frozenset({b"TRAPDEBUG", b"TRAPERR", b"TRAPZERR"})
_OWN = re.compile(rb"-local|-hideval|-(?:readonly|hide).*-special")  # types of variables that zsh itself sets
_DISTORTED = re.compile(rb"[\0\x83-\xa2]")  # an assignment to `functions` in zsh 5.9 changes these bytes
_UNLOADED = re.compile(rb"builtin autoload -X(\w*)")


def body(now: ShellDump, then: ShellDump, stays: list[str]) -> Iterator[bytes]:
    """Yield the lines of the script. Append a sentence to `stays` for each variable that the script cannot restore."""
    yield b" ".join([b"builtin trap -", *now.traps, b"DEBUG"])
    changed = [
        name
        for name in sorted({*now.functions, *then.functions})
        if now.functions.get(name) != then.functions.get(name) or name in _RUN
    ]
    yield from (b"builtin unfunction -- " + quoted(name) for name in changed if name in now.functions)
    yield from limits(now, then)
    yield b"__wp_t=$PWD"
    # zsh's `cd -` uses the previous folder and not OLDPWD, so the script changes to that folder first.
    if b"OLDPWD" in then.variables and b"OLDPWD" not in then.unclear:
        yield then.variables[b"OLDPWD"].text
        yield b'builtin cd -q -- "$OLDPWD" 2>/dev/null'
    yield b"builtin cd -q -- " + quoted(then.folders[0]) + b' || builtin cd -q -- "$__wp_t"'
    yield b"dirstack=(" + b" ".join(quoted(folder) for folder in then.folders[1:]) + b")"
    yield from _variables(now, then, stays)
    for key in now.aliases:
        if then.aliases.get(key) != now.aliases[key]:
            yield b"builtin unalias " + (b"-s " if key[0] == b"-s" else b"") + b"-- " + quoted(key[1])
    for (option, name), value in then.aliases.items():
        if now.aliases.get((option, name)) != value:
            yield b"builtin alias " + option + b" -- " + quoted(name + b"=" + value)
    for name in changed:
        if name in then.functions:
            yield from _function(name, then.functions[name].text)
    yield from set_traps(then, stays)


def _function(name: bytes, text: bytes) -> Iterator[bytes]:
    """Yield the lines that define a function by an assignment to the array `functions`: zsh parses the function's text
    and does not run it.
    """
    unloaded = _UNLOADED.fullmatch(text.strip())
    if unloaded:
        yield b"builtin autoload" + (b" -" + unloaded[1] if unloaded[1] else b"") + b" -- " + quoted(name)
        return
    yield b"__wp_t=" + quoted(name)
    yield b"functions[$__wp_t]=" + quoted(text)
    if _DISTORTED.search(text):
        # The assignment has shown that the text is complete, so no part of it can stand outside of the function.
        definition = b"function " + quoted(name) + b" {\n" + text + b"\n}"
        yield b"(( ${+functions[$__wp_t]} )) && builtin eval " + quoted(definition)


def history(then: ShellDump) -> Iterator[bytes]:
    """Yield the lines that replace the history by the content of the file `history`."""
    yield b"__wp_t=$HISTSIZE; HISTSIZE=1; HISTSIZE=$__wp_t"
    yield FIND.format("history").encode()
    yield b'builtin fc -R "$__wp_p"'


def options(now: ShellDump, then: ShellDump) -> str:
    """Return a line that sets the options to those of `then`."""
    names = sorted((now.options ^ then.options) - _FIXED_OPTIONS, key=lambda name: (name in then.options, name))
    return "; ".join(f"\\builtin {'setopt' if name in then.options else 'unsetopt'} {name}" for name in names)


def _variables(now: ShellDump, then: ShellDump, stays: list[str]) -> Iterator[bytes]:
    """Yield lines that remove variables, then lines that set variables. For a tied pair (PATH and path), only the
    scalar is set.
    """
    both = (now.variables, then.variables)
    names = sorted(name for name in {*both[0], *both[1]} if all(_is_state(name, variables) for variables in both))
    setting: list[bytes] = []
    for name, before, after in changed_variables(now, then, names, _is_readonly, stays):
        if name in then.unclear:
            stays.append(f"the variable {readable(name)} stays as it is: its saved text does not tell its value")
            continue
        if before is not None and (after is None or not _is_special(before)):
            yield b"builtin unset -- " + name
        if after is not None and not after.attributes.startswith(b"array-tied"):
            setting.append(name)
    yield from (then.variables[name].text for name in setting)


def _is_special(entry: Entry) -> bool:
    """True for a variable that would lose its special meaning if it were unset."""
    return b"special" in entry.attributes


def _is_readonly(entry: Entry) -> bool:
    return b"readonly" in entry.attributes


def _is_state(name: bytes, variables: dict[bytes, Entry]) -> bool:
    entry = variables.get(name)
    own = entry is not None and _OWN.search(entry.attributes) is not None
    return not own and name not in _NOT_OURS and not name.startswith(b"__wp")
