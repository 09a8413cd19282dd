"""Killing the parts of a running Waypoint by name, and simulating a reboot."""

import contextlib
import errno
import functools
import itertools
import os
import signal
import subprocess
from pathlib import Path

from tests.homes import Home
from tests.session import ledger
from tests.waiting import wait_until
from waypoint.capture.layers.hot_memory import unmount
from waypoint.linux.tasks import cgroups

PARTS = ("daemon", "supervisor", "launcher", "criu", "client")


def kill(home: Home, parts: tuple[str, ...], command: subprocess.Popen[bytes]) -> list[str]:
    """Kill those of `parts` that run. `command`: the client. Returns the killed parts."""
    client = [command.pid] if command.poll() is None else []
    # Find all pids before the first kill, because killed processes are replaced.
    found = {part: client if part == "client" else pids(home, part) for part in parts}
    for pid in itertools.chain.from_iterable(found.values()):
        end(pid)
    return [part for part in parts if found[part]]


def reboot(home: Home, command: subprocess.Popen[bytes]) -> None:
    """Simulate a reboot of the machine for the home: end all processes of Waypoint and its sessions, and remove mounts,
    cgroups and the folder in /run. Files on disk stay.
    """
    command.kill()

    def are_gone() -> bool:
        found = [pid for part in ("daemon", "supervisor") for pid in pids(home, part)]
        for pid in found:
            end(pid)
        return not found

    wait_until(
        are_gone, "no daemon or supervisor of the home runs"
    )  # repeated, because one may just be starting the other
    wait_until(functools.partial(_has_ended, ledger.group_of(home)), "the processes of the home have ended")
    subprocess.run(["rm", "-rf", home.runtime], check=True)  # the end of the router removes its note meanwhile
    unmount(home.path / "hot/.memory")


def _has_ended(group: Path) -> bool:
    """End the group. False if a launcher, which lives a little longer than its daemon, has started a process in it."""
    try:
        cgroups.end(str(group))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def pids(home: Home, part: str) -> list[int]:
    """Return the processes of the home that are `part`, which must not be the client."""
    match part:
        case "criu":
            return ledger.criu_pids(home)
        case "supervisor":
            return _of_home(home, "daemon/supervisor.py")
        case "daemon":
            return _of_home(home, "daemon/main.py")
        case _:
            daemons = map(str, _of_home(home, "daemon/main.py"))
            return [pid for one in daemons for pid in _children(one) if "launch.launcher" in _command_line(pid)]


def _of_home(home: Home, program: str) -> list[int]:
    return [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if f"{program}\0{home.path}\0" in _command_line(int(path.name))
    ]


def _children(parent: str) -> list[int]:
    with contextlib.suppress(OSError):  # it has ended
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return []


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""
