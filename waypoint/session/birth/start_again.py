"""Starting the programs of a capture of tier `respawn` again, in a session whose new shell has its state back."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from waypoint.linux.net import sockets
from waypoint.linux.tasks import procfs
from waypoint.model.errors import WaypointError
from waypoint.model.records import Capture
from waypoint.model.requests import ExecRequest
from waypoint.processes import ports
from waypoint.processes.profiles.known import Profiles
from waypoint.processes.respawn.manifest import Manifest, Program
from waypoint.processes.respawn.renewed import may_run_unasked, renewed
from waypoint.session.birth.users import change_of
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import Again, LiveSession
from waypoint.terminal.shell import again
from waypoint.terminal.shell.asked import comes_to_prompt, last_status
from waypoint.terminal.shell.putting_back import Nobody

PORTS_S = 10.0  # how long a server may take until it listens
ALL_PORTS_S = 20.0  # how long all of them may take together: the restore is not done before
_SEEN_S = 1.0  # how long a program may take until it runs
LIVES_S = 0.25  # how long the last one that was started must live, to be one that runs again
_ENDED = "it has ended at once"
_NOT_TYPED = "it was in the foreground, and cannot be typed again"
_PAUSE_S = 0.02
_START_S = 10.0


async def start_again(resources: Resources, live: LiveSession, origin: Capture) -> Again | None:
    """Start the programs of `origin` in their order, each one when those before it listen on their ports: for that, one
    is waited for PORTS_S seconds, and all together ALL_PORTS_S. What was in the foreground is put on the shell's line,
    or run if its profile says that this is safe.

    Returns None if the capture has no list of them. In a live session, whose processes are back, only those are started
    that the capture has not kept alive. What cannot be started is told as lost.
    """
    if origin.layers.programs is None:
        return None
    done = Again([], [], [])
    try:
        manifest = await asyncio.to_thread(_read, resources, origin)
        if live.record.tier == "live":
            manifest = manifest.ended
        if said := change_of(origin.setting.user, live.record.row.setting.user):
            done.lost.extend(f"{program.shown}: {said}" for program in manifest.programs)
        elif live.shell.watch.shell is None or live.shell.watch.shell.kind == "none":
            done.lost.extend(
                f"{program.shown}: the session has no shell that could start it" for program in manifest.programs
            )
        elif live.record.tier == "live" and not await comes_to_prompt(live.shell):
            done.lost.extend(
                f"{program.shown}: the shell is busy, and cannot start it" for program in manifest.programs
            )
        else:
            is_busy = await _start_all(live, manifest, done, resources.places.profiles.now())
            return done._replace(is_busy=is_busy)
    except (WaypointError, OSError) as error:
        done.lost.append(f"all other programs: {error}")
    return done


def _read(resources: Resources, origin: Capture) -> Manifest:
    with resources.captures.hold(origin) as held:
        return held.manifest()


class _Started(NamedTuple):
    """A pipeline that was started in a session that had the processes `before`. `seen`: its processes at first; they
    may execute other programs.
    """

    line: Sequence[Program]
    before: Collection[int]
    seen: Collection[int]

    def lives(self, live: LiveSession) -> bool:
        """Whether none of its programs has ended, without leaving one of its kind, as a program does that goes into the
        background by itself.
        """
        now = set(live.processes()) - set(self.before)
        return now >= set(self.seen) or all(any(_runs(pid, program) for pid in now) for program in self.line)


async def _start_all(live: LiveSession, manifest: Manifest, done: Again, profiles: Profiles) -> bool:
    """Returns whether one of them runs in the shell's foreground."""
    if manifest.omitted:
        done.lost.append(f"{manifest.omitted} more: there are too many")
    foreground: list[Sequence[Program]] = []
    started: list[_Started] = []
    programs = [renewed(program, profiles) for program in manifest.programs]
    status, left_s = await last_status(live.shell), ALL_PORTS_S
    for line in _lines(programs):
        why = next((program.lost for program in line if program.lost), "")
        if not why and line[0].role == "foreground":
            foreground.append(line)
            continue
        new = why or await _start(live, line, status)
        if isinstance(new, _Started):
            begin = time.monotonic()
            why = await _wait_listening(live, new, left_s)
            left_s = max(0.0, left_s - (time.monotonic() - begin))
            started += [] if why else [new]
        else:
            why = new
        if why:
            done.lost.append(f"{_shown(line)}: {why}")
    await _tell_started(live, started, done)
    if len(foreground) == 1:
        return await _offer(live, foreground[0], done, profiles)
    done.lost.extend(f"{_shown(line)}: {_NOT_TYPED}" for line in foreground)  # parts of a line that is not known
    return False


