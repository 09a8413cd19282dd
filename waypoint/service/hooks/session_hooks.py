"""A session's own hooks: programs in its folders /etc/waypoint/hooks/pre-checkpoint.d, post-checkpoint.d and
post-restore.d, as of systemd-sleep(8), by which a database is told to flush, or a client to connect anew; and what the
workload profiles of its processes have run at the same moments (`before`, `after`).

They run one after the other in the order of their names, as processes beside the shell, as the session's user. All of
one moment have HOOKS_S seconds together. One that fails is said, and keeps nothing from being done. While they run, the
session's processes move no branch (inside/serving.py): a hook that asks for a capture would be run again for that one.
"""

import asyncio
import contextlib
import errno
import functools
import itertools
import os
import stat
from typing import Literal

from waypoint.linux.storage import beneath
from waypoint.linux.tasks import procfs
from waypoint.model.errors import as_text, cleaned
from waypoint.model.requests import RunRequest
from waypoint.model.streams import Frame
from waypoint.processes.profiles.known import Profiles, arguments
from waypoint.session.checkpoint import Prepare
from waypoint.session.live.session import LiveSession

HOOKS_S = 10.0
_FOLDER = "etc/waypoint/hooks"
_MOST_LOOKED_AT = 1024
_IDLE = "it may not be executed (chmod +x)"
_MOST = 64  # of one moment; further ones are left out, and said
_MOST_SAID_BYTES = 200  # of what one prints

Moment = Literal["pre-checkpoint", "post-checkpoint", "post-restore"]


async def run_hooks(live: LiveSession, moment: Moment, profiles: Profiles) -> list[str]:
    """Run the session's hooks of the moment, then what the profiles of its processes want to be run. Returns, in words,
    what failed; raises nothing. If there are none, this takes one look at the session's /etc.
    """
    try:
        names, idle = await asyncio.to_thread(_find, live.record.init_pid, moment)
    except (FileNotFoundError, ProcessLookupError):  # the session has just ended
        return []
    except OSError as error:
        return [f"the hooks of {moment} could not be looked for: {error.strerror}"]
    failed = [f"{len(names) - _MOST} hooks of {moment} were not run: there are too many"] if len(names) > _MOST else []
    failed += [as_text(cleaned(f"the hook {moment}.d/{name} was not run: {_IDLE}")) for name in idle]
    until = asyncio.get_running_loop().time() + HOOKS_S
    live.hooks_running += 1
    try:
        for name in names[:_MOST]:
            said = await _run(live, [f"/{_FOLDER}/{moment}.d/{name}"], {"WAYPOINT_HOOK": moment}, until)
            failed += [as_text(cleaned(f"the hook {moment}.d/{name} {said}"))] if said else []
        for profile, argv, pids in await asyncio.to_thread(_of_profiles, live, moment, profiles):
            env = {"WAYPOINT_HOOK": moment, "WAYPOINT_PIDS": " ".join(map(str, pids))}
            said = await _run(live, argv, env, until)
            failed += [as_text(cleaned(f"the {moment} of the profile {profile} {said}"))] if said else []
    finally:
        live.hooks_running -= 1
    return failed


def before_capture(profiles: Profiles) -> Prepare:
    """What runs what is to be run before a capture that somebody asked for."""
    return functools.partial(run_hooks, moment="pre-checkpoint", profiles=profiles)


def _of_profiles(live: LiveSession, moment: Moment, profiles: Profiles) -> list[tuple[str, list[str], list[int]]]:
    """The programs that profiles want to be run at the moment, each with the profile's name, and the pids of its
    processes, as the session sees them. Looks at the processes only if there is such a profile.
    """
    if not profiles.has_hooks or moment == "post-checkpoint":
        return []
    found: dict[str, tuple[str, list[str], list[int]]] = {}
    for pid in live.processes():
        matched = profiles.of(arguments(pid))
        argv = (matched.profile.before if moment == "pre-checkpoint" else matched.profile.after) if matched else None
        if matched is not None and argv is not None:
            with contextlib.suppress(ProcessLookupError):
                found.setdefault(matched.name, (matched.name, argv, []))[2].append(procfs.session_pid(pid))
    return sorted((name, argv, sorted(pids)) for name, argv, pids in found.values() if pids)


def _find(init: int, moment: Moment) -> tuple[list[str], list[str]]:
    """The names of the programs, sorted, and those of scripts that may not be executed. A folder that is not there, or
    is no folder, has none. Raises OSError.
    """
    with contextlib.ExitStack() as held:
        root = procfs.open_root(init)
        held.callback(os.close, root)
        try:
            folder = held.enter_context(beneath.opened(root, f"{_FOLDER}/{moment}.d", os.O_RDONLY | os.O_DIRECTORY))
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, _MOST_LOOKED_AT + 1))
        if len(names) > _MOST_LOOKED_AT:
            raise OSError(errno.E2BIG, f"there are more than {_MOST_LOOKED_AT} files")
        found = {name: os.stat(name, dir_fd=folder, follow_symlinks=False) for name in names}
        programs = [name for name in names if _is_program(found[name])]
        files = [name for name in names if stat.S_ISREG(found[name].st_mode) and name not in programs]
        return programs, [name for name in files if _is_script(folder, name)]
    return [], []


def _is_program(found: os.stat_result) -> bool:
    return stat.S_ISLNK(found.st_mode) or (stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111))


def _is_script(folder: int, name: str) -> bool:
    with contextlib.suppress(OSError):  # it has just been removed, or replaced
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            return os.read(fd, 2) == b"#!"
        finally:
            os.close(fd)
    return False


async def _run(live: LiveSession, argv: list[str], env: dict[str, str], until: float) -> str:
    """Run one hook. Returns how it failed, "" if it did not."""
    left_s = until - asyncio.get_running_loop().time()
    if left_s <= 0:
        return f"was not run: those before it took {HOOKS_S:g} s"
    if any(as_text(word) != word for word in argv):
        return "was not run: its name is no text"
    bound, output = _Bound(left_s), _Output()
    try:
        ended = await live.run(RunRequest(argv=argv, env=env), bound, output)
    except OSError as error:  # the session has nothing left where its exit status could lie
        return f"was not run: {error.strerror or error}"
    if bound.is_over:
        return f"was killed: it took longer than {left_s:.1f} s"
    if ended.get("exit") == 0:
        return ""
    said = str(ended.get("said") or output.text())
    return f"ended with {ended.get('exit')}{': ' if said else ''}{said}"


class _Bound:
    """What a client would send that kills the process after some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.is_over = False

    async def receive(self) -> Frame | None:
        if self.is_over:
            await asyncio.Event().wait()  # until the process has ended
        await asyncio.sleep(self._seconds)
        self.is_over = True
        return Frame("k", b"KILL")


class _Output:
    """Keeps the beginning of what the process prints."""

    def __init__(self) -> None:
        self._kept = b""

    async def output(self, data: bytes | memoryview) -> None:
        self._kept += bytes(data[: _MOST_SAID_BYTES - len(self._kept)]) if len(self._kept) < _MOST_SAID_BYTES else b""

    errors = output

    async def note(self, facts: dict[str, object]) -> None:
        pass

    def text(self) -> str:
        return " ".join(self._kept.decode(errors="replace").split())
