"""What differs between two captures, sessions, or one of them and what is under it: files, programs, variables."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from typing import Annotated, NamedTuple

import waypoint
from waypoint.capture.captures import Held
from waypoint.launch.ground import homes
from waypoint.launch.ground.base import is_below
from waypoint.model import plainjson
from waypoint.model.details.diff_facts import DiffLine, SideFacts
from waypoint.model.errors import UnknownName, UsageProblem, program_ended
from waypoint.model.records import Capture, Setting
from waypoint.model.requests import DiffRequest
from waypoint.service.comparing import programs
from waypoint.service.home import Home
from waypoint.service.shapes import Download
from waypoint.session.birth import rights
from waypoint.session.birth.users import find_user
from waypoint.session.live.holding import holding
from waypoint.session.live.session import LiveSession
from waypoint.store import callers

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(waypoint.__file__)), "upper/comparing/diff_program.py")
_PIECE = 1 << 17


class Compared(NamedTuple):
    """One side: a live session, a capture, or with neither of them the base."""

    name: str
    live: LiveSession | None = None
    capture: Capture | None = None

    @property
    def setting(self) -> Setting | None:
        if self.live is not None:
            return self.live.record.row.setting
        return self.capture.setting if self.capture is not None else None

    def facts(self) -> SideFacts:
        ident = self.capture.id if self.capture is not None else None
        return {"name": self.name, "capture": ident, "live": self.live is not None}


BASE = Compared("base")


async def diff(home: Home, request: DiffRequest) -> Annotated[Download, DiffLine]:
    """What differs from `request.one` to `request.other`, line by line. Content of files is told as far as whoever asks
    may read it on the machine. Raises UnknownName, NotAllowed, UsageProblem if the two are over different bases.
    """
    one, other = _sides(home, request)
    for path in request.only:
        if not path.startswith("/"):
            raise UsageProblem(
                "compare", repr(path), "it is no absolute path", "GET /v1/openapi.json describes every request"
            )
    order = {
        "base": _base(one, other),
        "hidden": await asyncio.to_thread(_hidden, home, one, other),
        "skipped": sorted({bind.target for side in (one, other) if side.setting for bind in side.setting.binds}),
        "only": [os.path.normpath(path) for path in request.only],
        "patch": request.patch,
        "user": await asyncio.to_thread(_asker, home),
    }
    return Download("application/x-ndjson", _lines(home, one, other, order))


def _sides(home: Home, request: DiffRequest) -> tuple[Compared, Compared]:
    named = _side(home, request.one)
    if request.other is not None:
        if request.machine:
            said = "it is compared with the machine, or with another name"
            raise UsageProblem("compare", request.one, said, "leave out one of the two")
        return named, _side(home, request.other)
    ref = home.names.ref(request.one)
    is_branch = ref is not None and ref.kind == "branch"
    if request.machine or is_branch or named.live is not None or named.capture is None:
        return BASE, named
    branch = named.capture.branch
    if home.sessions.find(branch) is None and home.names.ref(branch) is None:
        next_step = f"name what to compare it with, or what is under it: waypoint diff {request.one} --machine"
        raise UnknownName("compare", request.one, f"its branch, {branch}, is not in this home", next_step)
    return named, _side(home, branch)


def _side(home: Home, name: str) -> Compared:
    """What the name stands for: a live session before the last capture of its branch."""
    resources = home.sessions.resources
    live = home.sessions.find(name)
    if live is not None:
        rights.check_own(resources, live.record.row.setting.user, "compare", f"branch {name}")
        return Compared(name, live=live)
    capture = home.names.resolve(name)
    rights.check_origin(resources, capture.setting.user, "compare", name)
    return Compared(name, capture=capture)


def _base(one: Compared, other: Compared) -> str:
    bases = {side.setting.base for side in (one, other) if side.setting is not None}
    if len(bases) > 1:
        on, said = f"{one.name} with {other.name}", f"they are over different bases: {', '.join(sorted(bases))}"
        raise UsageProblem("compare", on, said, "compare each with what is under it: waypoint diff NAME --machine")
    return bases.pop()


def _hidden(home: Home, one: Compared, other: Compared) -> list[str]:
    """Where sessions on the base see nothing of it. Looks at files."""
    found = {str(home.path)}
    for side in (one, other):
        if side.setting is not None:
            found.update(homes.hidden_from(side.setting.user))
    base = _base(one, other)
    return sorted(path.removeprefix(base.rstrip("/")) for path in found if is_below(path, base) and path != base)


def _asker(home: Home) -> list[object] | None:
    """With whose rights content is read; None: with root's."""
    caller = callers.current()
    if not rights.is_bound(home.sessions.resources) or caller is None:
        return None
    user = find_user("/", str(caller.uid))
    return [user.uid, user.gid, user.groups]


async def _lines(home: Home, one: Compared, other: Compared, order: dict[str, object]) -> AsyncGenerator[bytes, None]:
    captures = [side.capture for side in (one, other) if side.capture is not None]
    async with holding(home.captures, *captures) as held:
        by_id = {entry.capture.id: entry for entry in held}
        trees = [_tree(home, side, by_id) for side in (one, other)]
        await asyncio.to_thread(home.sessions.resources.places.follow_host)
        yield _line(DiffLine(kind="begin", one=one.facts(), other=other.facts(), base=_base(one, other)))
        if one is not BASE and not order["only"]:
            sides = [(side.live, by_id.get(side.capture.id) if side.capture else None) for side in (one, other)]
            for line in await asyncio.to_thread(programs.compared, home, sides[0], sides[1]):
                yield _line(line)
        pieces = _told({**order, "one": trees[0], "other": trees[1]})
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                yield piece


def _tree(home: Home, side: Compared, held: dict[str, Held]) -> str:
    """The path of the upper tree; "" for the base."""
    if side.live is not None:
        return home.pool.path(side.live.record.row.tree)
    return held[side.capture.id].files if side.capture is not None else ""


def _line(line: DiffLine) -> bytes:
    found = {name: value for name, value in plainjson.fields(line).items() if value is not None}
    return plainjson.encode(found).encode() + b"\n"


async def _told(order: dict[str, object]) -> AsyncGenerator[bytes, None]:
    """What the program says of the files. It ends with its reader."""
    program = await asyncio.to_thread(_started, plainjson.encode(order).encode() + b"\n")
    assert program.stdout is not None
    ending = b""
    try:
        while piece := await asyncio.to_thread(os.read, program.stdout.fileno(), _PIECE):
            ending = piece[-1:]
            yield piece
        status = await asyncio.to_thread(program.wait)
        if status != 0 or ending != b"\n":
            error = program_ended("compare", "the files", status)
            yield b"\n" * (ending != b"\n") + _line(DiffLine(kind="error", error=error.to_json()))
    finally:
        program.kill()
        await asyncio.shield(asyncio.to_thread(_ended, program))


def _started(order: bytes) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-I", "-S", _PROGRAM]
    program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
    assert program.stdin is not None
    with contextlib.suppress(BrokenPipeError), program.stdin as stdin:
        stdin.write(order)
    return program


def _ended(program: "subprocess.Popen[bytes]") -> None:
    program.wait()
    if program.stdout is not None:
        program.stdout.close()
