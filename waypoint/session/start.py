"""Starting the session of a branch, and stopping it."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

import msgspec

from waypoint.capture.layers.shell import NOT_WRITTEN
from waypoint.capture.sealing import FinalShellState
from waypoint.linux.tasks import cgroups
from waypoint.model.errors import StateConflict, UnknownName, WaypointError
from waypoint.model.names import parse_name
from waypoint.model.records import Capture, base_of, pinned_id
from waypoint.model.requests import StartRequest
from waypoint.model.verbs import did_you_mean
from waypoint.session.birth.birth import Birth, Failures, bring_up_all, plan_birth
from waypoint.session.birth.rights import as_caller, check_base, check_name, check_own, describe_name
from waypoint.session.birth.setting import Below, check_live_setting, check_restored_setting, plan_setting
from waypoint.session.birth.tiers import ONLY_FILES, choose
from waypoint.session.birth.users import Asker, check_owner
from waypoint.session.end import Conclusion, Discarded, Sealed, end_unheld
from waypoint.session.live.resources import Resources, holding
from waypoint.session.live.session import LiveSession
from waypoint.session.live.subject import LiveSubject
from waypoint.session.registry import Registry, Unreachable

PATIENCE_S = 1.0
"""How long `stop` waits for another operation on the branch before it kills the session's processes."""


class Started(NamedTuple):
    """`is_new`: whether this request started the session. `origin`: the capture from which it was started, if any."""

    live: LiveSession
    is_new: bool
    origin: Capture | None = None


async def start(sessions: Registry, request: StartRequest, uid: int) -> Started:
    """Start the branch's session, unless it is live. `uid`: the uid of the caller."""
    branch, resources = parse_name(request.branch), sessions.resources
    if uid != 0:  # only root may make a request for another user
        request = msgspec.structs.replace(request, default_user=None)
    caller = functools.partial(as_caller, resources)
    asker = Asker(request.user, request.default_user, uid, request.default_branch)
    command = f"shell {branch}" if request.from_name is None else f"shell {branch} --from {request.from_name}"
    asked_base = request.base
    request = await asyncio.to_thread(_with_base, resources, request)
    async with sessions.turn(branch), contextlib.AsyncExitStack() as held_base:
        found = await sessions.settled(branch)
        if found is not None:
            record = found.record
            check_own(resources, record.row.setting.user, "continue", f"branch {branch}")
            check_owner(f"branch {branch}", record.row.setting.user, asker, command, is_live=True)
            await asyncio.to_thread(check_live_setting, request, record.row.setting, record.limits, caller)
            return Started(found, is_new=False)
        check_base(resources, request.base or "/")  # before anything in the base is read
        bases = await asyncio.to_thread(_pinned, resources, request)
        await held_base.enter_async_context(holding(resources.captures, *bases))
        await asyncio.to_thread(resources.places.follow_host)
        origin = _origin(sessions, branch, request.from_name)
        if origin is not None:
            on = describe_name(resources.names, request.from_name or branch)
            check_own(resources, origin.setting.user, "continue", on)
            check_owner(on, origin.setting.user, asker, command, is_live=False)
        async with holding(resources.captures, *([origin] if origin else [])) as held:
            tree = held[0].files if held else None
            origin = held[0].capture if held else None  # complete, also if its processes were dumped only now
            own = origin.setting if origin else None
            below = Below(resources.places.folder_of, asked_base or "", bases[0].setting.image if bases else None)
            setting = await asyncio.to_thread(plan_setting, request, uid, own, tree, caller, below)
        chosen = await asyncio.to_thread(choose, resources, origin, None) if origin is not None else ONLY_FILES
        if origin is not None and chosen.tier == "live":
            check_restored_setting(branch, request, setting, origin)
        size = (request.rows, request.cols)
        birth = await asyncio.to_thread(plan_birth, resources, branch, origin, setting, size, chosen)
        birth = birth._replace(must_enter=request.cwd is not None, exact_ports=bool(request.publish))
        (live,) = await bring_up(sessions, [birth], "start")
        return Started(live, is_new=True, origin=origin)


def _with_base(resources: Resources, request: StartRequest) -> StartRequest:
    """The request with a `Setting.base` in place of the name of a pinned base. Raises UnknownName."""
    name = request.base
    if name is None or (name.startswith("/") and pinned_id(name) is None):
        return request
    bases = resources.names.bases()
    if name not in bases:
        said = f"there is no such base{did_you_mean(name, bases)}"
        next_step = f"'waypoint base list' lists the bases; to use a folder of this machine, give its path: ./{name}"
        raise UnknownName("start a session on", f"base {name}", said, next_step)
    return msgspec.structs.replace(request, base=base_of(bases[name].capture))


