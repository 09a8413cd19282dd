"""The profiles of a home: ours, which are installed with Waypoint, and those that its owner has put into `profiles`.

A profile decides what runs in sessions, so a file counts only if nobody but root and the home's owner may write to it.
Nothing inside a session is read to find profiles; a session's processes only say, by their arguments, which they get.
"""

import contextlib
import logging
import os
import re
import stat
import threading
from collections.abc import Iterable, Sequence
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

from waypoint.linux.tasks import procfs
from waypoint.model.errors import StoreDamaged, UsageProblem, WaypointError
from waypoint.model.late_pattern import late_pattern
from waypoint.processes.profiles.profile import (
    MAX_BYTES,
    Profile,
    StartedAgain,
    parse_profile,
    pids_named,
    started_again,
)

OURS = Path(__file__).resolve().parents[3] / "criu_profiles"
FOLDER = "profiles"
"""Of the home."""
MOST = 256  # profiles in a home's folder
_MOST_ARGUMENT_BYTES = 4096  # of a process that is looked at
_NAME = late_pattern(r"[a-z0-9][a-z0-9-]{0,63}")
_ANY = "*"
_MEND = "mend or remove it; 'waypoint profile show base' prints one that is right"

log = logging.getLogger(__name__)


class Named(NamedTuple):
    """A profile that counts. `path`: its file; "" for one that is only tried. `text`: what is in it."""

    name: str
    path: str
    profile: Profile
    text: str


class Matched(NamedTuple):
    """The profile of a process. `head`: how many of its words name the program: two, if that is a script's."""

    name: str
    profile: Profile
    head: int


class Profiles:
    """The profiles that count at one moment. `problems`: what is wrong with files that do not count."""

    def __init__(self, own: Sequence[Named], ours: Sequence[Named], problems: Sequence[WaypointError] = ()) -> None:
        names = {one.name for one in own}
        self.all = (*own, *(one for one in ours if one.name not in names))
        self.problems = tuple(problems)
        self.environment: dict[str, str] = {}
        self._by_file: dict[str, Named] = {}
        patterns: list[tuple[str, Named]] = []
        for one in self.all:
            self.environment = {**one.profile.env, **self.environment}
            for program in one.profile.match.programs:
                if _is_pattern(program):
                    patterns.append((program, one))
                else:
                    self._by_file.setdefault(program, one)
        patterns.sort(key=lambda found: found[0] == _ANY)
        self._patterns = [(re.compile(translate(pattern)), one) for pattern, one in patterns]
        self.has_hooks = any(one.profile.before or one.profile.after for one in self.all)

    def of(self, argv: Sequence[str]) -> Matched | None:
        """The profile of the process with these arguments; None if it has none. That of a script goes before that of
        the program which runs the script, a file name before a pattern, one of the home before one of ours.
        """
        if not argv:
            return None
        found = self._called(_file_name(argv[0]))
        if found is not None and found.profile.match.runs_scripts:
            place = _place_of_script(argv)
            script = self._called(_file_name(argv[place]), any_too=False) if place else None
            if script is not None:
                return Matched(script.name, script.profile, place + 1)
        return Matched(found.name, found.profile, 1) if found is not None else None

    def again(self, argv: Sequence[str]) -> StartedAgain:
        """How the program with these arguments is started again."""
        found = self.of(argv)
        if found is None:
            return StartedAgain(list(argv))
        again = started_again(found.profile.again, argv, found.head)
        called = argv[found.head - 1]  # a path from a folder may lead to anything of that name
        return again if os.path.isabs(called) or "/" not in called else again._replace(unasked=False)

    def pids_named(self, argv: Sequence[str]) -> set[int]:
        """The numbers by which the program's arguments name processes, as its profile says."""
        found = self.of(argv)
        return pids_named(found.profile.again, argv[found.head :]) if found is not None else set()

    def deleted_files_mib(self, processes: Iterable[Sequence[str]]) -> int:
        """Up to which size deleted files of the processes with these arguments are kept, as far as their profiles, and
        those of every program, say; 0 if none does.
        """
        found = [one.profile for one in map(self.of, processes) if one is not None]
        of_all = [one.profile for one in self.all if _ANY in one.profile.match.programs]
        return max((one.criu.deleted_files_mib for one in [*of_all, *found]), default=0)

    @property
    def most_deleted_bytes(self) -> int:
        """The size of the largest deleted file that any of the profiles keeps: a process may call itself anything."""
        return max((one.profile.criu.deleted_files_mib for one in self.all), default=0) << 20

    def degraded(self, processes: Iterable[Sequence[str]]) -> list[str]:
        """What copies of the processes with these arguments lack, as their profiles say, each behind the program's
        name.
        """
        found = ((words, self.of(words)) for words in processes)
        return sorted(
            {
                f"{_file_name(words[one.head - 1])}: {said}"
                for words, one in found
                if one
                for said in one.profile.degrades
            }
        )

    def _called(self, file: str, *, any_too: bool = True) -> Named | None:
        if file in self._by_file:
            return self._by_file[file]
        for pattern, one in self._patterns:
            if pattern.match(file) and (any_too or _ANY not in one.profile.match.programs):
                return one
        return None


