"""What the server tells about itself, and the answer to `initialize` before the MCP package is loaded."""

from waypoint import __version__
from waypoint.model import plainjson

NAME, TITLE = "waypoint", "Waypoint"
INSTRUCTIONS = (
    "Waypoint runs shell sessions on a copy-on-write view of this machine. `start` a session on a branch, `exec` "
    "commands in it, and make a `checkpoint` before a risk: it keeps files, running processes with their memory, "
    "terminal and shell. `restore` goes back, `undo` undoes the last operation, `fork` and `try` start copies side by "
    "side. Nothing changes the machine itself until `apply` (and folders shared by `binds`). A long output has a "
    "`cursor`: `output` reads on. An error has a code and the next step."
)
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The protocol versions that begin with `initialize`."""
_CAPABILITIES = {"resources": {"listChanged": False, "subscribe": False}, "tools": {"listChanged": False}}


def answer(line: bytes) -> tuple[int | str, bytes] | None:
    """The id of the request and the answer, as the MCP package would answer it; None if `line` is not a plain
    `initialize`.
    """
    try:
        found = plainjson.decode_object(line)
    except ValueError:
        return None
    number, params = found.get("id"), found.get("params")
    is_request = found.get("jsonrpc") == "2.0" and found.get("method") == "initialize"
    if not is_request or not isinstance(number, int | str) or isinstance(number, bool) or not isinstance(params, dict):
        return None
    version, client = params.get("protocolVersion"), params.get("clientInfo")
    if version not in VERSIONS or not _is_plain(params.get("capabilities")):
        return None
    if not isinstance(client, dict) or not all(isinstance(client.get(key), str) for key in ("name", "version")):
        return None
    result = {
        "capabilities": _CAPABILITIES,
        "instructions": INSTRUCTIONS,
        "protocolVersion": version,
        "serverInfo": {"name": NAME, "title": TITLE, "version": __version__},
    }
    return number, plainjson.encode({"jsonrpc": "2.0", "id": number, "result": result}).encode()


def _is_plain(capabilities: object) -> bool:
    return isinstance(capabilities, dict) and all(isinstance(value, dict) for value in capabilities.values())
