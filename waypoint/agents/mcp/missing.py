"""Tools for commands that this version of Waypoint does not have yet."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from waypoint.agents.mcp.calls import Call
from waypoint.agents.mcp.toolbox import tool
from waypoint.agents.mcp.words import Branch
from waypoint.model.errors import HostLacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """No result: the tool always fails."""


@tool("adopt", "Run another agent in a session", "adds", open_world=True)
def adopt(
    call: Call, *, branch: Branch, argv: Annotated[list[str], Meta(min_length=1, description="The agent's command.")]
) -> Nothing:
    """Start a command-line agent in a session, with a capture for each of its turns."""
    raise _lacking("adopt", "use `start` and `exec`")


def _lacking(command: str, instead: str) -> HostLacks:
    said = f"this version does not have the command 'waypoint {command}'"
    return HostLacks("call", f"the tool {command}", said, instead)
