"""Live sessions: listing, starting and stopping them, and the streams that each has."""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator

from waypoint.branch import refs
from waypoint.branch.graph import walk_back
from waypoint.capture.bounds import check_open_files
from waypoint.capture.captures import Captures, Held
from waypoint.capture.layers.subject import family_of
from waypoint.model.details.process_facts import SurveyedProcess
from waypoint.model.errors import HostLacks, StateConflict, UnknownName, UsageProblem, WaypointError
from waypoint.model.facts import SessionFacts, StopFacts, StopsFacts
from waypoint.model.names import parse_name
from waypoint.model.paths import spelled
from waypoint.model.records import Capture
from waypoint.model.requests import (
    AttachRequest,
    CallersRequest,
    ExecRequest,
    LogsRequest,
    RunRequest,
    SessionsQuery,
    StartRequest,
    StopRequest,
    StopsRequest,
)
from waypoint.model.streams import Inlet, Outlet
from waypoint.processes import survey as processes_survey
from waypoint.processes.left_out import marked
from waypoint.service.home import Home
from waypoint.service.hooks.session_hooks import before_capture
from waypoint.service.shapes import Peer, Stream
from waypoint.session import lacking, session_facts
from waypoint.session import start as starting
from waypoint.session.birth import rights
from waypoint.session.birth.users import Asker, check_owner
from waypoint.session.checkpoint import Wish, checkpoint
from waypoint.session.live.holding import holding
from waypoint.session.live.session import CLIENTS_S, LiveSession
from waypoint.session.live.subject import subject_of
from waypoint.session.registry import way_on
from waypoint.terminal.view_filter import scrollback

_PIECE = 1 << 16
_EARLIER = 64  # captures that are looked at for what a terminal had shown


async def sessions(home: Home, query: SessionsQuery) -> Iterator[SessionFacts]:
    """The live sessions; with `query.all` also branches that could be started again. Sorted by branch. The iterator
    blocks, as that of `history.log`.
    """
    return await session_facts.of_all(home.sessions, rights.sight(home.sessions.resources), all_branches=query.all)


async def session(home: Home, branch: str) -> SessionFacts:
    """The live session on `branch`. Raises UnknownName, StateConflict if the branch has no live session."""
    return await session_facts.of_live(home.sessions.get(branch), home.pool, rights.sight(home.sessions.resources))


async def start(home: Home, request: StartRequest, peer: Peer) -> tuple[SessionFacts, bool]:
    """The branch's live session; started by this call if there was none (then True).

    Raises UsageProblem, UnknownName, StateConflict, HostLacks, Failed.
    """
    parse_name(request.branch)
    if request.from_name is not None:
        parse_name(request.from_name)
    started = await starting.start(home.sessions, request, peer.uid)
    if request.to_attach:
        _expect_client(started.live)
    found = session_facts.of_start(started.live)
    if started.origin is not None:
        found = dataclasses.replace(found, degraded=lacking.of_copy(started.live, started.origin) or None)
    return found, started.is_new


def _expect_client(live: LiveSession) -> None:
    """Have the session stay, if it ends, until a client has attached to it, but no longer than CLIENTS_S from now."""
    live.expected = contextlib.ExitStack()
    live.expected.enter_context(live.stream())
    asyncio.get_running_loop().call_later(CLIENTS_S, live.expected.close)


async def stop(home: Home, branch: str, request: StopRequest) -> StopFacts:
    """End the session on `branch`; its files are kept as the branch's tip, or as the checkpoint that is asked for.

    Raises UnknownName, StateConflict, UsageProblem, and CannotCapture if the checkpoint cannot be made; then
    the session goes on.
    """
    if request.checkpoint is None:
        capture: Capture | None = await starting.stop(home.sessions, branch, discard=request.discard)
    elif request.discard:
        said = "what a checkpoint keeps cannot be thrown away as well"
        raise UsageProblem("stop", f"branch {branch}", said, "leave out --discard or --checkpoint")
    else:
        capture = await checkpoint(
            home.sessions, branch, Wish(request.checkpoint, park=True), prepare=before_capture(home.profiles.now())
        )
    if capture is None:
        return StopFacts(branch=branch)
    return StopFacts(branch=branch, capture=capture.id, exit=capture.exit, tier=capture.tier, degraded=capture.degraded)


