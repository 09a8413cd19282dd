"""Reading and copying files of captures and live sessions, as streams. What is on the machine, the client reads and
writes itself, with its own rights: the daemon is given no path of the machine's.
"""

import asyncio
import contextlib
import errno
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

from waypoint.capture.steps import CopyStep, reach
from waypoint.model.errors import Failed, NotAllowed, StateConflict, UsageProblem, WaypointError
from waypoint.model.records import Capture, User
from waypoint.model.requests import FileRequest
from waypoint.model.streams import Inlet, Outlet
from waypoint.parcel.pack_parcel import Packing
from waypoint.parcel.parcel_records import BadParcel, Decoder
from waypoint.parcel.unpack_parcel import Unpacking
from waypoint.service.home import Home
from waypoint.service.sessions import own_session
from waypoint.service.shapes import Stream
from waypoint.session.birth import rights
from waypoint.session.birth.base_back import brought_to_see
from waypoint.session.live.holding import holding
from waypoint.session.live.session import LiveSession
from waypoint.session.looking.seen_files import CapturedFiles, NotAFile, SeenFiles, of_capture, of_live
from waypoint.upper.contract import NEXT_STEPS, own_limit

_BATCH_BYTES = 1 << 18
_BATCH_S = 0.02
"""How much is read in one step, which is one visit of a thread: small files come many at a time."""
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL, errno.EXDEV)
_REFUSED = (errno.EACCES, errno.EPERM)
_TO = "copy to"
_READABLE = "name a file that you may read"
_WRITABLE = "name a folder that is there, and that you may write to"
Acted = TypeVar("Acted")


class _FilePath(NamedTuple):
    """What is asked for: `path` of `name`. `tried`: for messages. `live`: the session, if it is one's; else `capture`.
    `rights`: as of SeenFiles. `uid`: who asks, as of UserPlaces.
    """

    name: str
    path: str
    tried: str
    live: LiveSession | None
    capture: Capture | None
    rights: User | None
    uid: int | None

    @property
    def on(self) -> str:
        return f"{self.name}:{self.path}"

    @contextlib.contextmanager
    def in_words(self) -> Iterator[None]:
        """What goes wrong in the `with` block becomes a WaypointError."""
        try:
            yield
        except NotAFile as error:
            next_step = f"copy the folder: waypoint cp {self.on} ." if error.is_folder else _READABLE
            raise UsageProblem(self.tried, self.on, error.said, next_step) from error
        except BadParcel as error:
            next_step = "send it as docs/protocol.md, section 2, describes it"
            raise UsageProblem(self.tried, self.on, f"what has come is no parcel: {error}", next_step) from error
        except OSError as error:
            raise self._problem(error) from error

    def _problem(self, error: OSError) -> WaypointError:
        said = os.strerror(error.errno) if error.errno else str(error)
        where = os.fsdecode(error.filename) if error.filename and not isinstance(error.filename, int) else ""
        said = f"{said}: {where}" if where and self.path not in where else said
        next_step = _WRITABLE if self.tried == _TO else _READABLE
        if full := own_limit(error, self.live.record.limits.disk if self.live is not None else None):
            again = f"waypoint stop {self.name} && waypoint shell {self.name} -d --disk SIZE"
            next_step = f"remove files in it, or start it with more: {again}"
            return Failed(self.tried, self.on, full, next_step)
        if error.errno in _MISSING:
            return UsageProblem(self.tried, self.on, said, next_step)
        if error.errno in _REFUSED:
            return NotAllowed(self.tried, self.on, said, next_step)
        return Failed(self.tried, self.on, said, NEXT_STEPS.get(error.errno or 0, "try again"))

    def check_lives(self) -> None:
        """Raise StateConflict if the session has ended or was replaced: its files are another's now."""
        if self.live is not None and (self.live.ended.done() or self.live.ending is not None):
            raise StateConflict(self.tried, self.on, "its session has just ended", "try again")


async def read_file(home: Home, name: str, request: FileRequest) -> Stream:
    """A stream of the content of a file, as `name`, a capture or a live session, has it. Raises UnknownName,
    NotAllowed; the stream raises UsageProblem for what is no file.
    """
    return functools.partial(_read_file, home, _wanted(home, name, request, "read"))


async def fetch(home: Home, name: str, request: FileRequest) -> Stream:
    """A stream of a parcel of a file or folder that `name`, a capture or a live session, has. Raises as `read_file`."""
    return functools.partial(_fetch, home, _wanted(home, name, request, "copy from"))


async def put(home: Home, name: str, request: FileRequest) -> Stream:
    """A stream that unpacks the parcel that the client sends in a live session. Raises as `read_file`; StateConflict if
    `name` is none: captures never change.
    """
    wanted = _wanted(home, name, request, _TO)
    if wanted.live is None:
        said = "it is no live session, and a capture never changes"
        raise StateConflict(
            wanted.tried, wanted.on, said, f"start a branch from it: waypoint shell NEW --from {name} -d"
        )
    home.pool.check_writable()
    return functools.partial(_put, home, wanted)


