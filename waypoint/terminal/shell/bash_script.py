"""The script that changes the state of a bash to another state (see script.py).

Only `declare` accepts an array's value in the form in which bash prints arrays, and only as the first word of a command
(`builtin declare` does not). The script therefore first removes a function that the user has named `declare`, and
defines the function again at the end.
"""

from collections.abc import Iterator

from waypoint.terminal.shell.differences import changed_variables, limits, set_traps
from waypoint.terminal.shell.dump import Entry, ShellDump
from waypoint.terminal.shell.words import FIND, quoted, readable

EVALUATE = "\\builtin eval"

# Variables that the shell itself, the terminal or Waypoint sets.
_NOT_OURS = frozenset(
    b"BASH BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_LINENO"
    b" BASH_MONOSECONDS BASH_REMATCH BASH_SOURCE BASH_SUBSHELL BASH_TRAPSIG BASH_VERSINFO BASH_VERSION"
    b" COLUMNS COMP_CWORD COMP_KEY COMP_LINE COMP_POINT COMP_TYPE COMP_WORDS COPROC DIRSTACK EPOCHREALTIME"
    b" EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD LINENO LINES PIPESTATUS POSIXLY_CORRECT PPID PWD RANDOM"
    b" READLINE_ARGUMENT READLINE_LINE READLINE_MARK READLINE_POINT SECONDS SHELLOPTS SHLVL SRANDOM UID"
    b" WAYPOINT_BRANCH _".split()
)
_USED = frozenset({b"declare", b"trap"})  # words that the script uses, and that a user's function may have redefined
_DYNAMIC = frozenset({b"COMP_WORDBREAKS"})  # variables that lose their special meaning when unset
_HARMLESS = frozenset(b"aAtx")  # attributes that do not change what an assignment means
_FIXED_SHOPTS = {"login_shell", "restricted_shell"}
_FIXED_OPTIONS = {"privileged", "onecmd", "restricted", ""}
# Options that the body turns on or off while it runs.
_ON = {"extglob"}
_OFF_SHOPTS = {"expand_aliases"}
_OFF = {"errexit", "noglob", "noexec", "nounset", "xtrace", "verbose", "posix"}
_OF_POSIX = {"expand_aliases", "interactive_comments", "sourcepath"}  # `set -o posix` and `set +o posix` change these


def body(now: ShellDump, then: ShellDump, stays: list[str]) -> Iterator[bytes]:
    """Yield the lines of the script. Append a sentence to `stays` for each variable or function that the script cannot
    restore.
    """
    yield b"\\builtin set +efnuxv +o posix; \\builtin shopt -u expand_aliases; \\builtin shopt -s extglob"
    yield b" ".join([b"\\builtin trap -", *now.traps, b"DEBUG"])
    yield b"\\builtin unset -f " + b" ".join(sorted(_USED))
    functions = list(_changed_functions(now, then, stays))
    yield from (b"builtin unset -f -- " + quoted(name) for name in functions if name in now.functions)
    yield from limits(now, then)
    yield from _folders(then)
    yield from _variables(now, then, stays)
    for key in now.aliases:
        if then.aliases.get(key) != now.aliases[key]:
            yield b"builtin unalias -- " + quoted(key[1])
    for key, value in then.aliases.items():
        if now.aliases.get(key) != value:
            yield b"builtin alias -- " + quoted(key[1] + b"=" + value)
    yield from set_traps(then, stays)
    for name in functions:
        if name in then.functions:
            yield from _function(name, then.functions[name])


def history(then: ShellDump) -> Iterator[bytes]:
    """Yield the lines that replace the history by the content of the file `history`."""
    yield b"HISTTIMEFORMAT=%s"  # without this, bash would split an entry of several lines into several entries
    yield b"builtin history -c"
    yield FIND.format("history").encode()
    yield b'builtin history -r "$__wp_p"'
    entry = then.variables.get(b"HISTTIMEFORMAT")
    yield from [b"builtin unset -v HISTTIMEFORMAT"] if entry is None else _declare(b"HISTTIMEFORMAT", entry)


