"""The runtime record of a live session: the facts by which a new daemon finds the session again. The record does not
survive a reboot, nor does the session.
"""

import contextlib
import os
import shutil
from pathlib import Path

import msgspec

from waypoint.linux.storage import files
from waypoint.linux.tasks import procfs
from waypoint.model.records import Fixed, LiveRow, SessionLimits, Tier

RECORD = "record.json"

_EARLIER = "an earlier version of Waypoint started it"


class RuntimeRecord(Fixed, frozen=True, kw_only=True):
    """`init_pid`: the host's pid of the session's pid 1. `init_start`: the start time of that process in clock ticks
    since boot, by which a later process with the same pid is recognised as another one.

    `left_out`: the mounts of the machine that the session does not have. `why_host_ids`: in words, why its ids are the
    host's; "" if the ids are shifted, or wanted so. `why_no_seccomp`: in words, why there is no filter around its
    processes; "" if there is one, or none is wanted. `limits`: those in force; `unlimited`: what the machine does not
    hold of them (launch/ground/limits.py). `origin`: the capture whose processes came back in it; "": it began with a
    new shell, or an earlier version restored it. `tier`: with how much of the capture that it goes on from it has
    begun; None: it goes on from none, or an earlier version started it. `lowered`: in words, what its processes had, or
    might have, when they were captured, and do not, or may not, have here.
    """

    row: LiveRow
    boot_id: str
    init_pid: int
    init_start: int
    cgroup: str
    left_out: list[str]
    why_host_ids: str = _EARLIER
    why_no_seccomp: str = _EARLIER
    limits: SessionLimits = SessionLimits()
    unlimited: list[str] = msgspec.field(default_factory=list)
    origin: str = ""
    tier: Tier | None = None
    lowered: list[str] = msgspec.field(default_factory=list)

    def is_alive(self) -> bool:
        """True if pid 1 of the session still runs (not as a zombie)."""
        return self.boot_id == procfs.boot_id() and procfs.is_same(self.init_pid, self.init_start)


def save(folder: Path, record: RuntimeRecord) -> None:
    """Write the record. A SIGKILL leaves the old file or the new one. The file is not synced: no reboot needs it."""
    files.publish(str(folder / RECORD), msgspec.json.encode(record), durable=False)


def load(folder: Path) -> RuntimeRecord | None:
    """The record in the runtime folder `folder`; None if there is no file, or if the file is not a record."""
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode((folder / RECORD).read_bytes(), type=RuntimeRecord)
    return None


def make_folder(sessions: Path, session: str) -> Path:
    folder = sessions / session
    os.makedirs(folder, mode=0o700)
    return folder


def remove_folder(sessions: Path, session: str) -> None:
    shutil.rmtree(sessions / session, ignore_errors=True)
