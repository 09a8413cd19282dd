"""Stopping the command that a shell runs, without hurting the shell.

The shell may itself be in the foreground (a loop of builtins; everything with `set +m`). SIGINT then ends the list it
works on, as ^C does; SIGKILL to its group would end the session.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from waypoint.linux import procfs, terminals
from waypoint.session.exec.asking import Desk

NAMES = {
    name: signal.Signals[f"SIG{name}"]
    for name in ("HUP", "INT", "QUIT", "KILL", "TERM", "USR1", "USR2", "ALRM", "CONT", "STOP", "TSTP", "WINCH")
}
# What ends a list of commands: the shell itself must hear of it too, or it goes on with the next one.
_ENDING = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)
# Of these a shell with job control thinks that only the job was meant; after a SIGINT it ends the list by itself.
_WITH_SHELL = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
STOPPED_S = 0.05
_LOOK_S = 0.002
_WORKS_NS = 5_000_000
_SETTLE_S = 1.0


class SignalQueue:
    """What a client sends to its command: kept until that runs, and passed on in order as long as it does."""

    def __init__(self, desk: Desk, is_running: Callable[[], bool]) -> None:
        self._desk = desk
        self._is_running = is_running
        self._queue: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def put(self, number: signal.Signals) -> None:
        self._queue.put_nowait(number)

    async def run(self) -> None:
        """Pass on what comes, until cancelled. To be called once the command has begun."""
        terminal, shell = self._desk.terminal, self._desk.watch.shell
        while shell is not None:
            number = await self._queue.get()
            if number in _ENDING:
                await settle(terminal.master, shell.pid)
            if not self._is_running() or terminal.closed.is_set():
                return
            send(terminal.master, shell.pid, number)


async def settle(master: int, shell_pid: int) -> None:
    """Before a signal that ends things: return when it cannot fall between two chairs.

    A shell that is about to start a program, or to wait for one, loses it: it notes the signal, and then sleeps. So it
    is let come to rest; or to work, for longer than such steps take. So is a child of it in the foreground that has not
    executed its program yet, and notes a signal as the shell does.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        deadline = time.monotonic() + _SETTLE_S
        begun: dict[int, int] = {}
        before: dict[int, int] = {}
        while time.monotonic() < deadline:
            now = {pid: procfs.processor_ns(pid) for pid in _undecided(master, shell_pid)}
            begun = {pid: begun.get(pid, now[pid] if pid == shell_pid else 0) for pid in now}
            if all(now[pid] - begun[pid] > _WORKS_NS or _rests(pid, now[pid], before.get(pid)) for pid in now):
                return
            before = now
            await asyncio.sleep(_LOOK_S)


def _undecided(master: int, shell_pid: int) -> list[int]:
    """The shell, if it is in the foreground; else its children there that still run the shell's program."""
    group = terminals.foreground_group(master)
    if group == procfs.stat(shell_pid).group:
        return [shell_pid]
    program = procfs.executable(shell_pid)
    found = []
    for pid in procfs.children(shell_pid):
        with contextlib.suppress(ProcessLookupError):
            if procfs.stat(pid).group == group and procfs.executable(pid) == program:
                found.append(pid)
    return found


def _rests(pid: int, now_ns: int, before_ns: int | None) -> bool:
    return now_ns == before_ns and procfs.system_call(pid) is not None


def send(master: int, shell_pid: int, number: signal.Signals) -> None:
    """Send `number` to what runs in the foreground of `shell_pid`'s terminal."""
    group = terminals.foreground_group(master)
    with contextlib.suppress(ProcessLookupError):
        shell_group = procfs.stat(shell_pid).group
        has_job = group > 1 and group != shell_group
        if has_job and number not in _WITH_SHELL:
            _send_to_job(group, number, shell_pid)
        elif has_job:
            with _held(shell_pid):
                _send_to_job(group, number, shell_pid)
                os.kill(shell_pid, signal.SIGINT)
        else:
            with _held(shell_pid) if number in _ENDING else contextlib.nullcontext():
                for pid in list(_in_group(shell_pid, shell_group)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                if number in _ENDING:
                    os.kill(shell_pid, signal.SIGINT)


@contextlib.contextmanager
def _held(shell_pid: int) -> Iterator[None]:
    """Keep the shell stopped for the `with`, so that it finds what is sent to its child and to itself at once.

    Otherwise it may reap the child and begin the next command of the list before its own signal comes.
    """
    os.kill(shell_pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + STOPPED_S
        while procfs.stat(shell_pid).state != "T" and time.monotonic() < deadline:
            os.sched_yield()  # SIGSTOP takes effect within microseconds; nothing tells a stranger of it
        yield
    finally:
        os.kill(shell_pid, signal.SIGCONT)


def _send_to_job(group: int, number: signal.Signals, shell_pid: int) -> None:
    """To the foreground job; to the shell instead if the job has just ended and the shell is about to take over."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        if number in _ENDING:
            os.kill(shell_pid, signal.SIGINT)


def _in_group(parent: int, group: int) -> Iterator[int]:
    """The descendants of `parent` that share its group: what a shell runs without job control."""
    for pid in procfs.children(parent):
        with contextlib.suppress(ProcessLookupError):
            if procfs.stat(pid).group == group:
                yield from _in_group(pid, group)
                yield pid
