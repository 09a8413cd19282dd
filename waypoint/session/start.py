"""Starting the session of a branch, and stopping it."""

import asyncio
import contextlib
from collections.abc import Iterable

from waypoint.model.errors import StateConflict, UsageProblem
from waypoint.model.names import parse_name
from waypoint.model.records import Capture, Setting
from waypoint.model.requests import StartRequest
from waypoint.session.birth.birth import Birth, bring_up_all, plan_birth
from waypoint.session.birth.setting import plan_setting
from waypoint.session.birth.users import Asker, check_owner
from waypoint.session.end import Discarded, Sealed
from waypoint.session.live.session import LiveSession
from waypoint.session.registry import Registry


async def start(sessions: Registry, request: StartRequest, uid: int) -> tuple[LiveSession, bool]:
    """Start the branch's session, unless it is live. Returns the session, and True if it was started.

    `uid`: the user who asks. Raises UsageProblem, UnknownName, StateConflict, and as `bring_up_all`.
    """
    branch = parse_name(request.branch)
    asker = Asker(request.user, request.default_user, uid)
    command = f"shell {branch}" if request.from_name is None else f"shell {branch} --from {request.from_name}"
    async with sessions.turn(branch):
        found = await sessions.settled(branch)
        if found is not None:
            if request.from_name is not None:
                next_step = f"stop it first: waypoint stop {branch}"
                raise StateConflict("start", f"branch {branch}", "it has a live session", next_step)
            check_owner(branch, found.record.row.setting.user, asker, command, is_live=True)
            return found, False
        origin = _origin(sessions, branch, request.from_name)
        if origin is not None:
            check_owner(branch, origin.setting.user, asker, command, is_live=False)
        with contextlib.ExitStack() as pins:
            held = pins.enter_context(sessions.resources.captures.hold(origin)) if origin else None
            setting = plan_setting(request, uid, origin.setting if origin else None, held.files if held else None)
        processes = origin is not None and origin.tier == "live"
        if origin is not None and processes:
            _check_unchanged(branch, request, setting, origin)
        birth = plan_birth(branch, origin, setting, (request.rows, request.cols), processes=processes)
        birth = birth._replace(must_enter=request.cwd is not None)
        (live,) = await bring_up(sessions, [birth], "start")
        return live, True


async def bring_up(sessions: Registry, births: Iterable[Birth], verb: str) -> list[LiveSession]:
    """Start the sessions of all `births`, or none, and enter them in the registry. The caller has the turns of their
    branches.

    `verb`: the verb of the entry in the operation log. Raises as `bring_up_all`.
    """
    births = list(births)
    found = await bring_up_all(sessions.resources, births, verb)
    for live, birth in zip(found, births, strict=True):
        sessions.enlist(live, birth.origin if birth.processes else None)
    return found


async def stop(sessions: Registry, branch: str, *, discard: bool) -> Capture | None:
    """End the session on `branch`. Returns the capture of its files, the branch's new tip; with `discard` the files are
    removed, and the result is None.

    Raises as `Registry.get`.
    """
    sessions.get(branch)
    async with sessions.turn(branch):
        live = sessions.get(branch)  # asked again: a restore may have replaced the session meanwhile
        conclusion = Discarded() if discard else Sealed("stopped")
        return await asyncio.shield(sessions.endings.begin(live, conclusion))


def _origin(sessions: Registry, branch: str, from_name: str | None) -> Capture | None:
    """The capture that a new session on the branch goes on from; None: the session begins with the plain base.

    Raises UnknownName, StateConflict.
    """
    names = sessions.resources.names
    known = names.ref(branch)
    has_tip = known is not None and known.kind == "branch" and known.capture is not None
    if from_name is None:
        return names.resolve(branch) if has_tip else None
    if has_tip:
        on = f"branch {branch} from {from_name}"
        raise StateConflict("start", on, "the branch exists", "choose a new branch name")
    if sessions.find(from_name) is not None:
        next_step = f"fork it as it is now: waypoint fork {from_name} {branch}"
        raise StateConflict("start from", f"branch {from_name}", "it is live", next_step)
    return names.resolve(from_name)


def _check_unchanged(branch: str, request: StartRequest, setting: Setting, origin: Capture) -> None:
    """Raise UsageProblem if the request changes a setting of processes that come back as they were captured."""
    names = ("base", "binds", "net", "user", "shell")
    changed = [name for name in names if getattr(setting, name) != getattr(origin.setting, name)]
    changed += ["cwd"] if request.cwd not in (None, origin.setting.cwd) else []
    changed += ["command"] if request.command else []
    if changed:
        said = f"it comes back with its processes, whose {' and '.join(changed)} cannot be changed"
        raise UsageProblem("start", f"branch {branch}", said, "leave that out, or start from a capture of tier files")
