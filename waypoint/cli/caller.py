"""What of the process that called us goes with a session: its terminal, how that speaks, who is meant."""

import os

from waypoint.model.errors import UsageProblem

# What a session takes of its caller's environment (docs/protocol.md, section 1).
_TAKEN = frozenset({"TERM", "COLORTERM", "LANG", "TZ"})


def caller_env() -> dict[str, str]:
    """What of our own environment tells a session how this terminal and this person speak."""
    return {name: value for name, value in os.environ.items() if name in _TAKEN or name.startswith("LC_")}


def sudo_caller() -> str | None:
    """Who called sudo, if we run under it: the daemon sees root."""
    return os.environ.get("SUDO_USER") if os.geteuid() == 0 and os.environ.get("SUDO_UID") else None


def require_terminal(tried: str, on: str, next_step: str) -> None:
    """Raise UsageProblem if stdin is no terminal."""
    if not os.isatty(0):
        raise UsageProblem(tried, on, "stdin is not a terminal", next_step)
