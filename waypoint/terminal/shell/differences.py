"""The parts of a script (script.py) that are the same for bash and zsh."""

from collections.abc import Callable, Iterable, Iterator

from waypoint.terminal.shell.dump import Entry, ShellDump
from waypoint.terminal.shell.words import readable


def limits(now: ShellDump, then: ShellDump) -> Iterator[bytes]:
    """Yield the lines that set the umask and those soft limits that differ."""
    if then.umask != now.umask:
        yield b"builtin umask " + then.umask
    for letter, value in then.limits.items():
        if now.limits.get(letter, value) != value:
            yield f"builtin ulimit -S -{letter} ".encode() + value


def changed_variables(
    now: ShellDump, then: ShellDump, names: Iterable[bytes], is_readonly: Callable[[Entry], bool], stays: list[str]
) -> Iterator[tuple[bytes, Entry | None, Entry | None]]:
    """Yield each of the variables `names` that differs, with its entries in `now` and in `then`. Skip a variable that
    is read-only now, and append a sentence about it to `stays`.
    """
    for name in names:
        before, after = now.variables.get(name), then.variables.get(name)
        if before == after and name != b"OLDPWD":  # the script's own `cd` changes OLDPWD
            continue
        if before is not None and is_readonly(before):
            stays.append(f"the variable {readable(name)} stays as it is: it is read-only")
            continue
        yield name, before, after


def set_traps(then: ShellDump, stays: list[str]) -> Iterator[bytes]:
    """Yield the lines that set the traps. Append a sentence to `stays` for each trap whose command is unclear."""
    for name, command in then.traps.items():
        if command is None:
            stays.append(f"the trap of {readable(name)} is not set: its saved text does not tell its command")
        else:
            yield b"builtin trap -- " + command + b" " + name
