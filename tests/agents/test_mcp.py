"""The MCP server: tools, resources, nonsense, and clients that cancel or disappear."""

import contextlib
import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from tests.agents.peer import Json, Peer
from tests.collecting import collecting
from tests.homes import Home
from tests.places import ROOT
from tests.waiting import PATIENCE_S, wait_until
from waypoint.agents.mcp import opening
from waypoint.agents.mcp.server import Service
from waypoint.agents.mcp.toolbox import TEXT_BYTES
from waypoint.client import Client as Sdk

pytestmark = pytest.mark.privileged


@pytest.fixture(scope="module")
def peer(home: Home) -> Iterator[Peer]:
    """A client of the oldest protocol, with a session on the branch `a`."""
    with Peer(home) as peer:
        assert peer.call("start", branch="a")["created"]
        yield peer


def test_the_official_client_gets_typed_results(home: Home, peer: Peer) -> None:
    """The client itself compares each result with the schema of its tool."""

    async def use() -> None:
        server = StdioServerParameters(command=home.argv()[0], args=home.argv("mcp")[1:], env=dict(home.env))
        async with Client(stdio_client(server)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert all(tool.output_schema and tool.description and tool.annotations for tool in tools.values())
            assert [name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint] == [
                *("output", "read_file", "list", "log", "search", "diff", "handoff", "verify")
            ]
            told = anyio.Event()

            async def progress(done: float, total: float | None, message: str | None) -> None:
                if message == "begun":
                    told.set()

            async def call(tool: str, **arguments: Any) -> Json:
                result = await client.call_tool(tool, arguments, progress_callback=progress)
                assert not result.is_error, result.content
                assert isinstance(result.structured_content, dict)
                return result.structured_content

            await call("exec", branch="a", command="mkfifo /tmp/p; cd /srv; export X=1; (exec sleep 1000) & jobs -p")
            assert (await call("checkpoint", branch="a", name="c"))["tier"] == "live"
            assert (await call("exec", branch="a", command="echo new > /srv/f; X=2"))["exit"] == 0
            [change] = (await call("diff", one="c", other="a", patch=True))["changes"][:1]
            assert change["name"] == "/srv/f"
            plan = await call("apply", name="a", paths=["/srv/f"], dry_run=True)
            assert ([one["name"] for one in plan["changes"]], plan["applied"]) == (["/srv/f"], False)
            await call("restore", branch="a", name="c")
            done = await call("exec", branch="a", command="echo $X; pwd; ls /srv/f; kill -0 %1")
            assert done["output"]["text"].startswith("1\n/srv\nls: ")
            assert done["exit"] == 0
            assert (await call("undo", branch="a", dry_run=True))["undone"]["verb"] == "restore"
            ran = await call("run", branch="a", argv=["sh", "-c", "cat; echo e >&2; exit 3"], stdin="i")
            assert (ran["stdout"]["text"], ran["stderr"]["text"], ran["exit"]) == ("i", "e\n", 3)
            assert (await call("fork", name="c", branches=["f"]))["sessions"][0]["branch"] == "f"
            assert {one["branch"] for one in (await call("list"))["sessions"]} == {"a", "f"}
            assert (await call("log", name="c", limit=1))["captures"][0]["branch"] == "a"
            await call("stop", branch="f", discard=True)
            assert (await call("verify"))["damage"] == []
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: call("exec", branch="a", command="echo begun; read < /tmp/p"))
                await told.wait()
                await call("run", branch="a", argv=["sh", "-c", "echo > /tmp/p"])
            uris = [str(one.uri) for one in (await client.list_resources()).resources]
            assert "waypoint://scrollback/a" in uris
            texts = [(await client.read_resource(uri)).contents[0] for uri in uris]
            assert all(getattr(one, "text", "") for one in texts)
            [capture] = (await client.read_resource("waypoint://captures/c")).contents
            assert json.loads(getattr(capture, "text", ""))["tier"] == "live"

    anyio.run(use)


