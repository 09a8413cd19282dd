"""The parts of a running Waypoint that a test kills, by name; and the machine, of which a reboot leaves the disk."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.homes import Home
from tests.session import ledger
from tests.waiting import wait_until
from waypoint.linux.tasks import cgroups

PARTS = ("daemon", "supervisor", "launcher", "criu", "client")


def kill(home: Home, parts: tuple[str, ...], command: subprocess.Popen[bytes]) -> list[str]:
    """SIGKILL to each of `parts` that runs now. `command`: the client. Returns which of them ran."""
    client = [command.pid] if command.poll() is None else []
    # All are looked for before the first is killed.
    found = {part: client if part == "client" else pids(home, part) for part in parts}
    for pid in itertools.chain.from_iterable(found.values()):
        end(pid)
    return [part for part in parts if found[part]]


def reboot(home: Home, command: subprocess.Popen[bytes]) -> None:
    """What a reboot does to the home, but for its disk: no process of Waypoint's or of a session runs any more, all
    mounts and cgroups are gone, and so is what lay in /run.
    """
    command.kill()

    def are_gone() -> bool:
        found = [pid for part in ("daemon", "supervisor") for pid in pids(home, part)]
        for pid in found:
            end(pid)
        return not found

    wait_until(are_gone, "nothing of Waypoint's runs")  # one part may just be starting another one
    cgroups.end(str(ledger.group_of(home)))
    shutil.rmtree(home.runtime)


def end(pid: int) -> None:
    """SIGKILL to the process, if it runs."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def pids(home: Home, part: str) -> list[int]:
    """The processes of the home that are this part now. A client is known only to whoever has started it."""
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
