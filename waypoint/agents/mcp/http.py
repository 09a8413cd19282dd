"""MCP over streamable HTTP on the loopback interface, for callers that have the token."""

import hmac
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
import uvicorn

from waypoint.agents.mcp.server import GONE, Service
from waypoint.model import plainjson
from waypoint.model.errors import StateConflict, UsageProblem

HOST, PATH = "127.0.0.1", "/mcp"
LEAVE_S = 3  # after a signal, requests have so many seconds to end
_LOOK_S = 0.2
_WAITING = 64
_LARGEST_PORT = 65535
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def listen(port: int) -> socket.socket:
    """A socket on `port` of the loopback interface; 0: any free port. Raises StateConflict, UsageProblem."""
    if port > _LARGEST_PORT:
        raise UsageProblem("listen on", f"port {port}", f"the largest port is {_LARGEST_PORT}", "choose another port")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(_WAITING)  # from now on clients can connect, although the server still starts
    except OSError as error:
        listener.close()
        on, said = f"port {port} of {HOST}", error.strerror or str(error)
        raise StateConflict("listen on", on, said, "choose another port, or leave out --port") from error
    return listener


def url_of(listener: socket.socket) -> str:
    return f"http://{HOST}:{listener.getsockname()[1]}{PATH}"


def serve(service: Service, listener: socket.socket, token: str) -> None:
    """Serve until SIGTERM or SIGINT. Then the commands of running calls are ended."""
    anyio.run(_serve, service, listener, token)


async def _serve(service: Service, listener: socket.socket, token: str) -> None:
    # The package checks the headers Host and Origin, since `host` is on the loopback interface.
    app = service.server().streamable_http_app(streamable_http_path=PATH, host=HOST)
    config = uvicorn.Config(Guard(app, token), log_level="warning", timeout_graceful_shutdown=LEAVE_S, lifespan="on")
    server = uvicorn.Server(config)
    async with anyio.create_task_group() as group:
        group.start_soon(_end_at_exit, service, server)
        await server.serve([listener])
        group.cancel_scope.cancel()


async def _end_at_exit(service: Service, server: uvicorn.Server) -> None:
    while not server.should_exit:
        await anyio.sleep(_LOOK_S)
    await service.end_calls()


class Guard:
    """Passes on the requests that have the token. Tells the calls when their client disconnects."""

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not self._has_token(scope):
            await _refuse(send)
            return
        gone = scope[GONE] = anyio.Event()

        async def receive_and_watch() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                gone.set()
            return message

        await self._app(scope, receive_and_watch, send)

    def _has_token(self, scope: Message) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        return bool(kind.lower() == b"bearer") and hmac.compare_digest(token.strip(), self._token)


async def _refuse(send: Send) -> None:
    error = {"code": "not-allowed", "said": "the token is missing or wrong", "next": "send Authorization: Bearer TOKEN"}
    body = plainjson.encode({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
