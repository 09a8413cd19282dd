"""Starting the programs of a capture again, in a session whose new shell has its state back."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence

from waypoint.linux.net import sockets
from waypoint.linux.tasks import procfs
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import WaypointError
from waypoint.model.records import Capture
from waypoint.model.requests import ExecRequest
from waypoint.processes.respawn.manifest import Manifest, Program
from waypoint.session.birth.users import change_of
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession, RestartedPrograms
from waypoint.terminal.exec.proof import prove
from waypoint.terminal.shell import again
from waypoint.terminal.shell.asked import last_status
from waypoint.terminal.shell.putting_back import Nobody

PORTS_S = 10.0  # how long a server may take until it listens
ALL_PORTS_S = 20.0  # how long all of them may take together: the restore is not done before
_SEEN_S = 1.0  # how long a program may take until it runs
_PAUSE_S = 0.02
_START_S = 10.0


async def start_again(resources: Resources, live: LiveSession, origin: Capture) -> RestartedPrograms:
    """Start the programs of `origin` in their order. Each waits until those before it listen on their ports, for at
    most PORTS_S, all together ALL_PORTS_S. The foreground program is typed on the shell's line, or run if it only shows
    something; then the shell must have answered a request before, as it answers none until the program ends.
    """
    done = RestartedPrograms()
    try:
        manifest = await asyncio.to_thread(_read, resources, origin)
        if said := change_of(origin.setting.user, live.record.row.setting.user):
            done.lost.extend(_not_started(program.shown, said) for program in manifest.programs)
        elif live.shell.watch.shell is None or live.shell.watch.shell.kind == "none":
            said = "the session has no shell that could start it"
            done.lost.extend(_not_started(program.shown, said) for program in manifest.programs)
        else:
            await _start_all(live, manifest, done)
    except (WaypointError, OSError) as error:
        done.lost.append(_not_started("all other programs", str(error)))
    return done


def _not_started(shown: str, why: str) -> Degradation:
    return degradation("program-not-started", shown, why)


def _read(resources: Resources, origin: Capture) -> Manifest:
    with resources.captures.hold(origin) as held:
        return held.manifest()


async def _start_all(live: LiveSession, manifest: Manifest, done: RestartedPrograms) -> None:
    if manifest.omitted:
        done.lost.append(degradation("programs-omitted", str(manifest.omitted)))
    last: Sequence[Program] = ()
    status, left_s = await last_status(live.shell), ALL_PORTS_S
    for line in _lines(manifest.programs):
        why = next((program.lost for program in line if program.lost), "")
        if why:
            done.lost.append(_not_started(_shown(line), why))
        elif line[0].role == "foreground":
            last = line
        elif said := await _start(live, line, status):
            done.lost.append(_not_started(_shown(line), said))
        else:
            begin = time.monotonic()
            if said := await _wait_listening(live, line, left_s):
                done.lost.append(_not_started(_shown(line), said))
            else:
                done.respawned.append(_shown(line))
            left_s = max(0.0, left_s - (time.monotonic() - begin))
    if last:
        await _offer(live, last, done)


def _lines(programs: Sequence[Program]) -> Iterator[list[Program]]:
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


async def _start(live: LiveSession, line: Sequence[Program], status: int) -> str:
    """Start a pipeline. Return "", or the reason why that failed."""
    job, folder = again.job(line, live.branch, status), live.shell.desk.folder
    folder.write("back", job.body)
    try:
        request = ExecRequest(text=job.command, tty=True, timeout_s=_START_S)
        ended = await live.shell.execute(request, Nobody(), Nobody())
    finally:
        folder.remove("back")
    if ended["by"] != "command":
        return str(ended["said"])
    if not await _until(lambda: all(_runs(live, program) for program in line), _SEEN_S):
        return "it ended immediately"
    return ""


async def _wait_listening(live: LiveSession, line: Sequence[Program], left_s: float) -> str:
    """Wait until the programs listen on their ports. Returns the missing ports, in words; "" if none."""
    wanted = {port for program in line for port in program.ports}
    if await _until(lambda: wanted <= _ports(live), min(PORTS_S, left_s)):
        return ""
    missing = ", ".join(sorted(wanted - _ports(live)))
    said = f"{PORTS_S:.0f} s" if left_s >= PORTS_S else f"the {ALL_PORTS_S:.0f} s that all programs have for that"
    return f"it runs, and does not listen on {missing} after {said}"


def _runs(live: LiveSession, program: Program) -> bool:
    argv = b"".join(word + b"\0" for word in program.argv)
    for pid in live.processes():
        try:
            if procfs.raw(pid, "cmdline", len(argv) + 1) == argv:
                return True
        except (ProcessLookupError, PermissionError):
            continue
    return False


def _ports(live: LiveSession) -> set[str]:
    return {f"tcp {port}" for port in sockets.listening(live.record.init_pid).values()}


async def _offer(live: LiveSession, line: Sequence[Program], done: RestartedPrograms) -> None:
    text, shown = again.offered(line), _shown(line)
    if text is None or any(program.folder != line[0].folder for program in line):
        done.lost.append(_not_started(shown, "it was in the foreground, and cannot be typed again"))
        return
    unasked = again.may_run_unasked(line)
    if unasked:
        await prove(live.shell, is_new=True, must_answer=True)
    live.terminal.append(
        f"\r\n» {shown}: {'runs again' if unasked else 'Enter runs it again, ^C does not'}\r\n".encode()
    )
    live.terminal.typed.write(text.encode() + (b"\r" if unasked else b""))
    (done.respawned if unasked else done.offered).append(shown)
    done.in_foreground = unasked


async def _until(condition: Callable[[], bool], wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_PAUSE_S)
    return True