async def _tell_started(live: LiveSession, started: Sequence[_Started], done: Again) -> None:
    """Tell of what was started whether it runs again, when the last of it has had LIVES_S seconds to end; what listens
    on its ports needs none.
    """
    if any(not program.ports for one in started for program in one.line):
        await _until(lambda: not any(one.lives(live) for one in started), LIVES_S)
    for one in started:
        if await asyncio.to_thread(one.lives, live):
            done.respawned.append(_shown(one.line))
        else:
            done.lost.append(f"{_shown(one.line)}: {_ENDED}")


def _lines(programs: Sequence[Program]) -> Iterator[list[Program]]:
    """The programs, those of one pipeline together."""
    for (role, _), found in itertools.groupby(programs, key=lambda one: (one.role, one.group)):
        line: list[Program] = []
        for program in found:
            if line and (role == "service" or not _feeds(line[-1], program)):
                yield line
                line = []
            line.append(program)
        yield line


def _feeds(one: Program, other: Program) -> bool:
    written = {stream.pipe for stream in one.streams if stream.number == 1 and stream.pipe}
    return any(stream.pipe in written for stream in other.streams if stream.number == 0)


def _shown(line: Sequence[Program]) -> str:
    return " | ".join(program.shown for program in line)


async def _start(live: LiveSession, line: Sequence[Program], status: int) -> _Started | str:
    """Returns in words why that did not work, if it did not."""
    before = await asyncio.to_thread(live.processes)
    job, folder = again.job(line, live.own_env, status), live.shell.desk.folder
    folder.write("back", job.body)
    try:
        request = ExecRequest(text=job.command, tty=True, timeout_s=_START_S)
        ended = await live.shell.execute(request, Nobody(), Nobody())
    finally:
        folder.remove("back")
    if ended["by"] != "command":
        return str(ended["said"])
    seen: list[int] = []

    def all_run() -> bool:
        new = set(live.processes()) - set(before)
        found = [[pid for pid in new if _runs(pid, program)] for program in line]
        seen[:] = itertools.chain(*found)
        return all(found)

    return _Started(line, before, seen) if await _until(all_run, _SEEN_S) else _ENDED


async def _wait_listening(live: LiveSession, started: _Started, left_s: float) -> str:
    """Wait until the programs listen on their ports, PORTS_S seconds and no longer than `left_s`. Returns what is
    missing then, in words; "" if nothing is.
    """
    wanted = {port for program in started.line for port in program.ports}
    if await _until(lambda: wanted <= _ports(live) or not started.lives(live), min(PORTS_S, left_s)):
        return "" if wanted <= _ports(live) else _ENDED
    missing = ", ".join(sorted(wanted - _ports(live)))
    said = f"{PORTS_S:.0f} s" if left_s >= PORTS_S else f"the {ALL_PORTS_S:.0f} s that all programs have for that"
    return f"it runs, and does not listen on {missing} after {said}"


def _runs(pid: int, program: Program) -> bool:
    argv = b"".join(word + b"\0" for word in program.argv)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return procfs.raw(pid, "cmdline", len(argv) + 1) == argv
    return False


def _ports(live: LiveSession) -> set[str]:
    """Those on which the session listens."""
    found = sockets.listening(live.record.init_pid)
    if live.record.row.setting.net == "host":  # where others listen, too
        own = {inode for inode, _pid, _number in ports.open_sockets(live.processes())}
        found = [one for one in found if one.inode in own]
    return {f"tcp {one.port}" for one in found}


async def _offer(live: LiveSession, line: Sequence[Program], done: Again, profiles: Profiles) -> bool:
    """Returns whether it was run unasked."""
    text, shown = again.offered(line), _shown(line)
    if text is None or any(program.folder != line[0].folder for program in line):
        done.lost.append(f"{shown}: {_NOT_TYPED}")
        return False
    unasked = may_run_unasked(line, profiles)
    live.terminal.append(
        f"\r\n» {shown}: {'runs again' if unasked else 'Enter runs it again, ^C does not'}\r\n".encode()
    )
    live.terminal.typed.write(text.encode() + (b"\r" if unasked else b""))
    (done.respawned if unasked else done.offered).append(shown)
    return unasked


async def _until(condition: Callable[[], bool], wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_PAUSE_S)
    return True