def _pinned(resources: Resources, request: StartRequest) -> list[Capture]:
    """The capture of the pinned base in the request, if there is one."""
    ids = filter(None, [request.base and pinned_id(request.base)])
    return list(resources.names.captures_of(list(ids)).values())


async def bring_up(
    sessions: Registry, births: Iterable[Birth], verb: str, failures: Failures | None = None
) -> list[LiveSession]:
    """Start the sessions of all `births` like `bring_up_all`, and enter them in the registry. The caller must have the
    turns of their branches.
    """
    births = list(births)
    found = await bring_up_all(sessions.resources, births, verb, failures)
    for live in found:
        sessions.enlist(live)
    return found


async def stop(sessions: Registry, branch: str, *, discard: bool) -> Capture | None:
    """End the session on `branch`. Return the capture of its files, which is the branch's new tip. With `discard`,
    remove the files and return None.
    """
    conclusion: Discarded | Sealed = Discarded() if discard else Sealed("stopped")
    if branch not in sessions.unreachable:
        sessions.get(branch, to_discard=discard)
    check_name(sessions.resources, branch, "stop")
    async with _turn_to_stop(sessions, branch, conclusion):
        check_name(sessions.resources, branch, "stop")  # again, because the branch may have changed meanwhile
        lost = sessions.unreachable.pop(branch, None)
        if lost is not None:
            return await asyncio.shield(asyncio.ensure_future(_end_lost(sessions.resources, lost, conclusion)))
        live = sessions.get(branch)  # look it up again, because a restore may have replaced the session meanwhile
        if live.shell.watch.is_state_lost and not discard and not live.is_killed:
            conclusion = Sealed("stopped", await _final_shell_state(sessions.resources, live))
        return await asyncio.shield(sessions.endings.begin(live, conclusion, gently=not discard))


@contextlib.asynccontextmanager
async def _turn_to_stop(sessions: Registry, branch: str, conclusion: Conclusion) -> AsyncIterator[None]:
    """Hold the turn (lock) of the branch in the `with` block. If another operation keeps it for longer than PATIENCE_S,
    kill the session's processes first: the operation may wait for one of them.
    """
    killed: LiveSession | None = None
    async with contextlib.AsyncExitStack() as held:
        try:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await held.enter_async_context(sessions.turn(branch))
            except TimeoutError:
                check_name(sessions.resources, branch, "stop")
                killed = sessions.find(branch)
                if killed is not None:
                    killed.is_killed = True
                    await asyncio.to_thread(cgroups.end, killed.record.cgroup)
                await held.enter_async_context(sessions.turn(branch))
            yield
        finally:
            if killed is not None and killed.ending is None:
                sessions.endings.begin(killed, conclusion)


async def _final_shell_state(resources: Resources, live: LiveSession) -> FinalShellState:
    subject = LiveSubject(live, resources.places.sessions / live.record.row.session)
    asked = await asyncio.to_thread(resources.captures.ask_shell, subject)
    return FinalShellState(asked, () if asked else (NOT_WRITTEN,))


async def _end_lost(resources: Resources, lost: Unreachable, conclusion: Conclusion) -> Capture | None:
    end = functools.partial(end_unheld, resources, lost.row, lost.cgroup, conclusion)
    try:
        return await asyncio.to_thread(end)
    except (WaypointError, OSError) as error:
        raise resources.pending_records.add(lost.row.branch, "the session has ended", end, error) from error


def _origin(sessions: Registry, branch: str, from_name: str | None) -> Capture | None:
    """Return the capture from which a new session on the branch starts; None if it starts from the plain base."""
    names = sessions.resources.names
    known = names.ref(branch)
    has_tip = known is not None and known.kind == "branch" and known.capture is not None
    if from_name is None:
        return names.resolve(branch) if has_tip else None
    if has_tip:
        on = f"branch {branch} from {from_name}"
        raise StateConflict("start", on, "the branch exists", "choose a new branch name", code="name-taken")
    check_name(sessions.resources, from_name, "start from")
    if sessions.find(from_name) is not None:
        next_step = f"to copy this session: waypoint fork {from_name} {branch}"
        raise StateConflict("start from", f"branch {from_name}", "it has a running session", next_step, code="live")
    return names.resolve(from_name)
