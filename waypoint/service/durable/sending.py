"""A capture with its history as one file, which the client writes."""

import asyncio
import contextlib
import functools
import os
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import asdict
from typing import NamedTuple

from waypoint.branch.graph import walk_back
from waypoint.capture.storing.orders import Export, Sent
from waypoint.model.details.image_facts import ExportedFacts
from waypoint.model.errors import Failed, UnknownName
from waypoint.model.names import DEFAULT_BRANCH
from waypoint.model.records import Capture
from waypoint.model.requests import ExportRequest
from waypoint.model.streams import Inlet, Outlet, StreamDeserted
from waypoint.service.durable.keeping import make_durable, store_of
from waypoint.service.durable.store_process import carry_out
from waypoint.service.home import Home
from waypoint.service.shapes import Stream
from waypoint.session.birth import rights
from waypoint.session.live.holding import holding

_PIECE = 1 << 18
STALLED_S = 600.0
"""So long a client may take no piece of an export: until it ends, nothing that it reads can be removed."""


class _Line(NamedTuple):
    """The images of a capture and of those that it goes on from, the oldest first; in words, which are left out."""

    images: list[str]
    left_out: list[str]


class _Asking(NamedTuple):
    """Who has asked, for the stream, which runs when that is noted nowhere any more: as of UserPlaces, and `rights`."""

    uid: int | None
    sees: rights.Sight


async def export(home: Home, request: ExportRequest) -> Stream:
    """A stream of the bytes of an export; its end has ExportedFacts. Puts the capture into the store first if it is not
    there. Raises UnknownName, NotAllowed; the stream Failed, StoreDamaged, UsageProblem (the key), StateConflict if the
    user has too many under way.
    """
    resources = home.sessions.resources
    rights.check_name(resources, request.name, "export")
    capture = home.names.resolve(request.name)
    rights.check_origin(resources, capture.setting.user, "export", request.name)
    asking = _Asking(rights.bound_user(resources), rights.sight(resources))
    return functools.partial(_send, home, request, capture, asking)


async def _send(
    home: Home, request: ExportRequest, capture: Capture, asking: _Asking, inlet: Inlet, outlet: Outlet
) -> dict[str, object]:
    with home.exports.one(asking.uid, "export", request.name):
        return await _sent_while_there(inlet, _sent(home, request, capture, asking, outlet))


async def _sent_while_there(inlet: Inlet, work: Awaitable[ExportedFacts]) -> dict[str, object]:
    """What `work` gives. It is cancelled when the client has gone."""
    sending = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(inlet.receive())
    try:
        await asyncio.wait([sending, gone], return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            raise StreamDeserted("the client has gone")
        return asdict(await sending)
    finally:
        for task in (gone, sending):
            task.cancel()
        await asyncio.gather(gone, sending, return_exceptions=True)


async def _sent(home: Home, request: ExportRequest, capture: Capture, asking: _Asking, outlet: Outlet) -> ExportedFacts:
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(holding(home.captures, capture, recalls=False))
        standing = await make_durable(home, capture.id)
        if standing.image is None:  # it is put into the store under another one's turn, or not at all
            raise UnknownName("export", request.name, "it is not in the store", "try again")
        line = await _line_of(home, capture, held, asking.sees, alone=request.alone)
        done = await _written(home, request, line, outlet)
    return ExportedFacts(
        capture=capture.id,
        image=standing.image,
        images=len(line.images),
        left_out=line.left_out,
        objects=done.objects,
        size_bytes=done.size_bytes,
        encrypted=bool(request.passphrase),
        signed=bool(request.key),
    )


async def _written(home: Home, request: ExportRequest, line: _Line, outlet: Outlet) -> Sent:
    """Have the store's program write the export, and send it."""
    ref = home.names.ref(request.name)
    ours, theirs = os.pipe()
    order = Export(
        store=store_of(home),
        fd=theirs,
        images=line.images,
        name=request.name if ref is not None and request.name != DEFAULT_BRANCH else "",
        absent=len(line.left_out),
        key=request.key,
        passphrase=request.passphrase,
    )
    writing = asyncio.ensure_future(carry_out(home, order, Sent, _Noted(outlet), fds=[theirs]))
    try:
        await _pass_on(ours, outlet)
        return await writing
    finally:
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # what has cut it short is raised already
            await writing


class _Noted:
    """Tells the client about how many bytes the export will have."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._loop = asyncio.get_running_loop()

    def report(self, **numbers: int) -> None:
        """Any thread may call this."""
        asyncio.run_coroutine_threadsafe(self._outlet.note({"progress": numbers}), self._loop)


async def _pass_on(pipe: int, outlet: Outlet) -> None:
    """Send what comes through the pipe, to its end. Closes the pipe. Raises Failed if the client takes nothing."""
    reader = asyncio.StreamReader(limit=_PIECE)
    file = open(pipe, "rb", buffering=0)  # noqa: SIM115 - the transport closes it
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), file
    )
    try:
        while piece := await reader.read(_PIECE):
            await asyncio.wait_for(outlet.output(piece), STALLED_S)
    except TimeoutError as error:
        said = f"nobody has read any of it for {STALLED_S / 60:.0f} minutes"
        raise Failed("send", "the export", said, "name a file for the export") from error
    finally:
        transport.close()


async def _line_of(
    home: Home, capture: Capture, held: contextlib.AsyncExitStack, sees: rights.Sight, *, alone: bool
) -> _Line:
    """What is exported, which `held` keeps in the store: the export itself may make the disk short, and what is removed
    then are ancestors that have no name. `alone`: the capture without them.
    """
    if alone:
        line = await asyncio.to_thread(_told, home, [capture], {capture.id}, sees)
        return _Line(line.images, ["what it goes on from (--alone)"] if capture.parents else [])
    earlier = await asyncio.to_thread(list, walk_back(home.names, [capture]))
    there = set()
    for one in earlier:
        with contextlib.suppress(UnknownName):  # it is just being removed
            await held.enter_async_context(holding(home.captures, one, recalls=False))
            there.add(one.id)
    return await asyncio.to_thread(_told, home, earlier, there, sees)


def _told(home: Home, earlier: Sequence[Capture], there: Collection[str], sees: rights.Sight) -> _Line:
    """`earlier`: the newest first. `there`: those of them that are held. `sees`: of whoever asks."""
    images: list[str] = []
    left_out = []
    standings = home.names.standings([one.id for one in earlier])
    for one in earlier:
        standing = standings[one.id]
        if standing.image is None or standing.removed or one.id not in there:
            left_out.append(f"{one.id[:12]}: its content was removed")
        elif not sees(one.setting.user):
            left_out.append(f"{one.id[:12]}: it is {one.setting.user.name}'s")
        elif standing.image not in images:
            images.append(standing.image)
    return _Line(images[::-1], left_out)