def options(now: ShellDump, then: ShellDump) -> str:
    """Return a line that sets the options to those of `then`. The line runs after `body`, and so starts from the
    options that `body` has set.
    """
    shopts = (((now.shopts | _ON) - _OFF_SHOPTS) ^ then.shopts) | _OF_POSIX
    others = (now.options - _OFF) ^ then.options
    words = [
        f"set {'-' if name in then.options else '+'}o {name}" for name in _order(others - _FIXED_OPTIONS, then.options)
    ]
    at = 1 if "posix" in others else 0
    words[at:at] = [f"shopt -{'s' if name in then.shopts else 'u'} {name}" for name in sorted(shopts - _FIXED_SHOPTS)]
    return "; ".join(f"\\builtin {word}" for word in words)


def _order(names: set[str], on: set[str]) -> list[str]:
    """Sort option names: first posix, since it changes other options; then the options to be turned off, before those
    to be turned on, since some options exclude others.
    """
    return sorted(names, key=lambda name: (name != "posix", name in on, name))


def _changed_functions(now: ShellDump, then: ShellDump, stays: list[str]) -> Iterator[bytes]:
    for name in sorted({*now.functions, *then.functions}):
        before, after = now.functions.get(name), then.functions.get(name)
        if before is not None and before != after and b"r" in before.attributes.partition(b"-f")[2]:
            stays.append(f"the function {readable(name)} stays as it is: it is read-only")
        elif before != after or name in _USED:
            yield name


def _function(name: bytes, entry: Entry) -> Iterator[bytes]:
    yield entry.text
    more = entry.attributes.partition(b"-f")[2]
    if more:
        yield b"builtin declare -f" + more + b" -- " + quoted(name)


def _folders(then: ShellDump) -> Iterator[bytes]:
    yield b"builtin cd -- " + quoted(then.folders[0])
    yield b"builtin dirs -c"
    for folder in reversed(then.folders[1:]):
        yield b"builtin pushd -n " + quoted(folder) + b" >/dev/null"


def _variables(now: ShellDump, then: ShellDump, stays: list[str]) -> Iterator[bytes]:
    """Yield lines that remove variables, then lines that set variables. Name references (`declare -n`) are set last, so
    that no assignment changes the variable that a name reference refers to.
    """
    names = sorted(name for name in {*now.variables, *then.variables} if _is_state(name))
    setting: list[bytes] = []
    for name, before, after in changed_variables(now, then, names, _is_readonly, stays):
        if before is not None and not _can_be_assigned(name, before, after):
            yield (b"builtin unset -n " if b"n" in before.attributes else b"builtin unset -v ") + name
        if after is not None:
            setting.append(name)
    for name in sorted(setting, key=lambda name: b"n" in then.variables[name].attributes):
        yield from _declare(name, then.variables[name])


def _is_readonly(entry: Entry) -> bool:
    return b"r" in entry.attributes


def _is_state(name: bytes) -> bool:
    return name not in _NOT_OURS and not name.startswith(b"__wp")


def _can_be_assigned(name: bytes, before: Entry, after: Entry | None) -> bool:
    if after is None or not after.text:
        return False
    same = before.attributes == after.attributes and not set(after.attributes) - _HARMLESS
    return same or name in _DYNAMIC


def _declare(name: bytes, entry: Entry) -> Iterator[bytes]:
    """Yield lines that set one variable. The value comes first and the attributes after it, since an attribute (`-i`,
    `-u`) would evaluate or change the value.
    """
    array = bytes(letter for letter in entry.attributes if letter in b"aA")
    if b"n" in entry.attributes:
        yield b"declare -" + entry.attributes + b" " + name + entry.text
        return
    if entry.text:
        yield b"declare -" + (array or b"-") + b" " + name + entry.text
    if entry.attributes != array or not entry.text:
        yield b"declare -" + (entry.attributes or b"-") + b" " + name
