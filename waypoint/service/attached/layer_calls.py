"""What can be asked about attached layers."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import msgspec

from waypoint.capture.layers.attached import ATTACHED
from waypoint.capture.layers.layer import Staged
from waypoint.model.details.attached_records import AttachedLayer
from waypoint.model.details.layer_facts import AttachedFacts, AttachingFacts
from waypoint.model.errors import StateConflict, UnknownName, UsageProblem
from waypoint.model.facts import CheckpointFacts
from waypoint.model.records import Capture
from waypoint.model.requests import AttachedCheckpointRequest, LayersRequest
from waypoint.parcel.ends import Pickup
from waypoint.parcel.pack_parcel import gathered, whole
from waypoint.parcel.parcel_records import encode
from waypoint.service.attached.incoming import content_of, first_line, taken_in, tip_of
from waypoint.service.capture_facts import digests_of
from waypoint.service.captures import checkpoint_of
from waypoint.service.home import Home
from waypoint.service.shapes import Download, Upload
from waypoint.session.birth import rights
from waypoint.session.live.holding import holding

PARCEL = "application/x-waypoint-parcel"


async def checkpoint_with(home: Home, branch: str, upload: Upload) -> CheckpointFacts:
    """As `captures.checkpoint`, with layers attached. All of these are on disk before the session stands still. Raises
    as `checkpoint_of` and `taken_in`; then nothing of them is left.
    """
    request, body = await first_line(upload, AttachedCheckpointRequest, f"branch {branch}")
    rights.check_name(home.sessions.resources, branch, "checkpoint")
    home.sessions.get(branch)  # raises if it is not live, before anything comes that nobody wants
    async with taken_in(home, request.layers, body, tip_of(home, branch)) as staged:
        return await checkpoint_of(home, branch, request.checkpoint, within=False, attached=staged)


async def layers(home: Home, name: str) -> list[AttachedFacts]:
    """What is attached to the capture that `name` stands for. Raises UnknownName, NotAllowed."""
    return facts_of(home, _capture(home, name, "list what is attached to"))


def facts_of(home: Home, capture: Capture) -> list[AttachedFacts]:
    """What is attached to the capture."""
    digests = digests_of(home.names.standing(capture.id))
    return [
        AttachedFacts(
            kind=kind,
            size_bytes=layer.size_bytes,
            files=layer.files,
            is_folder=layer.is_folder,
            stamp=layer.stamp,
            digest=digests.get(kind),
            left_out=layer.left_out,
        )
        for kind, layer in sorted(ATTACHED.of(capture).items())
    ]


async def attach(home: Home, name: str, upload: Upload) -> AttachingFacts:
    """Attach layers to the capture for which `name` stands: a new one that goes on from it has them, too, and the name
    stands for this from then on. Raises UnknownName, NotAllowed, StateConflict (a live branch), and as `taken_in`.
    """
    request, body = await first_line(upload, LayersRequest, name)
    before = to_attach_to(home, name)
    async with taken_in(home, request.layers, body, before) as staged:
        return await attach_staged(home, name, staged)


async def attach_staged(home: Home, name: str, staged: Staged) -> AttachingFacts:
    """As `attach`, of layers that are on disk, and that it takes over."""
    async with home.sessions.turn(name):
        before = to_attach_to(home, name)  # others may have moved the name meanwhile
        async with holding(home.captures, before):
            made = await asyncio.to_thread(home.captures.attached.add_to, before, staged)
            try:
                if home.captures.torn.may_be(before.id):  # and the store does not have it: then it would be whole
                    await asyncio.to_thread(home.captures.torn.note, made.id)
                with home.names.change("attach") as change:
                    change.add(made)
                    ref = change.ref(name)
                    assert ref is not None  # whoever removes it has its turn
                    change.put(name, msgspec.structs.replace(ref, capture=made.id))
            except BaseException:
                await asyncio.to_thread(home.captures.drop, made)
                raise
    return AttachingFacts(name=name, capture=made.id, before=before.id, layers=facts_of(home, made))


def to_attach_to(home: Home, name: str) -> Capture:
    """The capture for which the name stands. Raises as `attach`."""
    rights.check_name(home.sessions.resources, name, "attach to")
    if home.names.ref(name) is None:
        raise UnknownName("attach to", name, "it is no name", "a capture gets one by 'waypoint checkpoint NAME'")
    if name in home.sessions.running:
        next_step = f"attach to a checkpoint of it: waypoint checkpoint NAME -b {name} --attach KIND=PATH"
        raise StateConflict("attach to", f"branch {name}", "it is live, and goes on from its last capture", next_step)
    return _capture(home, name, "attach to")


async def layer(home: Home, name: str, kind: str) -> Download:
    """The parcel of one layer. Raises UnknownName, NotAllowed."""
    capture = _capture(home, name, f"get {kind} of")
    _layer_of(capture, name, kind)
    return Download(PARCEL, _parcel(home, capture, kind))


def _layer_of(capture: Capture, name: str, kind: str) -> AttachedLayer:
    """Raises UnknownName."""
    found = ATTACHED.of(capture)
    if kind not in found:
        said = f"it has {', '.join(sorted(found))}" if found else "nothing is attached to it"
        raise UnknownName("get", f"{kind} of {name}", said, f"see what it has: waypoint layer list {name}")
    return found[kind]


async def small_file(home: Home, capture: Capture, name: str, kind: str, most_bytes: int) -> bytes:
    """The content of a layer that is a file of at most `most_bytes`. Raises UnknownName, UsageProblem for another."""
    said, content = "it is a folder", b""
    if not _layer_of(capture, name, kind).is_folder:
        said = f"it has more than {most_bytes >> 20} MiB"
        async with holding(home.captures, capture):
            content = await asyncio.to_thread(_beginning, content_of(home, capture, kind), most_bytes + 1)
        if len(content) <= most_bytes:
            return content
    next_step = f"get it outside of the session: waypoint layer get {name} {kind} DEST"
    raise UsageProblem("write", f"{kind} of {name}", said, next_step)


def _beginning(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def _capture(home: Home, name: str, tried: str) -> Capture:
    capture = home.names.resolve(name)
    rights.check_origin(home.sessions.resources, capture.setting.user, tried, name)
    return capture


async def _parcel(home: Home, capture: Capture, kind: str) -> AsyncGenerator[bytes, None]:
    """Made in threads, piece by piece. What is in the store alone is brought back first."""
    async with holding(home.captures, capture):
        fd = await asyncio.to_thread(
            os.open, content_of(home, capture, kind), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        try:
            with contextlib.closing(whole(Pickup(fd, "", ""))) as records:
                pieces = gathered(map(encode, records))
                while piece := await asyncio.to_thread(_next, pieces):
                    yield piece
        finally:
            os.close(fd)


def _next(pieces: Iterator[bytes]) -> bytes:
    return next(pieces, b"")