def test_the_early_answer_is_that_of_the_package(home: Home, peer: Peer) -> None:
    async def answers_of_the_package() -> Json:
        async with Client(Service(str(home.path)).server(), mode="legacy") as client:
            result = client.session.initialize_result
            assert result is not None
            return result.model_dump(by_alias=True, mode="json", exclude_none=True)

    own = anyio.run(answers_of_the_package)
    assert peer.opening == {**own, "protocolVersion": "2024-11-05"}
    assert own["protocolVersion"] == opening.VERSIONS[-1]
    assert opening.VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS
    for odd in (b"[]", b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05"}}'):
        assert opening.answer(odd) is None, "this is left to the package"


def test_a_cancelled_call_interrupts_its_command(peer: Peer) -> None:
    number = peer.begin_call("exec", branch="a", command="echo begun > /tmp/began; sleep 1000")
    wait_for_file(peer, "/tmp/began")
    peer.send({"method": "notifications/cancelled", "params": {"requestId": number, "reason": "enough"}})
    done = peer.call("exec", branch="a", command="pgrep -x sleep -a | grep -c 'sleep 1000$'; rm /tmp/began")
    assert done["output"]["text"] == "1\n", "only the background job of the first test is left"


def test_a_client_that_disappears_leaves_nothing_running(home: Home, peer: Peer) -> None:
    sdk = Sdk(home.path)
    before = {one.name for one in sdk.history.branches()}
    with Peer(home) as other:
        other.begin_call("exec", branch="a", command="trap '' INT TERM; touch /tmp/began; sleep 2000; sleep 2000")
        wait_for_file(peer, "/tmp/began")
        other.begin_call("try", name="c", commands=["sleep 2000", "sleep 3000"], prefix="lost")
        wait_until(lambda: len(sdk.sessions()) == 3, "both forks run")
    assert {one.name for one in sdk.history.branches()} == before
    assert [one.branch for one in sdk.sessions()] == ["a"]
    assert peer.call("run", branch="a", argv=["pgrep", "-f", "sleep [23]000"])["exit"] == 1


def test_a_long_output_is_read_page_by_page(peer: Peer) -> None:
    done = peer.call("exec", branch="a", command="for i in {1..3000}; do echo $i ä; done", max_bytes=1000)["output"]
    whole = "".join(f"{i} ä\n" for i in range(1, 3001))
    assert done["total_bytes"] == len(whole.encode())
    assert whole.startswith(done["text"])
    assert whole.endswith(done["tail"])
    assert len((done["text"] + done["tail"]).encode()) == done["total_bytes"] - done["omitted_bytes"] <= 1000
    pages, cursor = [done["text"]], done["cursor"]
    while cursor:
        page = peer.call("output", cursor=cursor, max_bytes=9001)
        pages, cursor = [*pages, page["text"]], page.get("cursor")
    assert "".join(pages) == whole


def test_files_are_read_in_parts_and_written_whole(peer: Peer) -> None:
    assert peer.call("write_file", branch="a", path="/tmp/w", content="aä€\n")["size_bytes"] == 7
    parts, offset = "", 0
    while offset is not None:
        part = peer.call("read_file", name="a", path="/tmp/w", offset=offset, max_bytes=4)
        parts, offset = parts + part["content"], part.get("next_offset")
    assert parts == "aä€\n"
    peer.call("write_file", branch="a", path="/tmp/w", content="AP8=", encoding="base64")
    assert peer.call("read_file", name="a", path="/tmp/w", encoding="base64")["content"] == "AP8="


def test_try_keeps_the_best(peer: Peer) -> None:
    done = peer.call(
        *("try",),
        name="c",
        commands=["echo 5 > /srv/n; exit 3", "echo 7 > /srv/n", "echo {i} {branch}; echo 9 > /srv/n"],
        prefix="t",
        score="cat /srv/n",
        keep="best",
    )
    assert [(one["branch"], one["exit"], one.get("score")) for one in done["attempts"]] == [
        *(("t-1", 3, None), ("t-2", 0, 7.0), ("t-3", 0, 9.0)),
    ]
    assert done["attempts"][2]["output"]["text"] == "3 t-3\n"
    assert (done["kept"]["branch"], done["running"]) == ("t-3", [])
    assert peer.call("read_file", name="best", path="/srv/n")["content"] == "9\n"


def test_rewind_lists_points_and_goes_back_to_one(home: Home, peer: Peer) -> None:
    peer.call("exec", branch="a", command="echo 1 > /srv/r")
    Sdk(home.path).session("a").point("write 2")
    peer.call("exec", branch="a", command="echo 2 > /srv/r")
    assert peer.call("rewind", branch="a")["points"][0]["label"] == "write 2"
    done = peer.call("rewind", branch="a", number=1)
    assert (done["points"][0]["label"], done["session"]["branch"]) == ("write 2", "a")
    assert peer.call("read_file", name="a", path="/srv/r")["content"] == "1\n"
    assert peer.refused("rewind", branch="a", number=1000)["code"] == "unknown-name"


def test_nonsense_gets_a_code_and_a_next_step(home: Home, peer: Peer) -> None:
    peer.call("exec", branch="a", command=f"ln -sf {home.path}/config.json /tmp/out; mkdir -p /tmp/d")
    rows: list[tuple[str, Json, str]] = [
        ("exec", {"branch": "nobody", "command": "true"}, "unknown-name"),
        ("exec", {"branch": "a b", "command": "true"}, "usage"),
        ("exec", {"branch": "a", "command": "a\0b"}, "usage"),
        ("exec", {"branch": "a", "command": "x" * 10_000_000}, "usage"),
        ("exec", {"branch": "a"}, "usage"),
        ("exec", {"branch": "a", "command": "true", "shout": True}, "usage"),
        ("exec", {"branch": "a", "command": ["true"]}, "usage"),
        ("run", {"branch": "a", "argv": []}, "usage"),
        ("read_file", {"name": "a", "path": "../etc/passwd"}, "usage"),
        ("read_file", {"name": "a", "path": "/tmp/\0"}, "usage"),
        ("read_file", {"name": "a", "path": "/tmp/none"}, "unknown-name"),
        ("read_file", {"name": "a", "path": "/tmp/out"}, "unknown-name"),
        ("read_file", {"name": "a", "path": "/tmp/d"}, "failure"),
        ("write_file", {"branch": "a", "path": "/tmp/x/../../none/f", "content": ""}, "failure"),
        ("write_file", {"branch": "a", "path": "/tmp/f", "content": "?", "encoding": "base64"}, "usage"),
        ("output", {"cursor": "0-0"}, "unknown-name"),
        ("checkpoint", {"branch": "a", "name": "c"}, "name-taken"),
        ("fork", {"name": "c", "branches": ["a"]}, "name-taken"),
        ("restore", {"branch": "a", "name": "none"}, "unknown-name"),
        ("try", {"name": "c", "commands": ["true"], "score": "echo 1"}, "usage"),
        ("destroy", {}, "unknown-name"),
    ]
    with collecting() as row:
        for tool, arguments, code in rows:
            with row(f"{tool} {str(arguments)[:80]}"):
                error = peer.refused(tool, **arguments)
                assert error["code"] == code, error
                assert error["said"]
                assert error["next"]
                assert len(str(error)) < 2000
    assert peer.ask("resources/read", {"uri": "waypoint://sessions/none"})["error"]["data"]["code"] == "unknown-name"
    assert peer.ask("no/method", {})["error"]["code"] == -32601
    for line, code in (
        (b"no json", -32700),
        (b"[]", -32700),
        (b'{"jsonrpc":"1.0"}', -32600),
        (b'{"a":"\xff"}', -32700),
    ):
        peer.send_line(line)
        assert peer.answer(None)["error"]["code"] == code
    assert peer.call("exec", branch="a", command="echo well", wait_prompt_s=60)["output"]["text"] == "well\n"
    assert TEXT_BYTES < 10_000_000


def wait_for_file(peer: Peer, path: str) -> None:
    wait_until(lambda: peer.call("run", branch="a", argv=["test", "-e", path])["exit"] == 0, f"{path} exists")


def test_http_serves_who_has_the_token_and_ends_what_a_client_leaves(home: Home, peer: Peer, tmp_path: Path) -> None:
    file = tmp_path / "new/token"
    with home.background("mcp", "--http", "--token-file", str(file)) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().split(b":")[-1].partition(b"/")[0])
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        own = {"Authorization": f"Bearer {file.read_text().strip()}"}
        opening = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}

        @contextlib.contextmanager
        def ask(method: str, params: Json, headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            kinds = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            with contextlib.closing(connection):
                connection.request("POST", "/mcp", body, {**kinds, **headers})
                yield connection.getresponse()

        for status, headers in (
            (401, {}),
            (401, {"Authorization": "Bearer x"}),
            (421, {**own, "Host": "example.com"}),
            (403, {**own, "Origin": "http://example.com"}),
        ):
            with ask("initialize", opening, headers) as refused:
                assert refused.status == status
        with ask("initialize", opening, own) as first:
            assert first.status == 200
            own["Mcp-Session-Id"] = first.headers["Mcp-Session-Id"]
        arguments = {"branch": "a", "command": "touch /tmp/began; sleep 4000"}
        with ask("tools/call", {"name": "exec", "arguments": arguments}, own) as call:
            assert call.status == 200
            wait_for_file(peer, "/tmp/began")
        assert peer.call("exec", branch="a", command="rm /tmp/began; pgrep -f 'sleep 4000'")["exit"] == 1
        server.terminate()
        assert server.wait(PATIENCE_S) == -signal.SIGTERM


def test_without_the_package_the_error_says_what_to_install(home: Home) -> None:
    start = "import sys; sys.path.insert(0, sys.argv[1]); sys.modules['mcp'] = None; import waypoint.cli.entry as entry"
    words = [sys.executable, "-I", "-S", "-c", f"{start}; entry.main(['mcp'])", str(ROOT)]
    done = subprocess.run(words, env=home.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "pip install 'waypoint-terminal[mcp]'" in done.stderr
