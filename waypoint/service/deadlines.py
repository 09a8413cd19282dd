"""Parks sessions by themselves: those that nobody uses (`shell --idle-park`), and those whose time is over (`--ttl`).

A session is in use while a client has a stream of it open, while its terminal prints, and while its programs use more
than BUSY of a processor. The daemon sleeps until the first deadline. Only then it looks at what the session has printed
and how much processor time it has used since its *base*, a look before; if it was used, this look is the new base. So a
session is parked at the earliest AGE after the last client has gone, and at the latest twice AGE after its programs
became idle. Bases are kept in the runtime folder, for the next daemon.

The clock is CLOCK_BOOTTIME, which goes on while the machine is suspended. A session that is parked for idleness keeps
all of its processes, or continues; one whose time is over is parked as completely as possible.
"""

import asyncio
import contextlib
import functools
import logging
import time
from pathlib import Path
from typing import Literal

import msgspec

from waypoint.capture.layers.layer import CaptureOptions
from waypoint.linux.storage import files
from waypoint.linux.tasks import alarm, cgroups
from waypoint.model.activity import ParkEvent
from waypoint.model.errors import StateConflict, WaypointError, one_line
from waypoint.model.records import Capture
from waypoint.records.callers import for_nobody
from waypoint.service.home import Home
from waypoint.service.session_hooks import before_capture
from waypoint.session.checkpoint import LossConsent, checkpoint
from waypoint.session.live.session import LiveSession
from waypoint.session.parked import ends_at, park

BUSY, SLACK_S = 0.01, 0.05
"""Programs that have used more of a processor than this part of the time, and this many seconds, are in use."""
SETTLE_S = 0.5
"""Seconds after the end of a request in which the shell prints its prompt, which is no use of its own."""
GRACE_S = 1.0
"""How long a new daemon waits before it parks, because clients of the last one connect again."""
AGAIN_S = 60.0
"""Seconds until a session that could not be parked at its end is tried again."""
AT_ONCE = 2
_FILE = "idle.json"

Why = Literal["idle", "ttl"]

log = logging.getLogger(__name__)


class _Base(msgspec.Struct, frozen=True):
    """A look at a session. `at`: by the alarm's clock. `printed`: bytes of the terminal."""

    at: float
    cpu_usec: int
    printed: int


class _Watched:
    """A session with a deadline. `not_before`: by the alarm's clock; it is not parked earlier."""

    def __init__(self, live: LiveSession, folder: Path, now: float) -> None:
        self.live = live
        self._path = folder / _FILE
        self.not_before = now
        self.parking: asyncio.Task[None] | None = None
        with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
            self.base = msgspec.json.decode(self._path.read_bytes(), type=_Base)
            self.not_before = now + GRACE_S
            return
        self.base = self.look(now)
        self.keep()

    def look(self, at: float) -> _Base:
        terminal = self.live.terminal
        printed = terminal.ring.end + len(terminal.reader.spill)
        return _Base(at, cgroups.cpu_usec(self.live.record.cgroup), printed)

    def keep(self) -> None:
        """Keep the base for the next daemon. Without it, that daemon counts from its own start."""
        with contextlib.suppress(OSError):
            files.publish(str(self._path), msgspec.json.encode(self.base), durable=False)

    def idle_at(self) -> float | None:
        age = self.live.record.row.setting.idle_park
        return self.base.at + age if age else None

    def expires_at(self) -> float | None:
        end = ends_at(self.live.record.row.setting)
        return None if end is None else alarm.now() + end - time.time()

    def due(self) -> float:
        times = [at for at in (self.idle_at(), self.expires_at()) if at is not None]
        return max(min(times), self.not_before)

    def is_used(self, now: float) -> bool:
        """Whether the session was used since the base. If so, or if that is uncertain, `now` is the new base."""
        found, base = self.look(now), self.base
        used_s, past_s = (found.cpu_usec - base.cpu_usec) / 1e6, now - base.at
        is_quiet = found.printed == base.printed and 0 <= used_s <= SLACK_S + BUSY * past_s
        if is_quiet and not self.live.is_followed:
            return False
        self.base = found
        self.keep()
        return True


class _InUseError(StateConflict):
    """A request has begun to use the session while it was captured."""


