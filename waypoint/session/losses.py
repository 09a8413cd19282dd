"""Degradations: lists of the things that a capture or a restored session lacks. All verbs report the same ones."""

import msgspec

from waypoint.model.conditions import About, Degradation, degradation
from waypoint.model.records import Capture, Tier
from waypoint.session.live.session import LiveSession

_KEPT: dict[Tier, str] = {
    "live": "",
    "respawn": "only its files and the command lines of its programs were kept",
    "files": "only its files were kept",
}
_TAKEN_BEFORE_AN_END = ("replaced", "idle", "expired")


def copy_losses(live: LiveSession, origin: Capture) -> list[Degradation]:
    """Return what the session `live`, made from the capture `origin`, lacks compared with the captured session."""
    in_capture = _with_tier(origin) if origin.reason in _TAKEN_BEFORE_AN_END else origin.degraded
    left_out = [one for one in live.record.left_out if live.record.origin or one.code == "changes-hidden"]
    return [*in_capture, *live.record.lowered, *live.not_back, *left_out, *live.moved_ports]


def kept_losses(kept: Capture, about: About) -> list[Degradation]:
    """Return what the capture `kept` lacks of the session that was replaced or has ended."""
    return [msgspec.structs.replace(one, about=about) for one in _with_tier(kept)]


def _with_tier(capture: Capture) -> list[Degradation]:
    if capture.tier == "live" or any(one.code == "no-processes" for one in capture.degraded):
        return capture.degraded
    return [degradation("no-processes", detail=_KEPT[capture.tier]), *capture.degraded]
