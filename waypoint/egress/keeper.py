"""The keeper of a router: a program that ends the router's pasta when no process of its home runs any more, or when the
home's folder was removed. Without it, pasta would outlive a home whose daemon and supervisor were killed.

The keeper ends together with pasta. It must stay small: nothing heavy may be imported here.
"""

import os
import select
import signal
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.linux.tasks import lock_holder, pidfd, process_groups, procfs
from waypoint.model.paths import (
    DAEMON_GROUP,
    daemon_lock_path,
    runtime_folder,
    start_lock_path,
    supervisor_lock_path,
)

NOTE = "router.json"  # in the home's runtime folder: the router's pasta
LOOK_S = 60.0
"""Seconds between two looks at the home. Until the next look, an unneeded router costs only memory."""


def note_of(pid: int, start: int, *, ipv6: bool) -> str:
    """The content of the note about a pasta. `start`: its start time in ticks. `ipv6`: whether it forwards IPv6."""
    return f'{{"pid": {pid}, "start": {start}, "ipv6": {"true" if ipv6 else "false"}}}'


def is_needed(home: str, group: str, notes: tuple[str, ...]) -> bool:
    """Whether the folder `home` exists, a supervisor, a daemon or a session of it runs, and the home has no other
    router: its note is one of `notes`, or missing. `group`: as for `runs_sessions`.
    """
    if not os.path.isdir(home) or _read(f"{runtime_folder(home)}/{NOTE}") not in ("", *notes):
        return False
    locks = (supervisor_lock_path(home), daemon_lock_path(home), start_lock_path(home))
    return any(map(lock_holder.is_held, locks)) or runs_sessions(group)


def runs_sessions(group: str) -> bool:
    """Whether a process runs in a session's cgroup. `group`: the home's cgroup, which is above those of its sessions.
    The daemon's own cgroup may be there, too; it contains the router.
    """
    if process_groups.is_one(group):
        return bool(process_groups.members(group))
    try:
        names = os.listdir(group)
    except FileNotFoundError:
        return False
    return any("populated 1" in _read(f"{group}/{name}/cgroup.events") for name in names if name != DAEMON_GROUP)


def _read(path: str) -> str:
    """The content of a file; "" if it is missing, or if its cgroup was removed."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def keep(home: str, group: str, pid: int, start: int, look_s: float = LOOK_S) -> None:
    """Wait until pasta has ended; kill it when it is not needed any more. `start`: its start time in ticks."""
    try:
        pasta = pidfd.open(pid)
    except ProcessLookupError:
        return
    ended = select.poll()
    ended.register(pasta, select.POLLIN)
    notes = tuple(note_of(pid, start, ipv6=ipv6) for ipv6 in (False, True))
    while procfs.is_same(pid, start) and not ended.poll(look_s * 1000):
        if not is_needed(home, group, notes):
            pidfd.send_signal(pasta, signal.SIGKILL)
    os.close(pasta)


def main(argv: list[str]) -> None:
    """Run the program. `argv`: the home, its cgroup, pasta's pid and start time in ticks."""
    home, group, pid, start = argv
    keep(home, group, int(pid), int(start))


if __name__ == "__main__":
    main(sys.argv[1:])