def _wanted(home: Home, name: str, request: FileRequest, tried: str) -> _FilePath:
    resources, path = home.sessions.resources, os.fsdecode(unquote_to_bytes(request.path))
    if "\0" in path:
        raise UsageProblem(tried, f"{name}:{path}", "no path has a NUL", _READABLE)
    uid = rights.bound_user(resources)
    if name in home.sessions.running:
        live = own_session(home, name, f"{tried} files of")
        user = live.record.row.setting.user
        return _FilePath(name, path, tried, live, None, user if uid is not None else None, uid)
    capture = home.names.find(name)
    rights.check_origin(resources, capture.setting.user, f"{tried} files of", name)
    return _FilePath(name, path, tried, None, capture, capture.setting.user if uid is not None else None, uid)


@contextlib.asynccontextmanager
async def _opened(home: Home, wanted: _FilePath) -> AsyncIterator[SeenFiles]:
    """The files during the `with` block. What goes wrong there becomes a WaypointError."""
    with wanted.in_words():
        async with contextlib.AsyncExitStack() as held:
            if wanted.live is not None:
                opens = functools.partial(of_live, wanted.live, wanted.rights)
            else:
                assert wanted.capture is not None
                (mine,) = await held.enter_async_context(holding(home.captures, wanted.capture))
                captured = CapturedFiles(mine, await brought_to_see(home.captures, mine))
                opens = functools.partial(of_capture, home.sessions.resources.places, captured, wanted.rights)
            seen = await _in_thread(opens)
            held.callback(os.close, seen.root)
            yield seen


@contextlib.asynccontextmanager
async def _copying(home: Home, wanted: _FilePath) -> AsyncIterator[SeenFiles]:
    """As `_opened`, for what takes one of the user's places. Raises StateConflict if these are taken."""
    with home.copies.one(wanted.uid, wanted.tried, wanted.on):
        async with _opened(home, wanted) as seen:
            yield seen


async def _read_file(home: Home, wanted: _FilePath, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
    async with _opened(home, wanted) as seen:

        def begin() -> int:
            with seen.acting():
                return seen.open_file(wanted.path)

        fd = await _in_thread(begin)
        try:
            pieces = iter(functools.partial(os.read, fd, _BATCH_BYTES), b"")
            await _send(home, wanted, functools.partial(next, pieces, b""), (inlet, outlet))
        finally:
            os.close(fd)
    return {}


async def _fetch(home: Home, wanted: _FilePath, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
    async with _copying(home, wanted) as seen, contextlib.AsyncExitStack() as held:

        def begin() -> Packing:
            with seen.acting():
                origin = seen.origin(wanted.path)
            held.callback(os.close, origin.folder)
            return Packing(origin, seen.views, seen.ids.inside)

        packing = await _in_thread(begin)
        held.callback(packing.close)

        def step() -> bytes:
            found, until = bytearray(), time.monotonic() + _BATCH_S
            with seen.acting():
                for piece in packing:
                    found += piece
                    if len(found) >= _BATCH_BYTES or time.monotonic() > until:
                        break
            return bytes(found)

        await _send(home, wanted, step, (inlet, outlet))
    return {}


async def _send(home: Home, wanted: _FilePath, step: Callable[[], bytes], ends: tuple[Inlet, Outlet]) -> None:
    """Send what the steps give, each made in a thread, until one gives nothing, or the client has gone."""
    inlet, outlet = ends
    gone = asyncio.ensure_future(inlet.receive())

    def next_piece() -> bytes:
        home.between()
        piece = step()
        reach(CopyStep.READ)
        return piece

    try:
        while not gone.done() and (piece := await _in_thread(next_piece)):
            await outlet.output(piece)
            wanted.check_lives()
    finally:
        gone.cancel()


async def _put(home: Home, wanted: _FilePath, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
    async with _copying(home, wanted) as seen:
        decoder, unpacking = Decoder(), Unpacking(lambda entry: seen.landing(wanted.path, entry), seen.owners(), told=0)

        def take(payload: bytes) -> None:
            with home.sessions.resources.writing(), seen.acting():
                for record in decoder.feed(payload):
                    unpacking.take(record)
            reach(CopyStep.TAKEN)

        def close() -> None:
            with seen.acting():
                unpacking.close()

        try:
            while payload := await _payload(wanted, inlet):
                # The turn: what a capture of the session has, and what it has not, is whole; and the session that is
                # written to is that on the branch.
                async with home.sessions.turn(wanted.name):
                    wanted.check_lives()
                    await _in_thread(functools.partial(take, payload))
            if not unpacking.is_whole:
                raise BadParcel("it has no end")
        finally:
            await _in_thread(close)
    return {"entries": unpacking.entries, "size_bytes": unpacking.size_bytes}


async def _payload(wanted: _FilePath, inlet: Inlet) -> bytes:
    """The next part of the parcel; b"" at its end, or if the client has gone. Raises as `check_lives`."""
    assert wanted.live is not None
    coming = asyncio.ensure_future(inlet.receive())
    try:
        either: set[asyncio.Future[Any]] = {coming, wanted.live.ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        wanted.check_lives()
        frame = await coming
    finally:
        coming.cancel()
    return frame.payload if frame is not None and frame.kind == "i" else b""


async def _in_thread(act: Callable[[], Acted]) -> Acted:
    """Call `act` in a thread. If the caller is cancelled, the cancellation goes on when `act` has ended."""
    thread = asyncio.ensure_future(asyncio.to_thread(act))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait([thread])
        raise
