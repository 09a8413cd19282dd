"""Standbys that are ready: frozen copies of captures that nobody has taken yet."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from waypoint.model.records import Capture, LiveRow, Setting
from waypoint.session.live.record import RuntimeRecord


class Standby(NamedTuple):
    """`entry`: the record of the session that it becomes. `size`: rows and columns of its terminal. `mounts`: how often
    the machine's mounts had changed when it was made. `is_timeless`: whether its processes notice nothing of the time
    in which they stand. `made_at`: by the monotonic clock.
    """

    origin: Capture
    entry: RuntimeRecord
    size: tuple[int, int]
    mounts: int
    is_timeless: bool
    made_at: float

    @property
    def row(self) -> LiveRow:
        return self.entry.row


class Standbys:
    """The standbys of a home. Use it only in the event loop.

    `on_use`: called with each capture whose processes were restored in a session.
    """

    def __init__(self) -> None:
        self._ready: dict[str, Standby] = {}
        self.on_use: Callable[[Capture], object] = bool

    @property
    def all(self) -> list[Standby]:
        return list(self._ready.values())

    def add(self, standby: Standby) -> None:
        self._ready[standby.row.session] = standby

    def take(self, capture_id: str, setting: Setting, size: tuple[int, int]) -> Standby | None:
        """Take a standby of the capture that is what a restore with this setting would make. The caller makes it a
        session, gives it back (`add`), or ends it.
        """
        wanted = as_standby(setting)
        for standby in self._ready.values():
            if (standby.origin.id, standby.row.setting, standby.size) == (capture_id, wanted, size):
                return self.remove(standby)
        return None

    def remove(self, standby: Standby) -> Standby | None:
        """Take this standby; None if it was taken already."""
        return self._ready.pop(standby.row.session, None)


def as_standby(setting: Setting) -> Setting:
    """The setting without what a standby gets only when it is taken."""
    return msgspec.structs.replace(setting, publish=[], since=0.0)
