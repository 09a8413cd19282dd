"""The runtime record of a live session: what a new daemon needs to find it again. Gone after a reboot, as the session
is.
"""

import contextlib
import os
import shutil
from pathlib import Path

import msgspec

from waypoint.linux import files, procfs
from waypoint.model.records import LiveRow

RECORD = "record.json"


class RuntimeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`init_start`: start time of pid 1 in clock ticks since boot, which tells it from a later process with its pid.

    `outside`: where it has mounts from outside, in order; the first of them are the `overlays`.
    """

    row: LiveRow
    boot_id: str
    init_pid: int
    init_start: int
    cgroup: str
    overlays: list[str]
    outside: list[str]
    proc_readonly: list[str]
    env: dict[str, str]
    nonce: str
    left_out: list[str]

    def is_alive(self) -> bool:
        """True if pid 1 of the session still runs (not as a zombie)."""
        return self.boot_id == procfs.boot_id() and procfs.is_same(self.init_pid, self.init_start)


def save(folder: Path, record: RuntimeRecord) -> None:
    """Write the record; atomic against SIGKILL. Not synced: it is of no use after a reboot."""
    files.publish(str(folder / RECORD), msgspec.json.encode(record), durable=False)


def load(folder: Path) -> RuntimeRecord | None:
    """None if there is none, or if it is not readable as one."""
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode((folder / RECORD).read_bytes(), type=RuntimeRecord)
    return None


def make_folder(sessions: Path, session: str) -> Path:
    folder = sessions / session
    os.makedirs(folder, mode=0o700)
    return folder


def remove_folder(sessions: Path, session: str) -> None:
    shutil.rmtree(sessions / session, ignore_errors=True)
