"""Reading files of captures and sessions: one file, a folder's list, or a tar archive."""

import asyncio
import contextlib
import os
import stat
import subprocess
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import IO, NamedTuple

from waypoint.capture.captures import HeldCapture
from waypoint.launch.ground.start_plan import plan_overlays
from waypoint.linux.calls import programs
from waypoint.linux.storage import access, beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import pauses
from waypoint.model.errors import Failed, NotAllowed, UnknownName, UsageProblem, WaypointError, of_machine
from waypoint.model.facts import FileFacts
from waypoint.model.paths import is_below
from waypoint.model.records import Caller, User
from waypoint.model.requests import FileRequest, MountRequest, ReadRequest, UnmountRequest
from waypoint.model.times import iso_time
from waypoint.records import callers
from waypoint.service.home import Home
from waypoint.service.session_hooks import before_capture
from waypoint.service.shapes import Download, Handed, Pages
from waypoint.session.birth import rights
from waypoint.session.checkpoint import capture_aside
from waypoint.session.differences import TYPES, as_utf8
from waypoint.session.held import held_now
from waypoint.session.views import mounted_view
from waypoint.upper import layout
from waypoint.upper.changes import changed_targets

_PIECE = 1 << 20
_PAGE = 64
_MOST_SAID = 4096
_TAR_DIFFERS = 1  # tar's status if files changed while it read them
_GREW = b": file changed as we read it\n"
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY


class _Found(NamedTuple):
    """A file of a capture. `root`, `path`: a descriptor of the mount's root, and the path below it. `folder`, `name`: a
    descriptor of the file's folder, and its name there ("." for the root).
    """

    root: int
    path: str
    folder: int
    name: str


async def read(home: Home, request: ReadRequest) -> Download:
    """The content of a file or, with `archive`, a tar archive of a file or folder, as far as the caller may read it.
    With `descriptor`, a descriptor from which the client reads that: of the file itself, or a pipe with an archive.
    Raises UnknownName, NotAllowed.
    """
    user = await asyncio.to_thread(rights.restricted_caller, home.sessions.resources)
    reader = _Reader(request, callers.current(), user)
    if request.descriptor:
        return Download("application/octet-stream", _descriptor(home, reader))
    if request.archive:
        return Download("application/x-tar", _archive(home, reader))
    return Download("application/octet-stream", _content(home, reader))


class _Reader(NamedTuple):
    """A request whose answer is made after the service function has returned, and its caller."""

    request: ReadRequest
    caller: Caller | None
    user: User | None

    async def find(self, home: Home, held: contextlib.AsyncExitStack) -> _Found:
        with callers.asked_by(self.caller):
            return await held.enter_async_context(_found(home, self.request, self.user))


async def list_files(home: Home, request: FileRequest) -> Pages[FileFacts]:
    """The files in a folder, sorted by name; of a file that is no folder, the file itself."""
    user = await asyncio.to_thread(rights.restricted_caller, home.sessions.resources)
    async with _found(home, request, user) as found:
        listed = await asyncio.to_thread(_list, found, user)
    return (listed[start : start + _PAGE] for start in range(0, len(listed), _PAGE))


async def mount(home: Home, request: MountRequest) -> None:
    """Mount a read-only view of a capture at a folder of the machine. A running session is captured; the capture does
    not become the branch's tip. Raises UnknownName, NotAllowed, UsageProblem, StateConflict, Failed.
    """
    _check_may_mount(home, request.point)
    async with (
        home.sessions.turn(request.name),
        capture_aside(home.sessions, request.name, before_capture) as taken,
    ):
        capture = taken or home.names.resolve(request.name)
        await asyncio.to_thread(home.mounts.mount, request.name, capture, request.point)
        if taken is not None:
            with home.names.change("mount") as change:
                change.add(taken)


async def unmount(home: Home, request: UnmountRequest) -> None:
    """End a mount that `mount` has made. Raises UnknownName, NotAllowed, StateConflict."""
    _check_may_mount(home, request.point)
    await asyncio.to_thread(home.mounts.umount, request.point)


