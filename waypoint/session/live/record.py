"""The runtime record of a live session, by which a new daemon finds the session. Neither survives a reboot."""

import contextlib
import os
import shutil
from pathlib import Path

import msgspec

from waypoint.linux.storage import files
from waypoint.linux.tasks import procfs
from waypoint.model.conditions import Degradation
from waypoint.model.records import Fixed, LiveRow, SessionLimits

RECORD = "record.json"

_EARLIER = "an earlier version of Waypoint started it"


class RuntimeRecord(Fixed, frozen=True, kw_only=True):
    """`init_pid`: the host's pid of the session's pid 1; `init_start`: its start time in clock ticks since boot, which
    tells it from a later process with the same pid. `left_out`: mounts of the host that the session does not have.
    `why_host_ids`: why its ids are the host's; "" if they are shifted, or if host ids were requested. `why_no_seccomp`:
    why its processes have no seccomp filter; "" if they have one, or if none was requested. `limits`: those in force.
    `unlimited`: requested limits that the host cannot enforce (launch/ground/limits.py). `origin`: the capture whose
    processes were restored in it; "": it started with a new shell, or an earlier version restored it. `lowered`: what
    its processes had when they were captured and do not have here.
    """

    row: LiveRow
    boot_id: str
    init_pid: int
    init_start: int
    cgroup: str
    left_out: list[Degradation]
    why_host_ids: str = _EARLIER
    why_no_seccomp: str = _EARLIER
    limits: SessionLimits = SessionLimits()
    unlimited: list[Degradation] = msgspec.field(default_factory=list)
    origin: str = ""
    lowered: list[Degradation] = msgspec.field(default_factory=list)

    def is_alive(self) -> bool:
        """Whether the session's pid 1 still runs (a zombie does not)."""
        return self.boot_id == procfs.boot_id() and procfs.is_same(self.init_pid, self.init_start)


def save(folder: Path, record: RuntimeRecord) -> None:
    """Write the record atomically. Not synced: it is useless after a reboot."""
    files.publish(str(folder / RECORD), msgspec.json.encode(record), durable=False)


def load(folder: Path) -> RuntimeRecord | None:
    """Return the record in the runtime folder `folder`; None if there is none, or if it is damaged."""
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        found = msgspec.json.decode((folder / RECORD).read_bytes(), type=dict[str, object])
        for name in ("left_out", "unlimited", "lowered"):  # earlier versions recorded sentences
            items = found.get(name)
            if isinstance(items, list):
                found[name] = [{"code": "earlier", "detail": one} if isinstance(one, str) else one for one in items]
        return msgspec.convert(found, RuntimeRecord)
    return None


def make_folder(sessions: Path, session: str) -> Path:
    folder = sessions / session
    os.makedirs(folder, mode=0o700)
    return folder


def remove_folder(sessions: Path, session: str) -> None:
    shutil.rmtree(sessions / session, ignore_errors=True)
