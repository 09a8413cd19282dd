"""Lines that describe what a capture or a restored session lacks. All verbs use the same lines."""

from waypoint.capture.taking import WITHOUT_PROCESSES
from waypoint.launch.ground.base import WAITS
from waypoint.model.records import Capture, Tier
from waypoint.session.live.session import LiveSession

_KEPT: dict[Tier, str] = {
    "live": "",
    "respawn": "only its files and the command lines of its programs were kept",
    "files": "only its files were kept",
}


def copy_losses(live: LiveSession, origin: Capture) -> list[str]:
    """Describe what the session `live`, made from the capture `origin`, lacks compared with the captured session."""
    in_capture = _with_tier(origin) if origin.reason == "replaced" else origin.degraded
    left_out = [line for line in live.record.left_out if origin.tier == "live" or line.endswith(WAITS)]
    return [*in_capture, *live.record.lowered, *live.not_back, *left_out]


def kept_losses(kept: Capture, what: str) -> list[str]:
    """Describe what the capture `kept` lacks of the session that was `what`: "replaced" or "ended"."""
    return [
        f"the {what} session is kept {line}" if line.startswith(WITHOUT_PROCESSES) else f"of the {what} session: {line}"
        for line in _with_tier(kept)
    ]


def _with_tier(capture: Capture) -> list[str]:
    if capture.tier == "live" or any(line.startswith(WITHOUT_PROCESSES) for line in capture.degraded):
        return capture.degraded
    return [f"{WITHOUT_PROCESSES}: {_KEPT[capture.tier]}", *capture.degraded]