class KnownProfiles:
    """The profiles of one home, read when they are first needed, and again when the home's folder has changed."""

    def __init__(self, home: Path) -> None:
        """Raises StoreDamaged if one of ours cannot be used."""
        self._folder = home / FOLDER
        self._ours = read_ours()
        self._lock = threading.Lock()
        self._seen: object = None
        self._now = Profiles([], self._ours)

    def now(self) -> Profiles:
        """Those that count now. If nothing has changed since the last call, this costs a call of the kernel for each
        file in the home's folder. Raises nothing: a file that cannot be used does not count, and the log says so.
        """
        with self._lock:
            seen = _look(self._folder)
            if seen != self._seen:
                self._seen = seen
                self._now = _with_own(self._folder, self._ours) if seen is not None else Profiles([], self._ours)
                for problem in self._now.problems:
                    log.warning("%s", problem)
            return self._now

    def with_one(self, name: str, text: str) -> Profiles:
        """Those that would count if the home's folder had one more. Raises UsageProblem if the text is no profile."""
        now = self.now()
        tried = Named(name, "", _parsed(text, f"{name}.toml"), text)
        own = [one for one in now.all if not _is_ours(one) and one.name != name]
        return Profiles([tried, *own], self._ours)


def arguments(pid: int) -> list[str]:
    """The first words of the process's command line, or its name alone; [] if it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        words = procfs.raw(pid, "cmdline", _MOST_ARGUMENT_BYTES).split(b"\0")
        return [os.fsdecode(word) for word in words[:-1] or words[:1]] if words[0] else [procfs.stat(pid).name]
    return []


def read_ours(folder: Path = OURS) -> list[Named]:
    """Our profiles, by name. Raises StoreDamaged if one is none, or contradicts another."""
    found: list[Named] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            text = path.read_text()
            one = Named(path.stem, str(path), parse_profile(text), text)
            _check_agrees(one, found)
        except ValueError as error:
            raise StoreDamaged("load the profile", str(path), str(error), "install Waypoint again") from error
        found.append(one)
    return found


def _is_ours(one: Named) -> bool:
    return one.path.startswith(f"{OURS}/")


def _is_pattern(program: str) -> bool:
    return any(char in program for char in "*?[")


def _file_name(word: str) -> str:
    """The program's file name. A server may have written over its first word (`postgres: checkpointer`), a shell is
    `-bash` at a login.
    """
    return os.path.basename(word.partition(": ")[0]).removeprefix("-")


def _place_of_script(argv: Sequence[str]) -> int:
    """Where among the words the script is, or the name of a module (`-m`), that an interpreter runs; 0: nowhere."""
    for place, word in enumerate(argv[1:], 1):
        if word == "-m":
            return place + 1 if place + 1 < len(argv) else 0
        if not word.startswith("-"):
            return place
    return 0


def _check_agrees(one: Named, others: Iterable[Named]) -> None:
    for other in others:
        for variable, value in one.profile.env.items():
            if other.profile.env.get(variable, value) != value:
                raise ValueError(f"{other.name} gives {variable} another value")


def _parsed(text: str, on: str) -> Profile:
    try:
        return parse_profile(text)
    except ValueError as error:
        raise UsageProblem("read the profile", on, str(error), _MEND) from error


def _look(folder: Path) -> object:
    """What a file in the folder cannot change without changing; None if there is no folder."""
    files = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed, or renamed, since the folder was listed
                    files.append((entry.name, _moment(entry.stat(follow_symlinks=False))))
        return _moment(os.stat(folder)), sorted(files)[: 2 * MOST]
    except OSError as error:
        return None if isinstance(error, FileNotFoundError) else error.errno


def _moment(found: os.stat_result) -> tuple[int, ...]:
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


def _with_own(folder: Path, ours: Sequence[Named]) -> Profiles:
    own: list[Named] = []
    problems: list[WaypointError] = []
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return Profiles([], ours, [UsageProblem("read", str(folder), error.strerror or str(error), _MEND)])
    try:
        owners = {0, os.stat(folder.parent).st_uid}
        _check_owner(os.fstat(fd), str(folder), owners)
        files = sorted(name for name in os.listdir(fd) if name.endswith(".toml"))
        if len(files) > MOST:
            said = f"it has {len(files)} profiles, the first {MOST} count"
            problems.append(UsageProblem("read", str(folder), said, _MEND))
        for file in files[:MOST]:
            try:
                own.append(_read_own(fd, folder, file, owners))
                _check_agrees(own[-1], own[:-1])
            except ValueError as error:
                one = own.pop()
                problems.append(UsageProblem("use the profile", one.path, str(error), _MEND))
            except (WaypointError, OSError) as error:
                problems.append(_as_problem(error, f"{folder}/{file}"))
    except WaypointError as error:
        problems.append(error)
    finally:
        os.close(fd)
    return Profiles(own, ours, problems)


def _read_own(folder_fd: int, folder: Path, file: str, owners: set[int]) -> Named:
    """Raises UsageProblem, OSError."""
    path, name = f"{folder}/{file}", file.removesuffix(".toml")
    if not _NAME.fullmatch(name):
        raise UsageProblem("read the profile", path, "its name is not of a-z, 0-9 and dashes", _MEND)
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    with open(fd, "rb") as opened:
        found = os.fstat(fd)
        _check_owner(found, path, owners)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            said = f"it is no plain file of at most {MAX_BYTES} bytes"
            raise UsageProblem("read the profile", path, said, _MEND)
        text = opened.read(MAX_BYTES + 1).decode(errors="replace")
    return Named(name, path, _parsed(text, path), text)


def _check_owner(found: os.stat_result, path: str, owners: set[int]) -> None:
    if found.st_uid not in owners or found.st_mode & 0o022:
        said = "others than root and the home's owner may write to it, and a profile decides what runs"
        raise UsageProblem("read", path, said, f"chown root {path}; chmod go-w {path}")


def _as_problem(error: WaypointError | OSError, path: str) -> WaypointError:
    if isinstance(error, WaypointError):
        return error
    return UsageProblem("read the profile", path, error.strerror or str(error), _MEND)
