"""An MCP client of raw JSON-RPC, which shares no code with the server."""

import contextlib
import json
import subprocess
from typing import Any, Self

from tests.homes import Home
from tests.waiting import PATIENCE_S

Json = dict[str, Any]


class Peer:
    """A client with its own server, on the home `home`."""

    def __init__(self, home: Home, version: str = "2024-11-05") -> None:
        self.process = subprocess.Popen(
            home.argv("mcp"), env=home.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._source, self._sink = self.process.stdout, self.process.stdin
        self._number = 0
        self._rest = b""
        self.notices: list[Json] = []
        info = {"name": "peer", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
        self.opening = self.ask("initialize", params)["result"]
        self.send({"method": "notifications/initialized"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Close the connection, and wait until the server has ended."""
        with contextlib.suppress(BrokenPipeError):
            self._sink.close()
        self._source.close()
        assert self.process.wait(PATIENCE_S) == 0

    def send(self, message: Json) -> None:
        self.send_line(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def send_line(self, line: bytes) -> None:
        view = memoryview(line + b"\n")
        while view:
            view = view[self._sink.write(view) :]

    def begin(self, method: str, params: Json) -> int:
        """Send a request; return its id."""
        self._number += 1
        self.send({"id": self._number, "method": method, "params": params})
        return self._number

    def begin_call(self, tool: str, **arguments: Any) -> int:
        return self.begin("tools/call", {"name": tool, "arguments": arguments})

    def next_message(self) -> Json:
        while b"\n" not in self._rest:
            data = self._source.read(1 << 20)
            assert data, "the server has closed the connection"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        found: Json = json.loads(line)
        return found

    def answer(self, number: int | None) -> Json:
        """Wait for the answer to a request; keep the notifications before it."""
        while "method" in (found := self.next_message()):
            self.notices.append(found)
        assert found["id"] == number
        return found

    def ask(self, method: str, params: Json) -> Json:
        return self.answer(self.begin(method, params))

    def call(self, tool: str, **arguments: Any) -> Json:
        """Call a tool; return its structured result."""
        result = self.answer(self.begin_call(tool, **arguments))["result"]
        assert not result.get("isError"), result
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        found: Json = result["structuredContent"]
        return found

    def refused(self, tool: str, **arguments: Any) -> Json:
        """Call a tool that refuses; return the parts of the error."""
        result = self.answer(self.begin_call(tool, **arguments))["result"]
        assert result["isError"]
        assert "structuredContent" not in result, "clients compare it with the schema of a result"
        error: Json = result["_meta"]["waypoint/error"]
        assert f"code: {error['code']}" in result["content"][0]["text"]
        return error
