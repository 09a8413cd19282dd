"""MCP over stdin and stdout: one JSON value per line."""

import os
import signal
from typing import Any

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, JSONRPCResponse, jsonrpc_message_adapter
from pydantic import ValidationError

from waypoint.agents.mcp.server import Service
from waypoint.agents.mcp.wire import Wire
from waypoint.model import plainjson

LEAVE_S = 3.0  # after a signal, calls have so many seconds to end
LEFT = 143  # the exit status after a signal whose calls did not end


def serve(service: Service, wire: Wire) -> None:
    """Serve the client of `wire` until it closes the connection, or until SIGTERM, SIGINT or SIGHUP. Then the commands
    of its calls are ended.
    """
    anyio.run(_serve, service, wire)


async def _serve(service: Service, wire: Wire) -> None:
    lines_in, lines = anyio.create_memory_object_stream[SessionMessage | Exception]()
    answers_in, answers = anyio.create_memory_object_stream[SessionMessage]()
    server: Server[Any] = service.server()
    async with anyio.create_task_group() as group:
        group.start_soon(_read, wire, lines_in)
        group.start_soon(_write, wire, answers)
        group.start_soon(_end_at_signal, service, group.cancel_scope)
        await server.run(lines, answers_in, server.create_initialization_options())
        group.cancel_scope.cancel()


async def _end_at_signal(service: Service, scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for _ in signals:
            with anyio.move_on_after(LEAVE_S) as limit:
                await service.end_calls()
            if limit.cancelled_caught:  # a request to the daemon takes long; it goes on without this process
                os._exit(LEFT)
            scope.cancel()


async def _read(wire: Wire, messages: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    """Pass on the client's messages. A line that is no message is answered with an error here."""
    async with messages:
        while line := await anyio.to_thread.run_sync(wire.take, abandon_on_cancel=True):
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValidationError:
                await anyio.to_thread.run_sync(wire.write, _no_message(line))
            else:
                await messages.send(SessionMessage(message))


async def _write(wire: Wire, answers: MemoryObjectReceiveStream[SessionMessage]) -> None:
    """Send answers until the client has gone."""
    async with answers:
        async for answer in answers:
            message = answer.message
            if wire.answered is not None and isinstance(message, JSONRPCResponse) and message.id == wire.answered:
                wire.answered = None
                continue
            data = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            try:
                await anyio.to_thread.run_sync(wire.write, data + b"\n")
            except OSError:  # the client has gone: the end of its input follows
                return


def _no_message(line: bytes) -> bytes:
    """The answer to a line that is not a message of JSON-RPC."""
    try:
        found = plainjson.decode_object(line)
        known = found.get("id")
        code, said = INVALID_REQUEST, "this is not a message of JSON-RPC 2.0"
    except ValueError:
        known, code, said = None, PARSE_ERROR, "this is not a JSON object"
    number = known if isinstance(known, int | str) else None
    answer = {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": said}}
    return plainjson.encode(answer).encode() + b"\n"
