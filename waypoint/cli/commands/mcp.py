"""`waypoint mcp`."""

import gc
import os

from waypoint.cli.caller import absolute, home_of
from waypoint.cli.output import note, print_lines
from waypoint.model.errors import HostLacks, UsageProblem
from waypoint.model.packages import make_importable
from waypoint.model.verbs import Given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.agents.mcp.server import Service

TOKEN_FILE = "~/.local/state/waypoint/mcp-token"


def run(given: Given) -> int:
    home = home_of(given)
    if given.flag("http"):
        _serve_http(home, given)
        return 0
    for option in ("port", "token_file"):
        if given[option] is not None:
            flag = f"--{option.replace('_', '-')}"
            raise UsageProblem("use", flag, "it goes with --http", "add --http, or leave it out")
    from waypoint.agents.mcp.wire import Wire

    wire = Wire()
    service = _load(home)
    from waypoint.agents.mcp import stdio

    stdio.serve(service, wire)
    return 0


def _serve_http(home: str, given: Given) -> None:
    service = _load(home)
    from waypoint.agents.mcp import http
    from waypoint.agents.mcp.token import token_in

    named, port = given.text("token_file"), given["port"]
    path = absolute(named) if named else os.path.expanduser(TOKEN_FILE)
    token = token_in(path)
    listener = http.listen(port if isinstance(port, int) else 0)
    print_lines([http.url_of(listener)])
    note(f"the token is in {path}: send it as 'Authorization: Bearer TOKEN'")
    http.serve(service, listener, token)


def _load(home: str) -> "Service":
    """Import the MCP package. Raises HostLacks if it is not installed."""
    gc.disable()  # the import makes many objects, and none of them is garbage
    make_importable("mcp")
    try:
        from waypoint.agents.mcp.server import Service
    except ModuleNotFoundError as error:
        said, step = f"the Python package {error.name} is missing", "install it: pip install 'waypoint-terminal[mcp]'"
        raise HostLacks("start", "the MCP server", said, step) from error
    gc.freeze()
    gc.enable()
    return Service(home)
