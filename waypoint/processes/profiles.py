"""Workload profiles: settings that a kind of program needs so that CRIU can dump it. The data are in criu_profiles/.

Out of scope: finding the processes of a session to which a profile applies.
"""

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from waypoint.model.errors import StoreDamaged

FOLDER = Path(__file__).resolve().parents[2] / "criu_profiles"

_Words = Annotated[str, msgspec.Meta(min_length=1)]
_Name = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    programs: Annotated[list[_Words], msgspec.Meta(min_length=1)]


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of one profile's file. criu_profiles/README.md explains the keys."""

    match: Match
    reason: _Words
    test: _Words
    env: dict[_Name, str] = {}


def load_profiles(folder: Path = FOLDER) -> dict[str, Profile]:
    """All profiles in `folder` by name.

    Raises StoreDamaged if a file is not a profile, or if two profiles give different values to a variable.
    """
    profiles = {path.stem: _load(path) for path in sorted(folder.glob("*.toml"))}
    setters: dict[str, str] = {}
    for name, profile in profiles.items():
        for variable, value in profile.env.items():
            other = setters.setdefault(variable, name)
            if profiles[other].env[variable] != value:
                raise StoreDamaged("load the profile", name, f"{other} gives {variable} another value", _NEXT)
    return profiles


def session_environment() -> dict[str, str]:
    """The environment variables of all profiles, which every session's shell gets."""
    return {variable: value for profile in load_profiles().values() for variable, value in profile.env.items()}


_NEXT = "install Waypoint again"


def _load(path: Path) -> Profile:
    try:
        # strict: `VARIABLE = 0` is an error, not the string "0"
        return msgspec.convert(tomllib.loads(path.read_text()), type=Profile, strict=True)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise StoreDamaged("load the profile", str(path), str(error), _NEXT) from error