class Deadlines:
    """Use it in the event loop only."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._alarm = alarm.Alarm()
        self._watched: dict[str, _Watched] = {}  # by session
        self._is_closed = False
        self._room = asyncio.Semaphore(AT_ONCE)
        self._loop.add_reader(self._alarm.fd, self._ring)

    def watch(self, live: LiveSession) -> None:
        """Park the session when its time comes."""
        row = live.record.row
        if not row.setting.idle_park and not row.setting.ttl:
            return
        folder = self._home.sessions.resources.places.sessions / row.session
        watched = self._watched[row.session] = _Watched(live, folder, alarm.now())
        if row.setting.idle_park:
            live.on_use = functools.partial(self._note_use, watched)
            live.parks_in_s = functools.partial(_left_s, watched)
        self._arm()

    def _note_use(self, watched: _Watched) -> None:
        watched.base = watched.look(alarm.now())
        for_nobody(lambda: self._loop.call_later(SETTLE_S, self._settle, watched, watched.base.at))

    def _settle(self, watched: _Watched, at: float) -> None:
        """After the end of a request, let the prompt of the shell belong to it."""
        if watched.base.at == at and self._is_there(watched):
            watched.base = watched.look(at)
            watched.keep()
            self._arm()

    def _is_there(self, watched: _Watched) -> bool:
        live = watched.live
        return self._home.sessions.find(live.branch) is live and live.ending is None

    def _arm(self) -> None:
        if self._is_closed:
            return
        idle = [one for one in self._watched.values() if one.parking is None]
        self._alarm.set(min((one.due() for one in idle), default=None))

    def _ring(self) -> None:
        self._alarm.clear()
        now = alarm.now()
        for session, one in list(self._watched.items()):
            if not self._is_there(one):
                del self._watched[session]
            elif one.parking is None and one.due() <= now:
                self._look(one, now)
        self._arm()

    def _look(self, one: _Watched, now: float) -> None:
        end = one.expires_at()
        why: Why = "ttl" if end is not None and end <= now else "idle"
        if why == "idle" and one.is_used(now):
            return
        one.parking = task = for_nobody(lambda: asyncio.ensure_future(self._park(one, why)))
        task.add_done_callback(lambda _: self._parked(one))

    def _parked(self, one: _Watched) -> None:
        one.parking = None
        self._arm()

    async def _park(self, one: _Watched, why: Why) -> None:
        live, branch = one.live, one.live.branch
        try:
            async with self._room, self._home.sessions.turn(branch):
                if not self._is_there(one) or (why == "idle" and one.is_used(alarm.now())):
                    return
                kept = await (self._park_idle(live) if why == "idle" else self._park_expired(live))
        except _InUseError:
            return
        except (WaypointError, OSError) as error:
            live.is_parking = False
            now = alarm.now()
            one.base = one.look(now)
            one.not_before = now + (AGAIN_S if why == "ttl" else live.record.row.setting.idle_park)
            said = one_line(str(error))
            log.warning("the session on %s cannot be parked, and continues: %s", branch, said)
            self._home.events.publish(ParkEvent, change="failed", branch=branch, why=why, said=said)
        else:
            self._home.events.publish(
                ParkEvent, change="parked", branch=branch, why=why, capture=kept.id, tier=kept.tier
            )

    async def _park_idle(self, live: LiveSession) -> Capture:
        uses = live.uses

        async def agree() -> None:
            if live.is_followed or live.uses != uses:
                raise _InUseError(
                    "park", f"branch {live.branch}", "a request uses its session", "nothing is to be done"
                )
            live.is_parking = True

        options = CaptureOptions(reason="idle", keep_frozen=True)
        never = LossConsent(agreed=False, command=f"waypoint stop {live.branch}")
        sessions = self._home.sessions
        return (await checkpoint(sessions, live.branch, options, never, agree, before_capture)).capture

    async def _park_expired(self, live: LiveSession) -> Capture:
        """Park the session with its processes; if they cannot be captured, with the command lines of its programs."""
        return await park(self._home.sessions, live.branch, "expired", before_capture)

    async def close(self) -> None:
        """Begin to park no more sessions, and wait for those that are being parked."""
        self._loop.remove_reader(self._alarm.fd)
        self._is_closed = True
        self._alarm.close()
        parking = [one.parking for one in self._watched.values() if one.parking is not None]
        if parking:
            await asyncio.wait(parking)


def _left_s(watched: _Watched) -> float | None:
    at = watched.idle_at()
    return None if at is None else max(0.0, at - alarm.now())