async def stop_several(home: Home, request: StopsRequest) -> StopsFacts:
    """End the sessions on several branches, as `stop`, those that can be ended. All of that is one operation. A name
    without a session that the caller may end is an error; with `request.whole`, none is ended then.
    """
    failed = _without_session(home, request) if request.whole else []
    if failed or not request.branches:
        return StopsFacts(stopped=[], failed=failed)
    each = StopRequest(discard=request.discard)
    before = home.names.last_number()
    ends = [asyncio.ensure_future(stop(home, branch, each)) for branch in dict.fromkeys(request.branches)]
    # Shielded: what has begun to end ends, also if the client goes, and is one operation.
    return await asyncio.shield(asyncio.ensure_future(_stopped(home, ends, before)))


def _without_session(home: Home, request: StopsRequest) -> list[dict[str, str | int]]:
    """The errors of the branches that have no session which the caller may end."""
    failed = list[dict[str, str | int]]()
    for branch in dict.fromkeys(request.branches):
        try:
            starting.check_to_stop(home.sessions, branch, discard=request.discard)
        except WaypointError as error:
            failed.append(error.to_json())
    return failed


async def _stopped(home: Home, ends: list[asyncio.Task[StopFacts]], before: int) -> StopsFacts:
    """Wait for the `ends`, and make one operation of those that were logged after the number `before`."""
    await asyncio.wait(ends)
    found = StopsFacts(stopped=[], failed=[])
    for end in ends:
        error = end.exception()
        if error is None:
            found.stopped.append(end.result())
        elif isinstance(error, WaypointError):
            found.failed.append(error.to_json())
        else:
            raise error
    await asyncio.to_thread(refs.make_one, home.names, "stop", [one.capture for one in found.stopped], before)
    return found


async def attach(home: Home, branch: str, request: AttachRequest, peer: Peer) -> Stream:
    """A stream that shows the session's terminal and takes keystrokes until the session ends or the client goes.

    Raises StateConflict if the session belongs to another user whom the request does not name; so do `execute` and
    `run`.
    """
    is_bound = rights.is_bound(home.sessions.resources)

    def may_have(live: LiveSession) -> bool:
        return not is_bound or live.record.row.setting.user.uid == peer.uid

    live = _of_asker(home, branch, request, peer, f"attach {branch}", request.session)
    return functools.partial(live.attach, request, may_have=may_have)


async def execute(home: Home, branch: str, request: ExecRequest, peer: Peer) -> Stream:
    """A stream that runs a command line in the session's own shell.

    Raises Failed if the pool has become read-only, as `run` does: the session then has no room for what is exchanged
    with its processes.
    """
    if request.resume is not None:  # the command was begun by a client that was let in
        return functools.partial(own_session(home, branch, "go on with").execute, request)
    home.pool.check_writable()
    return functools.partial(_of_asker(home, branch, request, peer, f"exec -b {branch}").execute, request)


async def run(home: Home, branch: str, request: RunRequest, peer: Peer) -> Stream:
    """A stream that runs a process of its own in the session."""
    home.pool.check_writable()
    return functools.partial(_of_asker(home, branch, request, peer, f"run -b {branch}").run, request)


async def logs(home: Home, branch: str, request: LogsRequest) -> Stream:
    """A stream of what the session's terminal has shown, as far back as that is kept. If it is not live, what `branch`
    stands for: its last session, a checkpoint, a capture.

    Raises StateConflict if that was not kept, or if the session with which it is to go on has ended.
    """
    live = home.sessions.find(branch)
    if request.session and (live is None or live.record.row.session != request.session):
        next_step = f"see what it has printed: {spelled(str(home.path), 'logs', branch)}"
        raise StateConflict("follow", f"branch {branch}", "its session has ended with the daemon", next_step)
    if live is not None or branch in home.sessions.unreachable:
        return functools.partial(own_session(home, branch, "show").logs, request)
    return functools.partial(_print, await _scrollback(home, branch))


