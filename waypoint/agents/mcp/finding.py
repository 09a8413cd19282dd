"""The tools that find a state and describe it."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from waypoint.agents.handoff import document
from waypoint.agents.mcp.calls import Call
from waypoint.agents.mcp.toolbox import tool
from waypoint.agents.mcp.words import Limit, Name
from waypoint.model.facts import SearchFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """`document`: in Markdown."""

    capture: str
    document: str


@tool("search", "Search captures", "reads")
def search(
    call: Call,
    *,
    text: Annotated[str, Meta(min_length=1, max_length=1000, description="What to look for: any part, any case.")],
    limit: Limit = 20,
) -> SearchFacts:
    """Find captures and running sessions by their names, messages, prompts, commands and changed files, the newest
    first.
    """
    return call.client.history.search(text, limit=limit)


@tool("handoff", "Describe a state for another agent", "reads")
def handoff(call: Call, *, name: Name) -> Handoff:
    """One document about a capture: how to go on from it, here and elsewhere, programs, changed files, what led to it,
    and the last output. Of a branch: its latest capture.
    """
    facts = call.client.history.handoff(name)
    return Handoff(capture=facts.capture.capture, document=document(facts))
