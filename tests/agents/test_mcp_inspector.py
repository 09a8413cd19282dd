"""The MCP server with the protocol's own inspector, a client in TypeScript."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.homes import Home
from waypoint.agents.mcp.all_tools import TOOLS

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.requires("root", "npm", "network"),
    pytest.mark.soak(part="agents"),
]
PACKAGES = ("node@22", "@modelcontextprotocol/inspector@2")
INSTALL_S, CALL_S = 200, 60


def test_the_inspector_accepts_all_tools_and_results(home: Home, tmp_path: Path) -> None:
    """It compares results with the schemas of their tools."""
    words = ["npm", "install", "--no-fund", "--no-audit", "--prefix", str(tmp_path), "--cache", f"{tmp_path}/cache"]
    subprocess.run([*words, *PACKAGES], check=True, capture_output=True, timeout=INSTALL_S)
    node, inspector = tmp_path / "node_modules/node/bin/node", tmp_path / "node_modules/.bin/mcp-inspector"

    def inspect(method: str, *options: str) -> Any:
        variables = [word for item in home.env.items() for word in ("-e", "=".join(item))]
        command = [str(node), str(inspector), "--cli", *variables, *home.argv("mcp"), "--method", method, *options]
        done = subprocess.run(command, capture_output=True, timeout=CALL_S, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def call(tool: str, *arguments: str) -> Any:
        given = [word for argument in arguments for word in ("--tool-arg", argument)]
        return inspect("tools/call", "--tool-name", tool, *given)

    assert [tool["name"] for tool in inspect("tools/list")["tools"]] == list(TOOLS)
    assert call("start", "branch=i")["structuredContent"]["created"]
    assert call("exec", "branch=i", "command=echo hi")["structuredContent"]["output"]["text"] == "hi\n"
    assert call("checkpoint", "branch=i", "name=c")["structuredContent"]["name"] == "c"
    for tool in ("list", "log", "verify"):
        assert call(tool)["structuredContent"]
    assert call("exec", "branch=nobody", "command=ls")["_meta"]["waypoint/error"]["code"] == "unknown-name"
    uris = [one["uri"] for one in inspect("resources/list")["resources"]]
    assert "waypoint://sessions/i" in uris
    [found] = inspect("resources/read", "--uri", "waypoint://captures/c")["contents"]
    assert json.loads(found["text"])["names"]
