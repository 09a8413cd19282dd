"""The time that agents wait for the MCP server."""

import contextlib
import sys
import time
from collections.abc import Iterator

from tests.agents.peer import Peer
from tests.bench.frame import Figure, Sizes, above_floor_at_most, at_most, ms_of_command, seconds_of
from tests.bench.start import BARE_PYTHON, FLOOR_NAME
from tests.homes import Home, open_home
from waypoint.client import Client

IMPORT = [sys.executable, "-c", "import mcp.server.lowlevel"]


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    with open_home("bench") as home:
        session = Client(home.path).start("bench")
        session.exec("true")
        with Peer(home) as peer:
            yield [
                Figure(
                    name="first answer of waypoint mcp",
                    unit="ms",
                    measure=lambda: _ms_to(home, wants_tools=False),
                    floor=lambda: ms_of_command(BARE_PYTHON),
                    floor_name=FLOOR_NAME,
                    aim=at_most(400, "ms"),
                ),
                Figure(
                    name="its list of tools",
                    unit="ms",
                    measure=lambda: _ms_to(home, wants_tools=True),
                    floor=lambda: ms_of_command(IMPORT),
                    floor_name="import mcp",
                ),
                Figure(
                    name="exec true by MCP",
                    unit="ms",
                    measure=lambda: 1000 * seconds_of(lambda: peer.call("exec", branch="bench", command="true")),
                    floor=lambda: 1000 * seconds_of(lambda: session.exec("true")),
                    floor_name="by the SDK",
                    aim=above_floor_at_most(5, "ms"),
                ),
            ]


def _ms_to(home: Home, *, wants_tools: bool) -> float:
    began = time.perf_counter()
    with Peer(home) as peer:
        if wants_tools:
            peer.ask("tools/list", {})
        return 1000 * (time.perf_counter() - began)
