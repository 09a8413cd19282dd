"""Describes a hang: the processes of a home, where each of them waits, and the end of the daemon's log."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import holds_within

STACK_S = 2.0
_LOG_LINES = 120
_STACK_BEGINS = "most recent call first"


def describe(home: Path) -> str:
    """List all processes of `home` with the kernel stacks of their threads, then the end of the daemon's log.

    The daemon is first asked to write its Python stacks to the log.
    """
    processes = sorted(_processes(home))
    lines = [line for pid in processes for line in _about(pid)]
    log = home / "daemon.log"
    with contextlib.suppress(OSError):
        for pid in processes:
            if b"daemon/main.py" in (Path("/proc") / str(pid) / "cmdline").read_bytes():
                _ask_for_stacks(pid, log)
        lines += [f"the end of {log}:", *log.read_text(errors="replace").splitlines()[-_LOG_LINES:]]
    return "\n".join(lines)


def _processes(home: Path) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            is_named = os.fsencode(home) in (folder / "cmdline").read_bytes().split(b"\0")
            if is_named or b"WAYPOINT_HOME=%s" % os.fsencode(home) in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


def _about(pid: int) -> Iterator[str]:
    folder = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):  # it ended while we looked
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        parent, state = (folder / "stat").read_text().rpartition(") ")[2].split()[1::-1]
        yield f"pid {pid}, child of {parent}, state {state}: {command}"
        for thread in (folder / "task").iterdir():
            places = [line.partition("] ")[2] for line in (thread / "stack").read_text().splitlines()]
            yield f"    thread {thread.name}: {' < '.join(places[:6])}"


def _ask_for_stacks(daemon: int, log: Path) -> None:
    before = log.read_text(errors="replace").count(_STACK_BEGINS)
    os.kill(daemon, signal.SIGUSR1)
    seen = -1

    def is_whole() -> bool:
        nonlocal seen
        last, seen = seen, log.stat().st_size
        return seen == last and log.read_text(errors="replace").count(_STACK_BEGINS) > before

    holds_within(STACK_S, is_whole)