def _check_may_mount(home: Home, point: str) -> None:
    rights.check_unrestricted(home.sessions.resources, "mount at", point, "only root may change the machine's mounts")
    if not point.startswith("/") or os.path.normpath(point) != point or "\0" in point:
        raise UsageProblem("mount at", repr(point), "it is not an absolute path without '..'", "name it from / on")


@contextlib.asynccontextmanager
async def _found(home: Home, request: FileRequest, user: User | None) -> AsyncIterator[_Found]:
    """Find the file in a view of the capture, which is mounted during the `async with` block."""
    on = f"{request.name}:{request.path}"
    if not request.path.startswith("/") or "\0" in request.path:
        raise UsageProblem("read", on, "the path is not absolute", "name the path from / on: NAME:/PATH")
    async with held_now(home.sessions, request.name, "read files of") as held:
        with contextlib.ExitStack() as opened, _failing(on):
            yield await asyncio.to_thread(_find, home, held, request, user, opened)


def _find(
    home: Home, held: HeldCapture, request: FileRequest, user: User | None, opened: contextlib.ExitStack
) -> _Found:
    setting, places = held.capture.setting, home.sessions.resources.places
    path = os.path.normpath(f"/{request.path.lstrip('/')}")
    bind = next((one for one in setting.binds if is_below(path, one.target)), None)
    if bind is not None:
        there = f"{bind.source}{path.removeprefix(bind.target)}"
        said = f"it is {there} of the machine (--bind)"
        raise UsageProblem("read", f"{request.name}:{request.path}", said, f"use {there}")
    places.follow_host()
    targets = {*plan_overlays(setting.base, places).overlays, *changed_targets(held.files)}
    target = max((one for one in targets if is_below(path, one)), key=len)
    view = opened.enter_context(mounted_view(places, setting.base, target, layout.upper_of(held.files, target)))
    root = opened.enter_context(open_folder(view.path))
    below = path.removeprefix(target.rstrip("/")).strip("/")
    above, _, name = below.rpartition("/")
    with _as(user):
        folder = beneath.open_in_root(root, above, os.O_PATH | os.O_DIRECTORY)
        opened.callback(os.close, folder)
        os.stat(name or ".", dir_fd=folder, follow_symlinks=False)
    return _Found(root, below, folder, name or ".")