async def _print(text: bytes, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
    for start in range(0, len(text), _PIECE):
        await outlet.output(text[start : start + _PIECE])
    return {"reason": "ended"}


async def _scrollback(home: Home, name: str) -> bytes:
    """What the terminal of the capture that `name` stands for had shown. Raises as `logs`."""
    resources, names = home.sessions.resources, home.names
    try:
        origin = names.resolve(name)
    except UnknownName:
        home.sessions.get(name)  # says what there is of that name
        raise
    on = rights.called(names, name)
    rights.check_own(resources, origin.setting.user, "show the terminal of", on)
    if origin.layers.terminal is None:
        raise await asyncio.to_thread(_not_kept, home, name, origin)
    async with holding(home.captures, origin) as (held,):
        return await asyncio.to_thread(_text_of, held)


def _text_of(held: Held) -> bytes:
    ring = held.scrollback()
    assert ring is not None
    with contextlib.closing(ring):
        return scrollback(ring)


def _not_kept(home: Home, name: str, origin: Capture) -> StateConflict:
    """The error for a capture without what its terminal had shown; tells of an earlier one that has it. Blocks."""
    names = home.names
    before = itertools.islice(walk_back(names, [origin]), _EARLIER)
    kept = next((one for one in before if one.layers.terminal and not names.standing(one.id).removed), None)
    said = "it is not live, and what its terminal had shown was not kept with it"
    ref = names.ref(name)
    is_branch = ref is not None and ref.kind == "branch"
    next_step = way_on(name, origin) if is_branch else f"start a branch from it: waypoint shell NEW --from {name} -d"
    if kept is not None:
        next_step = f"see what it had shown when it was captured before: waypoint logs {kept.id[:12]}"
    return StateConflict("show the terminal of", rights.called(names, name), said, next_step)


async def survey(home: Home, branch: str) -> list[SurveyedProcess]:
    """The processes of the live session on `branch`, each with the tier that it would reach in a checkpoint. Raises
    UnknownName, StateConflict if the branch has no live session, NotAllowed, CannotCapture if they have too many open
    files.
    """
    subject = subject_of(home.sessions.resources, own_session(home, branch, "look at the processes of"))
    profiles = home.profiles.now()

    def look() -> list[SurveyedProcess]:
        family = family_of(subject)
        check_open_files(family.members)
        found = processes_survey.survey_by_pid(family.init, family.members, profiles)
        if why := _why_none_live(home.captures):
            found = {pid: dataclasses.replace(one, tier="respawn", why=why) for pid, one in found.items()}
        else:
            found = marked(family, found)
        return sorted(found.values(), key=lambda one: one.pid)

    return await asyncio.to_thread(look)


def _why_none_live(captures: Captures) -> str:
    """In words, why no capture can have processes; "" if one can. Raises Failed. Blocks."""
    try:
        captures.find_criu()
    except HostLacks as error:
        return error.said
    return ""


def own_session(home: Home, branch: str, tried: str, closing: str = "") -> LiveSession:
    """The live session on `branch`; if there is none, that with the id `closing`, if that has just ended. Raises
    NotAllowed if the caller may not have it.
    """
    ended = home.sessions.endings.closing.get(closing) if home.sessions.find(branch) is None else None
    live = ended or home.sessions.get(branch)
    rights.check_own(home.sessions.resources, live.record.row.setting.user, tried, f"branch {branch}")
    return live


def _of_asker(
    home: Home, branch: str, request: CallersRequest, peer: Peer, command: str, closing: str = ""
) -> LiveSession:
    """As `own_session`, if it belongs to the user whom the request means. Raises as `check_own`, `check_owner`."""
    live = own_session(home, branch, "go on with", closing)
    asker = Asker(request.user, request.default_user if peer.uid == 0 else None, peer.uid)
    check_owner(f"branch {branch}", live.record.row.setting.user, asker, command, is_live=True)
    return live
