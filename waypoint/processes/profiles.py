"""Workload profiles: what one kind of program needs so that it survives captures (criu_profiles/README.md).

The built-in profiles are in criu_profiles/, those of a home in its folder `profiles`.
"""

import contextlib
import dataclasses
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from waypoint.linux.tasks import procfs
from waypoint.model.errors import StoreDamaged
from waypoint.model.profile_facts import ProfileFacts, ProgramTest
from waypoint.processes.criu.cause_table import CAUSES

BUILT_IN = "built-in"
"""`where` of the profiles in criu_profiles/."""
FOLDER = "profiles"  # in a home
_FOLDER = Path(__file__).resolve().parents[2] / "criu_profiles"
_CODES = frozenset({"criu-traced", *(f"criu-{cause.name}" for cause in CAUSES)})
_OWN_VARIABLES = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "WAYPOINT_BRANCH"})
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_MOST_BYTES, _MOST_FILES = 64 << 10, 256
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_Words = Annotated[str, msgspec.Meta(min_length=1)]
_Variable = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]


class _Match(msgspec.Struct, frozen=True):
    programs: Annotated[list[_Words], msgspec.Meta(min_length=1)]


class _File(msgspec.Struct, frozen=True):
    match: _Match
    reason: _Words
    env: dict[_Variable, str] = {}
    remedies: dict[str, _Words] = {}
    shown_by: str = ""
    test: ProgramTest | None = None


class _Loaded(NamedTuple):
    """`stamp`: of the home's files. `by_program`: the profiles with remedies, by the names of their programs."""

    stamp: tuple[object, ...]
    profiles: list[ProfileFacts]
    env: dict[str, str]
    by_program: dict[str, ProfileFacts]


class Profiles:
    """The profiles that apply in a home. A file of the home replaces the built-in profile of the same name; a file with
    an error is not used, and keeps its `problem`. Read again when a file of the home has changed. Thread-safe.
    """

    def __init__(self, home: Path | None = None, built_in: Path = _FOLDER) -> None:
        self._home = home
        self._folder = built_in
        self._built_in: list[ProfileFacts] | None = None
        self._loaded: _Loaded | None = None

    def all(self) -> list[ProfileFacts]:
        """All profiles and files with errors, by name. Raises StoreDamaged if a built-in profile is damaged."""
        return self._load().profiles

    def environment(self) -> dict[str, str]:
        """The environment variables of all profiles, which every session's shell gets."""
        return self._load().env

    def remedy(self, pid: int, code: str) -> str:
        """What helps if a capture is refused with `code` because of the process `pid`; "" if no profile says that. The
        program's name decides, which the session can choose, so it decides about nothing else.
        """
        by_program = self._load().by_program
        for name in _names(pid):
            if name in by_program and code in by_program[name].remedies:
                return by_program[name].remedies[code]
        return ""

    def _load(self) -> _Loaded:
        stamp = _stamp(self._home)
        loaded = self._loaded
        if loaded is None or loaded.stamp != stamp:
            self._loaded = loaded = self._combine(stamp)
        return loaded

    def _combine(self, stamp: tuple[object, ...]) -> _Loaded:
        if self._built_in is None:
            self._built_in = [_built_in(path) for path in sorted(self._folder.glob("*.toml"))]
        found = {one.name: one for one in self._built_in}
        added = [_of_home(self._home / FOLDER, name) for name in _files(self._home)] if self._home is not None else []
        found |= {one.name: one for one in added if not one.problem}
        env: dict[str, str] = {}
        setters: dict[str, str] = {}
        for one in sorted(found.values(), key=lambda one: (one.where != BUILT_IN, one.name)):
            clash = next((name for name, value in one.env.items() if env.get(name, value) != value), None)
            if clash is not None:
                said = f"env.{clash}: the profile {setters[clash]} gives it another value"
                found[one.name] = broken = ProfileFacts(name=one.name, where=one.where, problem=said)
                if one.where == BUILT_IN:
                    raise _damaged(self._folder / f"{one.name}.toml", broken.problem)
                continue
            env |= one.env
            setters |= dict.fromkeys(one.env, one.name)
        profiles = [*found.values(), *(one for one in added if one.problem)]
        by_program = {program: one for one in profiles if one.remedies for program in one.programs}
        return _Loaded(stamp, sorted(profiles, key=lambda one: one.name), env, by_program)


