"""The parts of a running Waypoint that a test kills, by name; and the machine, of which a reboot leaves the disk."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from tests.homes import Home
from tests.processes_now import runs
from tests.session import ledger
from tests.waiting import wait_until
from waypoint.linux.tasks import cgroups
from waypoint.model.paths import hot_memory_path

PARTS = ("daemon", "supervisor", "launcher", "criu", "client")
STATUS_BY_CRIU = {128 + signal.SIGTRAP}
"""As its shell sees it, the exit status of a program that runs CRIU's code in the moment in which that CRIU is killed.
Such a program may end (docs/criu.md, "When CRIU is killed").
"""


def most_harmed(killed: int) -> int:
    """Of so many sessions whose CRIU was killed. 5 % were measured on a busy machine (docs/criu.md), of which 1 of 12
    would be exceeded by chance in one of sixteen runs; 53 % without the guard.
    """
    return 1 + killed // 8


def kill(home: Home, parts: tuple[str, ...], command: subprocess.Popen[bytes]) -> list[str]:
    """SIGKILL to each of `parts` that runs now. `command`: the client. Returns which of them ran."""
    client = [command.pid] if command.poll() is None else []
    # All are looked for before the first is killed.
    found = {part: client if part == "client" else pids(home, part) for part in parts}
    for pid in itertools.chain.from_iterable(found.values()):
        end(pid)
    return [part for part in parts if found[part]]


def reboot(home: Home, command: subprocess.Popen[bytes]) -> set[str]:
    """What a reboot without notice does to the home, but for its disk: no process of Waypoint's or of a session runs
    any more, all mounts and cgroups are gone, and so is what lay in /run and in memory. Returns the captures that had
    their images in memory alone.
    """
    command.kill()
    stopped: set[int] = set()

    def are_stopped() -> bool:
        new = set(_all_of(home)) - stopped
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped.update(new)
        return not new

    wait_until(are_stopped, "nothing of Waypoint's runs")  # killed one by one, they would start each other again
    for pid in stopped:
        end(pid)
    # The launcher is in groups of version 1 hierarchies, which can be removed when it is gone.
    wait_until(lambda: not any(map(runs, stopped)), "they have ended")
    cgroups.end(str(ledger.group_of(home)))
    shutil.rmtree(home.runtime)
    memory, note = Path(hot_memory_path(str(home.path))), home.path / "machine.json"
    born = {path.name for path in memory.glob("*")}
    shutil.rmtree(memory, ignore_errors=True)  # there is none if no image was ever in memory
    with contextlib.suppress(OSError):  # on a disk that has failed it says what it said
        note.write_text(re.sub('"boot":"[^"]*"', '"boot":"the one before"', note.read_text()))
    return {one for one in born if not (home.path / "hot" / one / "images").exists()}


def end(pid: int) -> None:
    """SIGKILL to the process, if it runs."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def pids(home: Home, part: str) -> list[int]:
    """The processes of the home that are this part now, one of PARTS or `store`: the program that works on the store.
    A client is known only to whoever has started it.
    """
    match part:
        case "criu":
            return ledger.criu_pids(home)
        case "supervisor":
            return _of_home(home, "daemon/supervisor.py")
        case "daemon":
            return _of_home(home, "daemon/main.py")
        case _:
            words = {"launcher": "launch.launcher", "store": "storing/store_program.py"}[part]
            daemons = map(str, _of_home(home, "daemon/main.py"))
            return [pid for one in daemons for pid in _children(one) if words in _command_line(pid)]


def only_pid(home: Home, part: str) -> int:
    """The process of the home that is this part, once there is one only: what it has forked looks like it until that
    runs another program. Raises AssertionError after DEADLINE_S.
    """
    found: list[int] = []

    def is_one() -> bool:
        found[:] = pids(home, part)
        return len(found) == 1

    wait_until(is_one, f"there is one {part}")
    return found[0]


def _all_of(home: Home) -> list[int]:
    """Daemons, supervisors and launchers, also those whose daemon is dead, with what they have forked for a request."""
    found = [*pids(home, "daemon"), *pids(home, "supervisor")]
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if "launch.launcher" in _command_line(int(path.name)):
                log = os.readlink(path / "fd/2")
                found += [int(path.name)] if log.startswith(f"{home.path}/daemon.log") else []
    return found


def _of_home(home: Home, program: str) -> list[int]:
    return [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if f"{program}\0{home.path}\0" in _command_line(int(path.name))
    ]


def _children(parent: str) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{parent}/task").glob("*/children"):  # each thread has its own
        with contextlib.suppress(OSError):  # it has ended
            found += map(int, path.read_text().split())
    return found


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""
