"""Attached layers: attaching one to a capture, checking what requests attach or place, copying one to the host."""

import asyncio
import os
from collections.abc import Mapping

from waypoint.branch import refs
from waypoint.capture.layers.attached import ATTACHED
from waypoint.capture.layers.layer import Attachment
from waypoint.capture.layers.table import NAMED
from waypoint.launch.ground import homes
from waypoint.launch.ground.start_plan import OWN_PLACES
from waypoint.linux.storage import access
from waypoint.model.errors import NotAllowed, UsageProblem
from waypoint.model.facts import AttachedFacts, GotLayerFacts
from waypoint.model.paths import is_below
from waypoint.model.records import AttachedLayer, Capture, User
from waypoint.model.requests import AttachLayerRequest, LayerRequest
from waypoint.records import callers
from waypoint.service.home import Home
from waypoint.session.birth import rights
from waypoint.session.birth.users import find_user

_OWN_KINDS = frozenset(layer.kind for layer in NAMED)


async def get_layer(home: Home, name: str, request: LayerRequest) -> GotLayerFacts:
    """Copy an attached layer of the capture `name` to a path on the host that does not exist, with the caller's rights.
    Raises UnknownName, StateConflict.
    """
    origin = home.names.resolve(name)
    rights.check_origin(home.sessions.resources, origin.setting.user, "read a layer of", name)
    check_absolute("write", request.dest)
    user = caller_of("attached layers")
    _check_access("write", request.dest, os.path.dirname(request.dest), user, write=True)
    found = await asyncio.to_thread(_get, home, origin, request, user)
    return GotLayerFacts(
        capture=origin.id, kind=request.kind, type=found.type, size_bytes=found.size_bytes, path=request.dest
    )


def _get(home: Home, origin: Capture, request: LayerRequest, user: User) -> AttachedLayer:
    with home.captures.hold(origin) as held:
        return held.get(request.kind, request.dest, user)


async def attach_layer(home: Home, name: str, request: AttachLayerRequest) -> AttachedFacts:
    """Attach a layer to the capture of `name`: a copy of the capture with this layer is recorded, and `name` moves to
    it. Raises UnknownName, StateConflict; UsageProblem for the id of a capture.
    """
    resources = home.sessions.resources
    (one,) = await asyncio.to_thread(attachments, {request.kind: request.path})
    name = home.names.meant(name)
    async with home.sessions.turn(name):
        rights.check_name(resources, name, "attach a layer to")
        origin, ref = await asyncio.to_thread(home.names.resolve, name), home.names.ref(name)
        rights.check_origin(resources, origin.setting.user, "attach a layer to", name)
        if ref is None:
            said, next_step = "a capture never changes, but a name can move", "give the name of a checkpoint or branch"
            raise UsageProblem("attach a layer to", f"capture {name}", said, next_step)
        made = await asyncio.to_thread(home.captures.attach, origin, one)
        try:
            refs.move(home.names, name, ref, made, "attach")
        except BaseException:
            await asyncio.to_thread(home.captures.drop, made)
            raise
    if request.wait:
        for capture in (origin, made):  # in this order, so that the image has the earlier one as its parent
            await home.storing.wait(capture)
    layer, standing = ATTACHED.of(made, request.kind), home.names.standing(made.id)
    return AttachedFacts(
        name=name,
        capture=made.id,
        parent=origin.id,
        kind=request.kind,
        type=layer.type,
        size_bytes=layer.size_bytes,
        files=layer.files,
        image=standing.image,
        durable=standing.durable,
    )


def attachments(attach: Mapping[str, str]) -> list[Attachment]:
    """Return the files that a checkpoint of the caller attaches. Raises UsageProblem for a path that the caller cannot
    read, or a kind that Waypoint uses itself. Blocks.
    """
    if not attach:
        return []
    user = caller_of("attached layers")
    for kind, source in attach.items():
        on = f"{kind}={source}"
        if kind in _OWN_KINDS:
            said = f"{kind} is the name of a layer of Waypoint itself"
            raise UsageProblem("attach", on, said, "choose another kind, such as model, cache or trace")
        check_absolute("attach", source)
        _check_access("attach", on, source, user, write=False)
        homes.check_copied(source, "attach", on)
    return [Attachment(kind, source, user) for kind, source in attach.items()]


def check_places(home: Home, name: str, attach_at: Mapping[str, str], branch: str | None = None) -> None:
    """Raise UnknownName for a kind that is not attached to the capture `name` (on `branch`), UsageProblem for a path at
    which nothing can be placed in a session that is made from it.
    """
    if not attach_at:
        return
    origin = home.names.resolve(name, branch)
    for kind, path in attach_at.items():
        ATTACHED.of(origin, kind)
        tried = f"place the layer {kind} at"
        check_absolute(tried, path)
        if path == "/" or any(is_below(path, own) for own in OWN_PLACES):
            raise UsageProblem(tried, path, f"{path} belongs to the session itself", "choose another path")
        bind = next((one for one in origin.setting.binds if is_below(path, one.target)), None)
        if bind is not None:
            said = f"{bind.target} is {bind.source} of this machine (--bind)"
            raise UsageProblem(tried, path, said, "choose a path in the session's own files")


def _check_access(tried: str, on: str, path: str, user: User, *, write: bool) -> None:
    try:
        with access.as_user(user.uid, user.gid, user.groups):
            access.check(path, write=write)
    except PermissionError as error:
        said = f"{user.name} may not {'write' if write else 'read'} {path}"
        raise NotAllowed(tried, on, said, "let root run the command") from error
    except OSError as error:
        raise UsageProblem(tried, on, f"{error.strerror}: {path}", "name another path") from error


def check_absolute(tried: str, path: str) -> None:
    if not path.startswith("/") or os.path.normpath(path) != path or "\0" in path:
        raise UsageProblem(tried, repr(path), "it is not an absolute path without '..'", "name the path from / on")


def caller_of(things: str) -> User:
    """The user who asks, with whose rights files of the machine are opened. `things`: what is asked for, for errors."""
    caller = callers.current()
    if caller is None or caller.uid is None:
        raise UsageProblem("use", things, "a process of a session asks for it", "do it outside of the session")
    return find_user("/", str(caller.uid))
