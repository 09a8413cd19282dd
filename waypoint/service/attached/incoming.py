"""Layers that clients attach: a body of one line of JSON and a parcel for each layer (docs/protocol.md, section 6).

The client opens what is attached, and sends its bytes: the daemon opens no path for a user, who could name what only
root may read.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from waypoint.capture.attaching.attach_orders import Incoming, SessionSide, TakeIn, TakenIn
from waypoint.capture.layers.attached import ATTACHED
from waypoint.capture.layers.layer import Staged
from waypoint.model.errors import StateConflict, UsageProblem
from waypoint.model.names import parse_kind
from waypoint.model.records import Capture
from waypoint.model.requests import IncomingLayer, Request
from waypoint.service.attached.attach_process import move
from waypoint.service.home import Home
from waypoint.service.shapes import Upload
from waypoint.session.live.holding import holding

_MOST_LINE_BYTES = 1 << 16

FirstLine = TypeVar("FirstLine", bound=Request)


async def first_line(upload: Upload, kind: type[FirstLine], on: str) -> tuple[FirstLine, AsyncIterator[bytes]]:
    """The record in the first line of a body, and the rest of the body. `on`: as in WaypointError. Raises UsageProblem,
    and what the body raises.
    """
    line = b""
    async for piece in upload:
        line += piece
        if b"\n" in piece or len(line) > _MOST_LINE_BYTES:
            break
    words, end, rest = line.partition(b"\n")
    is_line = end and len(words) <= _MOST_LINE_BYTES and b"\\u0000" not in words
    said = "" if is_line else f"it begins with no line of {_MOST_LINE_BYTES} bytes or less, without NUL"
    try:
        if not said:
            return msgspec.json.decode(words, type=kind), _after(rest, upload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        said = str(error)
    raise UsageProblem("read the request", on, said, "send what docs/protocol.md, section 6, describes")


async def _after(rest: bytes, upload: Upload) -> AsyncIterator[bytes]:
    if rest:
        yield rest
    async for piece in upload:
        yield piece


@contextlib.asynccontextmanager
async def taken_in(
    home: Home, wanted: Sequence[IncomingLayer], body: AsyncIterator[bytes], before: Capture | None
) -> AsyncIterator[Staged]:
    """What a client attaches, on disk, for the `with` block, which may take it over. `before`: a capture that may have
    some of it.

    Raises UsageProblem, StateConflict if `before` does not have what it should, Failed (the disk is full), and what the
    body raises; then nothing of it is left.
    """
    kinds = [parse_kind(one.kind) for one in wanted]
    if len(set(kinds)) < len(kinds):
        raise UsageProblem(
            "attach",
            ", ".join(kinds),
            "a kind is named twice",
            "use another kind, such as model, cache, trace or effects",
        )
    same = [one for one in wanted if one.same]
    async with contextlib.AsyncExitStack() as held:
        known = ATTACHED.of(before) if before is not None and same else {}
        for one in same:
            if before is None or one.kind not in known or not one.stamp or known[one.kind].stamp != one.stamp:
                raise StateConflict("attach", one.kind, "the last capture has another one by now", "try again")
        if before is not None and same:
            await held.enter_async_context(holding(home.captures, before))
        layers = [_incoming(home, one, before) for one in wanted]
        staged = await held.enter_async_context(staged_in(home, layers, body))
        yield Staged(staged.folder, {**staged.layers, **{one.kind: known[one.kind] for one in same}})


@contextlib.asynccontextmanager
async def staged_in(
    home: Home, layers: list[Incoming], body: AsyncIterator[bytes], side: SessionSide | None = None
) -> AsyncIterator[Staged]:
    """The layers, on disk, for the `with` block, which may take them over. `body`: the parcels that they come in.
    `side`: of those with a path. Raises WaypointError, and what the body raises; then nothing of them is left.
    """
    places = home.captures.attached
    folder = await asyncio.to_thread(places.begin)
    try:
        order = TakeIn(folder=str(folder), layers=layers, floor_bytes=places.floor_bytes, side=side)
        taken = await move(order, TakenIn, body, (side.root_fd,) if side is not None else ())
        yield Staged(folder, taken.layers)
    finally:
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(places.remove, folder)))


def _incoming(home: Home, one: IncomingLayer, before: Capture | None) -> Incoming:
    is_same = one.same and before is not None
    earlier = str(home.captures.attached.folder(before.id, one.kind)) if is_same and before is not None else ""
    return Incoming(kind=one.kind, stamp=one.stamp, earlier=earlier)


def tip_of(home: Home, branch: str) -> Capture | None:
    """The capture that `branch` goes on from; None if there is none."""
    ref = home.names.ref(branch)
    return home.names.capture(ref.capture) if ref is not None and ref.capture else None


def content_of(home: Home, capture: Capture, kind: str) -> Path:
    """Where the layer of this kind is, of a capture that is held."""
    return home.captures.attached.content(capture.id, kind)
