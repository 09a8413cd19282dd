"""The words of a command that was given inside a session, understood."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from waypoint.model.errors import UsageProblem

Tier = Literal["auto", "live", "respawn", "files"]


@dataclass(slots=True)
class Command:
    """`names`: what stands there without an option."""

    verb: str
    names: list[str] = field(default_factory=list)
    message: str = ""
    tier: Tier = "auto"
    force: bool = False
    count: int | None = None
    branch: str | None = None
    prefix: str | None = None


_VALUES = {
    "-m": "message",
    "--message": "message",
    "--tier": "tier",
    "-n": "count",
    "--branch": "branch",
    "--prefix": "prefix",
}
_TAKES: dict[str, tuple[str, ...]] = {
    "checkpoint": ("message", "tier", "force"),
    "restore": ("branch",),
    "fork": ("count", "prefix"),
    "log": ("count",),
    "status": (),
}


def parse(words: list[str]) -> Command:
    """Raises UsageProblem for what makes no sense."""
    verb, *rest = words or [""]
    if verb not in _TAKES:
        raise _unclear(verb, "inside a session there are checkpoint, restore, fork, log and status")
    command = Command(verb)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        name = "force" if flag in ("-f", "--force") else _VALUES.get(flag)
        if not word.startswith("-"):
            command.names.append(word)
        elif name is None or name not in _TAKES[verb]:
            raise _unclear(f"{verb} {word}", "it takes no such option here")
        elif name == "force":
            command.force = True
        else:
            if not equals and not rest:
                raise _unclear(f"{verb} {word}", "a value is missing")
            _set(command, name, value if equals else rest.pop(0))
    return command


def _set(command: Command, name: str, value: str) -> None:
    if name == "count":
        if not value.isdecimal() or not 1 <= int(value) <= 256:
            raise _unclear(f"-n {value}", "a number from 1 to 256 is needed")
        command.count = int(value)
    elif name == "tier":
        if value not in get_args(Tier):
            raise _unclear(f"--tier {value}", f"it is one of {', '.join(get_args(Tier))}")
        command.tier = value  # type: ignore[assignment]  # just checked
    else:
        setattr(command, name, value)


def _unclear(on: str, said: str) -> UsageProblem:
    return UsageProblem("understand", f"waypoint {on}", said, "see --help outside of the session")
