"""The time until a new session reaches the network."""

import time

from tests.acceptance.outside import ECHO, PUBLIC
from tests.bench.frame import Figure, above_floor_at_most
from waypoint.client.sdk import Client

USER = "nobody"


def way_out(client: Client) -> Figure:
    """From the start of a session until its first command has an answer from outside, with a running router."""
    reach = f"exec 3<>/dev/tcp/{PUBLIC}/{ECHO} && read -r line <&3"

    def start_and_reach() -> float:
        begin = time.perf_counter()
        assert client.start("new", user=USER, env={"TERM": "xterm"}).exec(reach).exit == 0
        return 1000 * (time.perf_counter() - begin)

    def start_without() -> float:
        clear()
        begin = time.perf_counter()
        client.start("new", user=USER, env={"TERM": "xterm"}, net="none").exec("true")
        taken = 1000 * (time.perf_counter() - begin)
        client.session("new").stop(discard=True)
        return taken

    def clear() -> None:
        if any(facts.branch == "new" for facts in client.sessions()):
            client.session("new").stop(discard=True)

    aim, floor_name = above_floor_at_most(20, "ms"), "--net none, exec true"
    return Figure("start until the outside is reached", "ms", start_and_reach, start_without, floor_name, aim, clear)
