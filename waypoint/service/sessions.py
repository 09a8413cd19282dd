"""Requests about live sessions: listing, starting, stopping, and their streams."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Sequence

from waypoint.capture.layers.layer import CaptureOptions
from waypoint.model.conditions import Degradation, facts_of
from waypoint.model.errors import UsageProblem
from waypoint.model.names import parse_name
from waypoint.model.records import Capture, User
from waypoint.model.requests import (
    AttachRequest,
    CallersRequest,
    ExecRequest,
    LogsRequest,
    PublishRequest,
    RunRequest,
    SessionsQuery,
    StartRequest,
    StopRequest,
)
from waypoint.model.session_facts import PortFacts, SessionFacts, StopFacts, SurveyedProcess
from waypoint.service.home import Home
from waypoint.service.returning import Reached, reach, reporting, returned
from waypoint.service.session_hooks import before_capture
from waypoint.service.shapes import Pages, Peer, Stream
from waypoint.session import parked, session_facts
from waypoint.session import ports as session_ports
from waypoint.session import start as starting
from waypoint.session.birth import rights
from waypoint.session.birth.users import Asker, check_owner
from waypoint.session.checkpoint import checkpoint
from waypoint.session.live.session import LiveSession
from waypoint.session.live.subject import LiveSubject
from waypoint.session.losses import copy_losses


async def sessions(home: Home, query: SessionsQuery) -> Pages[SessionFacts]:
    """The live sessions; with `query.all` also branches that could be started again. Sorted by branch."""
    sees = rights.may_see(home.sessions.resources)
    return map(home.counts.of_sessions, await session_facts.of_all(home.sessions, sees, all_branches=query.all))


async def session(home: Home, branch: str) -> SessionFacts:
    """The live session on `branch`. Raises UnknownName, StateConflict if the branch has no live session."""
    return await session_facts.of_live(home.sessions.get(branch), home.pool, rights.may_see(home.sessions.resources))


async def start(home: Home, request: StartRequest, peer: Peer) -> tuple[SessionFacts, bool]:
    """Return the branch's live session, which is started if missing, and whether this call has started it."""
    parse_name(request.branch)
    if request.from_name is not None:
        parse_name(request.from_name)
    started = await starting.start(home.sessions, request, peer.uid)
    found = session_facts.of_start(started.live)
    if started.origin is not None:
        found = dataclasses.replace(found, degraded=facts_of(copy_losses(started.live, started.origin)) or None)
    return found, started.is_new


async def stop(home: Home, branch: str, request: StopRequest) -> StopFacts:
    """End the session on `branch`; its files, or what else the request says, are kept as the branch's tip.

    Raises CannotCapture if the checkpoint cannot be made; then the session continues. A parked session is brought back
    first, so that its end is the same as without that.
    """
    await returned(home, branch, "stop")
    if request.keep_programs and request.checkpoint is None and not request.discard:
        stopped = await parked.stop(home.sessions, branch, before_capture)
        return _stop_facts(stopped.capture, branch, stopped.degraded)
    if request.checkpoint is None:
        capture: Capture | None = await starting.stop(home.sessions, branch, discard=request.discard)
    elif request.discard:
        said = "--checkpoint keeps the files, --discard deletes them"
        raise UsageProblem("stop", f"branch {branch}", said, "leave out --discard or --checkpoint")
    else:
        options = CaptureOptions(name=request.checkpoint, keep_frozen=True)
        capture = (await checkpoint(home.sessions, branch, options, prepare=before_capture)).capture
    if capture is None:
        return StopFacts(branch=branch)
    return _stop_facts(capture, branch, capture.degraded)


def _stop_facts(kept: Capture, branch: str, degraded: Sequence[Degradation]) -> StopFacts:
    said = facts_of(degraded)
    return StopFacts(branch=branch, capture=kept.id, exit=kept.exit, tier=kept.tier, degraded=said)