def _as(user: User | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if user is None else access.as_user(user.uid, user.gid, user.groups)


async def _descriptor(home: Home, reader: _Reader) -> AsyncGenerator[Handed, None]:
    async with contextlib.AsyncExitStack() as held:
        found = await reader.find(home, held)
        file = await asyncio.to_thread(_open_if_regular, found, reader.user)
        if file is not None:
            held.callback(os.close, file)
            yield Handed(b"file", file)
            return
        async with _packing(found, reader) as program:
            assert program.stdout is not None
            yield Handed(b"archive", program.stdout.fileno())
            program.stdout.close()  # so that tar ends if the client does


def _open_if_regular(found: _Found, user: User | None) -> int | None:
    """A descriptor of the entry itself, not of what a link leads to. None: it is no regular file."""
    facts = os.stat(found.name, dir_fd=found.folder, follow_symlinks=False)
    if not stat.S_ISREG(facts.st_mode):
        return None
    with _as(user):
        return os.open(found.name, _READ | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=found.folder)


async def _content(home: Home, reader: _Reader) -> AsyncGenerator[bytes, None]:
    async with contextlib.AsyncExitStack() as held:
        found = await reader.find(home, held)
        file = await asyncio.to_thread(_open_file, found, reader.user)
        held.callback(os.close, file)
        while piece := await asyncio.to_thread(_read_piece, file):
            yield piece


def _open_file(found: _Found, user: User | None) -> int:
    with _as(user):
        file = beneath.open_in_root(found.root, found.path, _READ)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(0, "it is not a regular file")
    return file


def _read_piece(file: int) -> bytes:
    pauses.wait()
    return os.read(file, _PIECE)


async def _archive(home: Home, reader: _Reader) -> AsyncGenerator[bytes, None]:
    async with contextlib.AsyncExitStack() as held:
        found = await reader.find(home, held)
        async with _packing(found, reader) as program:
            assert program.stdout is not None
            while piece := await asyncio.to_thread(_read_piece, program.stdout.fileno()):
                yield piece


@contextlib.asynccontextmanager
async def _packing(found: _Found, reader: _Reader) -> "AsyncIterator[subprocess.Popen[bytes]]":
    """A tar that packs the file during the `async with` block. Its end waits for tar, and raises Failed if it fails."""
    program = await asyncio.to_thread(_start_tar, found, reader.user)
    assert program.stdout is not None
    assert program.stderr is not None
    said = bytearray()
    reading = threading.Thread(target=_read_start, args=(program.stderr, said), daemon=True)
    reading.start()
    try:
        yield program
        status = await asyncio.to_thread(program.wait)
        await asyncio.to_thread(reading.join)
        if status not in (0, _TAR_DIFFERS) or (status == _TAR_DIFFERS and said):
            lines = os.fsdecode(bytes(said)).strip().splitlines() or [f"tar: tar ended with status {status}"]
            on = f"{reader.request.name}:{reader.request.path}"
            raise Failed("read", on, lines[0].partition("tar: ")[2] or lines[0])
    finally:
        program.kill()
        program.wait()
        reading.join()
        program.stdout.close()
        program.stderr.close()


def _read_start(messages: IO[bytes], said: bytearray) -> None:
    """Keep the first messages, and read all of them: tar would wait once the pipe is full. Files of the machine that
    only grow are left out: the archive has their content up to the former size.
    """
    while line := messages.readline(_MOST_SAID):
        if len(said) < _MOST_SAID and not line.endswith(_GREW):
            said += line


def _start_tar(found: _Found, user: User | None) -> "subprocess.Popen[bytes]":
    """Start `tar` in the file's folder. tar follows no link below that."""
    return programs.start(
        *("tar", "-cf", "-", "--numeric-owner", "--", f"./{found.name}"),
        folder=beneath.name_of(found.folder),
        user=user,
    )


def _list(found: _Found, user: User | None) -> list[FileFacts]:
    with _as(user):
        facts = os.stat(found.name, dir_fd=found.folder, follow_symlinks=False)
        if not stat.S_ISDIR(facts.st_mode):
            return [_facts(found.folder, found.name, facts)]
        with beneath.opened(found.folder, found.name, os.O_RDONLY | os.O_DIRECTORY) as folder:
            names = sorted(os.listdir(folder))
            return [_facts(folder, name, os.stat(name, dir_fd=folder, follow_symlinks=False)) for name in names]


def _facts(folder: int, name: str, facts: os.stat_result) -> FileFacts:
    is_link = stat.S_ISLNK(facts.st_mode)
    return FileFacts(
        name=as_utf8(name),
        type=TYPES[stat.S_IFMT(facts.st_mode)],
        mode=f"{stat.S_IMODE(facts.st_mode):o}",
        uid=facts.st_uid,
        gid=facts.st_gid,
        size_bytes=facts.st_size,
        changed=iso_time(facts.st_mtime),
        target=as_utf8(os.readlink(name, dir_fd=folder)) if is_link else None,
    )


@contextlib.contextmanager
def _failing(on: str) -> Iterator[None]:
    try:
        yield
    except WaypointError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnknownName("read", on, error.strerror or str(error), "see the files: waypoint ls NAME:/DIR") from error
    except PermissionError as error:
        raise NotAllowed("read", on, error.strerror or str(error), "let root run the command") from error
    except OSError as error:
        said, next_step = error.strerror or str(error), "name another file"
        raise Failed("read", on, said, next_step, code=of_machine(error.errno)) from error
