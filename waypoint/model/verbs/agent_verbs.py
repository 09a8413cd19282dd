"""The verbs that are for agents."""

from waypoint.model.verbs import Option, Verb
from waypoint.model.verbs.fast import HOME

GUIDE = Verb(
    "guide",
    (
        Option(
            ("--for",), "choice", "In the form of a skill of Claude Code, or for Codex.", choices=("claude", "codex")
        ),
        HOME,
    ),
    """Print what an agent should know to work with Waypoint, to be put into its instructions.

    Its examples can be run as they are, from the first to the last.""",
    "Example: waypoint guide --for claude >.claude/skills/waypoint/SKILL.md; waypoint guide >>AGENTS.md",
)
