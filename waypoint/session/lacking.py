"""What was not kept of a session, and what could not be brought back, in words: every verb that keeps less or brings
less back than there was tells it in these words.
"""

from waypoint.capture.taking import WITHOUT_PROCESSES
from waypoint.launch.ground.base import WAITS
from waypoint.model.records import Capture, Tier
from waypoint.model.verbs.told import NOT_IN
from waypoint.session.live.session import LiveSession

_KEPT: dict[Tier, str] = {
    "live": "",
    "respawn": "only its files were kept, and how to start its programs again",
    "files": "only its files were kept",
}


def of_capture(capture: Capture) -> list[str]:
    """What the capture keeps less faithfully than the session was that it was made of."""
    return _of_all(capture) if capture.reason == "replaced" else capture.degraded


def of_copy(live: LiveSession, origin: Capture) -> list[str]:
    """What the session `live`, which was made of the capture `origin`, lacks of what was captured."""
    left_out, lowered = live.record.left_out, live.record.lowered
    gone = [f"{NOT_IN}: {one}" for one in left_out if origin.tier == "live" or one.endswith(WAITS)]
    return [*of_capture(origin), *lowered, *live.not_back, *gone]


def of_kept(kept: Capture, what: str) -> list[str]:
    """What is not kept of a session that a verb has replaced or ended, which the capture `kept` keeps. `what`: of what,
    "replaced" or "ended".
    """
    return [
        f"what was {what} is kept {said}" if said.startswith(WITHOUT_PROCESSES) else f"of what was {what}: {said}"
        for said in _of_all(kept)
    ]


def _of_all(capture: Capture) -> list[str]:
    if capture.tier == "live" or any(said.startswith(WITHOUT_PROCESSES) for said in capture.degraded):
        return capture.degraded
    return [f"{WITHOUT_PROCESSES}: {_KEPT[capture.tier]}", *capture.degraded]
