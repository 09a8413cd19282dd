"""Bringing a session's changes onto the machine."""

import asyncio
import contextlib
import os

from waypoint.model.errors import UsageProblem
from waypoint.model.facts import ApplyFacts, CommitFacts, ConflictFacts
from waypoint.model.names import MACHINE
from waypoint.model.records import Capture, Setting
from waypoint.model.requests import ApplyRequest, CommitRequest
from waypoint.service.home import Home
from waypoint.service.session_hooks import before_capture
from waypoint.session import applying, moved_folders, repositories
from waypoint.session.birth import rights
from waypoint.session.checkpoint import capture_aside
from waypoint.session.differences import as_utf8, file_facts, shown
from waypoint.session.held import held_now
from waypoint.session.live.resources import holding

_MOST_LISTED = 1000


async def apply(home: Home, request: ApplyRequest) -> ApplyFacts:
    """Make the machine's files like those of a branch or capture, where the session has changed them: all or nothing.

    A live session is captured; the entry of the apply in the operation log makes that capture the branch's tip, because
    later applies of the branch must know what this one has brought to the machine. Raises UnknownName, NotAllowed,
    Failed; nothing has changed then.
    """
    # Shielded, because a thread that changes files goes on although its task is cancelled.
    return await asyncio.shield(asyncio.ensure_future(_apply(home, request)))


async def _apply(home: Home, request: ApplyRequest) -> ApplyFacts:
    options = applying.ApplyOptions(
        request.name, request.paths, request.conflicts, request.allow_special, request.dry_run
    )
    async with home.sessions.turn(request.name, MACHINE):
        planned = None if request.capture is None else home.names.resolve(request.capture)
        await _prepare(home, request, planned)
        async with (
            contextlib.nullcontext()
            if planned
            else capture_aside(home.sessions, request.name, before_capture) as taken,
            holding(home.captures, taken or planned or home.names.resolve(request.name)) as (held,),
        ):
            is_tip = taken is not None or (planned is not None and _is_next(home, request.name, planned))
            found = await applying.apply(home.sessions, held, options, is_new=taken is not None, is_tip=is_tip)
            is_recorded = taken is None or found.number is not None
            if not is_recorded and request.hold and found.changes and not found.conflicts:
                with home.names.change("apply") as change:
                    change.add(held.capture)
                is_recorded = True
        paths = [shown(target, "").rstrip("/") for target in found.targets]
        conflicts = [
            ConflictFacts(path=as_utf8(f"{paths[one.place]}/{one.path}"), said=one.said, can_choose=one.can_choose)
            for one in found.conflicts
        ]
        return ApplyFacts(
            applied=found.number is not None,
            count=len(found.changes),
            changes=[file_facts(change, found.targets[place]) for place, change in found.changes[:_MOST_LISTED]],
            conflicts=conflicts[:_MOST_LISTED],
            conflict_count=len(conflicts),
            replaced=[as_utf8(f"{paths[place]}/{path}") for place, path in found.replaced[:_MOST_LISTED]],
            base=held.capture.setting.base,
            operation=found.number,
            capture=held.capture.id if is_recorded else None,
        )


async def commit(home: Home, request: CommitRequest) -> CommitFacts:
    """Commit the changes of a capture, or of a running session, to a new branch of a git repository of the machine. Its
    working tree and its present branch stay as they are. Raises UnknownName, NotAllowed, UsageProblem, StateConflict,
    Failed.
    """
    top = os.path.normpath(request.repository)
    async with held_now(home.sessions, request.name, "apply") as held:
        _check_base(request.name, held.capture.setting)
        with applying.failing("commit to", top):
            count = await asyncio.to_thread(
                repositories.commit, home.sessions.resources, held, top, request.branch, request.paths
            )
    return CommitFacts(repository=top, branch=request.branch, files=count)


def _check_base(name: str, setting: Setting) -> None:
    """Raise UsageProblem if the files of the session are none of this machine's."""
    if setting.pinned is not None:
        said = "it runs on a pinned base, so its files correspond to none of this machine"
        raise UsageProblem("apply", name, said, f"copy files out of it: waypoint cp {name}:PATH DEST")


def _is_next(home: Home, branch: str, planned: Capture) -> bool:
    """Whether the capture, which a dry run has recorded, can become the tip of the branch."""
    ref = home.names.ref(branch)
    is_same = ref is not None and (planned.branch, planned.branch_created) == (branch, ref.created)
    return is_same and ref is not None and planned.parents == ([ref.capture] if ref.capture else [])


async def _prepare(home: Home, request: ApplyRequest, planned: Capture | None) -> None:
    """Check the rights of the caller. If the session runs, give it the content of folders that it has moved."""
    resources = home.sessions.resources
    live = await home.sessions.settled(request.name) if planned is None else None
    origin = planned or (home.names.resolve(request.name) if live is None else None)
    setting = origin.setting if origin is not None else live.record.row.setting if live is not None else None
    assert setting is not None
    rights.check_origin(resources, setting.user, "apply", request.name)
    _check_base(request.name, setting)
    if live is not None:
        with applying.failing("apply", request.name):
            await asyncio.to_thread(moved_folders.copy_content, resources, live, request.paths)
