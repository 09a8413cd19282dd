"""The tools that find a state and describe it."""

from dataclasses import dataclass

from waypoint.agents.handoff import document
from waypoint.agents.mcp.calls import Call
from waypoint.agents.mcp.toolbox import tool
from waypoint.agents.mcp.words import Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """`document`: in Markdown."""

    capture: str
    document: str


@tool("handoff", "Describe a state for another agent", "reads")
def handoff(call: Call, *, name: Name) -> Handoff:
    """One document about a capture: how to go on from it, here and elsewhere, programs, changed files, what led to it,
    and the last output. Of a branch: its latest capture.
    """
    facts = call.client.history.handoff(name)
    return Handoff(capture=facts.capture.capture, document=document(facts))
