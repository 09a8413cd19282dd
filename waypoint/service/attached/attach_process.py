"""Having attached layers moved by a program of its own (capture/attaching/attach_program.py)."""

import asyncio
import functools
import socket
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec

from waypoint.capture.attaching.attach_orders import AttachOrder
from waypoint.capture.attaching.attach_running import answer_of, start
from waypoint.model.errors import from_json
from waypoint.service.background.own_thread import in_own_thread

Moved = TypeVar("Moved")


async def move(order: AttachOrder, kind: type[Moved], body: AsyncIterator[bytes], fds: tuple[int, ...] = ()) -> Moved:
    """Have the order carried out, and return its outcome, of the type `kind`. `body`: what the program gets on stdin.
    `fds`: descriptors that the order names. The program has ended on return, also if the caller is cancelled.

    Raises WaypointError, RuntimeError if the machine has no thread left, and what `body` raises.
    """
    ours, its = socket.socketpair()
    with ours:
        with its:
            program = await asyncio.to_thread(start, order, its.fileno(), fds)
        try:
            answering = in_own_thread(functools.partial(answer_of, program))  # it may wait for the body
        except BaseException:
            with program:  # which waits for its end
                program.kill()
            raise
        try:
            ours.settimeout(0)
            await _send(ours, body, answering)
            answer: dict[str, Any] = await asyncio.shield(answering)
        except BaseException:
            program.kill()
            await asyncio.wait([answering])
            raise
    if "error" in answer:
        raise from_json(answer["error"])
    return msgspec.convert(answer["result"], kind)


async def _send(to: socket.socket, body: AsyncIterator[bytes], answering: "asyncio.Future[dict[str, object]]") -> None:
    """Pass the body on, until its end or until the program has answered."""
    loop = asyncio.get_running_loop()
    async for piece in body:
        if answering.done():
            return  # it wants no more
        try:
            await loop.sock_sendall(to, piece)
        except (BrokenPipeError, ConnectionResetError):
            return
    to.shutdown(socket.SHUT_WR)