def _names(pid: int) -> list[str]:
    """The names under which a profile may know the program: those of its file, its process, its first argument; and the
    script's, if the program is an interpreter.
    """
    found = []
    with contextlib.suppress(OSError):
        found.append(procfs.executable(pid).removesuffix(" (deleted)"))
        found.append(procfs.stat(pid).name)
        found += procfs.command_line(pid)[:2]
    return list(dict.fromkeys(os.path.basename(name) for name in found))


def _built_in(path: Path) -> ProfileFacts:
    try:
        return parse(path.stem, BUILT_IN, path.read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, said: str) -> StoreDamaged:
    return StoreDamaged("load the profile", str(path), said, "install Waypoint again")


def _files(home: Path) -> list[str]:
    """The names of the home's files, sorted, at most _MOST_FILES."""
    try:
        names = os.listdir(home / FOLDER)
    except OSError:  # usually there is none
        return []
    return sorted(name for name in names if name.endswith(".toml"))[:_MOST_FILES]


def _stamp(home: Path | None) -> tuple[object, ...]:
    """A value that changes when a file of the home changes."""
    found: list[object] = []
    if home is not None:
        for path in (home / FOLDER, *(home / FOLDER / name for name in _files(home))):
            with contextlib.suppress(OSError):  # usually there is no folder
                facts = os.lstat(path)
                found.append((path, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size))
    return tuple(found)


def _of_home(folder: Path, name: str) -> ProfileFacts:
    path = folder / name
    try:
        return parse(path.stem, str(path), _read_own(path))
    except OSError as error:
        said = error.strerror or str(error)
    except ValueError as error:
        said = str(error)
    return ProfileFacts(name=path.stem, where=str(path), problem=said)


def _read_own(path: Path) -> bytes:
    """Read a file of the home. Raises ValueError if somebody else than its owner may have written it: its variables
    reach the sessions of all users.
    """
    owner = os.stat(path.parent.parent).st_uid
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        for what, facts in (("the folder", os.lstat(path.parent)), ("the file", os.fstat(fd))):
            if facts.st_uid not in (0, owner) or facts.st_mode & _OTHERS_WRITE:
                raise ValueError(f"{what} must belong to the home's owner, and nobody else may write it (chmod go-w)")
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is not a regular file")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES >> 10} KiB")
    return content


def parse(name: str, where: str, content: bytes) -> ProfileFacts:
    """Read the content of a profile's file. Raises ValueError with the key and the reason."""
    if not _NAME.fullmatch(name):
        raise ValueError("its name must have lower-case letters, digits and -, at most 40")
    try:
        value = tomllib.loads(content.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    _check_keys(value, "", _File.__struct_fields__)
    for key, fields in (("match", _Match.__struct_fields__), ("test", _TEST_KEYS)):
        if isinstance(value.get(key), dict):
            _check_keys(value[key], f"{key}.", fields)
    file = msgspec.convert(value, type=_File, strict=True)  # strict: `VARIABLE = 0` is an error, not the string "0"
    for variable in file.env:
        if variable in _OWN_VARIABLES:
            raise ValueError(f"env.{variable}: Waypoint sets this variable itself")
    for code in file.remedies:
        if code not in _CODES:
            raise ValueError(f"remedies.{code}: no capture is refused with this code; known codes: {_listed(_CODES)}")
    return ProfileFacts(
        name=name,
        where=where,
        programs=file.match.programs,
        reason=file.reason.strip(),
        env=file.env,
        remedies=file.remedies,
        shown_by=file.shown_by,
        test=file.test,
    )


_TEST_KEYS = tuple(field.name for field in dataclasses.fields(ProgramTest))


def _check_keys(value: dict[str, object], before: str, known: tuple[str, ...]) -> None:
    for key in value:
        if key not in known:
            raise ValueError(f"{before}{key}: there is no such key; known keys: {_listed(known)}")


def _listed(words: "frozenset[str] | tuple[str, ...]") -> str:
    return ", ".join(sorted(words))