async def ports(home: Home, branch: str) -> list[PortFacts]:
    """The ports on which the live session on `branch` listens, and those that are published."""
    return await asyncio.to_thread(session_ports.of_live, _own(home, branch, "look at the ports of"))


async def publish(home: Home, branch: str, request: PublishRequest) -> list[PortFacts]:
    """Publish a port of the live session on `branch`, or end that. Return the published port; [] if it is one no more.

    Raises StateConflict if the port of the machine is in use.
    """
    await returned(home, branch, "publish a port of")
    if request.remove:
        await session_ports.withdraw(home.sessions, branch, request.port)
        return []
    return [await session_ports.publish(home.sessions, branch, request.port)]


async def attach(home: Home, branch: str, request: AttachRequest, peer: Peer) -> Stream:
    """A stream that shows the session's terminal and takes keystrokes until the session ends or the client goes.

    Raises StateConflict if the session belongs to another user than the request means; so do `execute` and `run`.
    """
    is_restricted = rights.is_restricted(home.sessions.resources)

    def may_have(live: LiveSession) -> bool:
        return not is_restricted or live.record.row.setting.user.uid == peer.uid

    found = await _of_asker(home, branch, request, peer, f"attach {branch}")
    return reporting(found, functools.partial(found.live.attach, request, may_have=may_have), at_once=True)


async def execute(home: Home, branch: str, request: ExecRequest, peer: Peer) -> Stream:
    """A stream that runs a command line in the session's own shell.

    Raises Failed if the pool has become read-only, as `run` does: requests and answers are files in the session.
    """
    if request.resume is not None:  # the owner was checked when the command began
        return functools.partial((await _reached(home, branch)).live.execute, request)
    home.pool.check_writable()
    found = await _of_asker(home, branch, request, peer, f"exec -b {branch}")
    return reporting(found, functools.partial(found.live.execute, request))


async def run(home: Home, branch: str, request: RunRequest, peer: Peer) -> Stream:
    """A stream that runs a process of its own in the session."""
    home.pool.check_writable()
    found = await _of_asker(home, branch, request, peer, f"run -b {branch}")
    return reporting(found, functools.partial(found.live.run, request))


async def logs(home: Home, branch: str, request: LogsRequest) -> Stream:
    """A stream of the scrollback of the session's terminal."""
    return functools.partial(_own(home, branch, "show").logs, request)


async def survey(home: Home, branch: str) -> list[SurveyedProcess]:
    """The processes of the live session on `branch`, each with the tier that it would reach."""
    live = _own(home, branch, "look at the processes of")
    resources = home.sessions.resources
    subject = LiveSubject(live, resources.places.sessions / live.record.row.session)
    return await asyncio.to_thread(resources.captures.survey, subject)


def _own(home: Home, branch: str, tried: str) -> LiveSession:
    """The live session on `branch`. Raises NotAllowed if the caller may not have it."""
    live = home.sessions.get(branch)
    rights.check_own(home.sessions.resources, live.record.row.setting.user, tried, f"branch {branch}")
    return live


async def _reached(home: Home, branch: str, meant: Callable[[User], object] = lambda _: None) -> Reached:
    """The session on `branch`, which is brought back if it is parked. `meant`: raises if the request does not mean a
    session of this user. Raises NotAllowed if the caller may not have it.
    """

    def check(owner: User) -> None:
        rights.check_own(home.sessions.resources, owner, "continue", f"branch {branch}")
        meant(owner)

    return await reach(home, branch, check)


async def _of_asker(home: Home, branch: str, request: CallersRequest, peer: Peer, command: str) -> Reached:
    """The session on `branch`, if it belongs to the user whom the request means. Raises NotAllowed, StateConflict."""
    default_user = request.default_user if peer.uid == 0 else None
    asker = Asker(request.user, default_user, peer.uid, request.default_branch)
    return await _reached(
        home, branch, lambda owner: check_owner(f"branch {branch}", owner, asker, command, is_live=True)
    )
