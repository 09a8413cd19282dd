"""Sends a signal to the command that a shell runs, without ending the shell.

The shell itself may be in the terminal's foreground, for example in a loop of builtins, or for every command after
`set +m`. SIGINT then ends the list of commands that the shell runs, as ^C does. SIGKILL to the shell's process group
would end the session.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from waypoint.linux.tasks import procfs, signals
from waypoint.linux.tasks.signals import Members
from waypoint.linux.tty import terminals
from waypoint.terminal.hooks.asking import Desk

NAMES = {
    name: signal.Signals[f"SIG{name}"]
    for name in ("HUP", "INT", "QUIT", "KILL", "TERM", "USR1", "USR2", "ALRM", "CONT", "STOP", "TSTP", "WINCH")
}
# Signals that must end the whole list of commands. The shell must get a signal, too, or it would continue with the next
# command of the list.
ENDING = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)
# When one of these signals kills a job, a shell with job control continues with its list, so the shell gets SIGINT,
# too. (When SIGINT kills a job, the shell ends the list by itself.)
_WITH_SHELL = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
STOPPED_S = 0.05  # how long SIGSTOP may take to stop the shell
_LOOK_S = 0.002  # interval between two checks of the shell
_WORKS_NS = 5_000_000  # processor time: a process that has used more is working, and not about to start a program
_SETTLE_S = 1.0  # how long to wait (`settle`) until the shell cannot lose a signal
_STOP_SETTLE_S = 0.03  # the same for a signal at a timeout, which must not be late; if it is lost, another follows


class SignalQueue:
    """The signals that a client sends to its command. They are kept until the command runs, and then sent in order."""

    def __init__(self, desk: Desk, is_running: Callable[[], bool]) -> None:
        self._desk = desk
        self._is_running = is_running
        self._queue: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def put(self, number: signal.Signals) -> None:
        self._queue.put_nowait(number)

    async def run(self) -> None:
        """Send the queued signals until the command or the terminal has ended. Call this when the command runs.

        No signal is sent while the session is frozen for a capture: SIGKILL ends also a frozen process, and the capture
        would fail.
        """
        terminal, shell = self._desk.terminal, self._desk.watch.shell
        while shell is not None:
            number = await self._queue.get()
            await self._wait_moment(number, shell.pid, _SETTLE_S)
            if not self._is_running() or terminal.closed.is_set():
                return
            send(terminal.master, shell.pid, number, self._desk.watch.processes)

    async def send_now(self, number: signal.Signals) -> bool:
        """Send a signal ahead of the queue, at most `_STOP_SETTLE_S` seconds later, or when the session is no longer
        frozen for a capture. Return False if the command or the terminal has ended before. Call this when the command
        runs.
        """
        terminal, shell = self._desk.terminal, self._desk.watch.shell
        if shell is None:
            return False
        await self._wait_moment(number, shell.pid, _STOP_SETTLE_S)
        if not self._is_running() or terminal.closed.is_set():
            return False
        send(terminal.master, shell.pid, number, self._desk.watch.processes)
        return True

    async def _wait_moment(self, number: signal.Signals, shell_pid: int, settle_s: float) -> None:
        """Return when the session is not frozen for a capture, and the shell would not lose the signal."""
        terminal = self._desk.terminal
        while True:
            await terminal.moving.wait()
            if number in ENDING:
                await settle(terminal.master, shell_pid, settle_s)
            if terminal.moving.is_set():
                return


async def settle(master: int, shell_pid: int, limit_s: float) -> None:
    """Return when the shell would not lose a signal that must end its commands, or after `limit_s`.

    A shell that is about to start a program, or to wait for a program, would lose the signal: it records the signal and
    sleeps nevertheless. A child in the foreground that has not executed its program yet can lose the signal, too. So
    each of these processes must first wait in a system call, or have worked for longer than such steps take.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        deadline = time.monotonic() + limit_s
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
    """Return the processes that might lose a signal: the shell if it is in the foreground, otherwise its children in
    the foreground that still run the shell's program.
    """
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


def send(master: int, shell_pid: int, number: signal.Signals, members: Members) -> None:
    """Send signal `number` to the command in the foreground of the terminal whose master side is `master`. `shell_pid`:
    the session's shell; it also gets SIGINT if it would otherwise continue with its list of commands. `members`: the
    session's processes; no other process gets a signal. Raises no error for processes that have ended.
    """
    group = terminals.foreground_group(master)
    with contextlib.suppress(ProcessLookupError):
        shell_group = procfs.stat(shell_pid).group
        has_job = group > 1 and group != shell_group
        if has_job and number not in _WITH_SHELL:
            _send_to_job(group, number, shell_pid, members)
        elif has_job:
            with _held(shell_pid, members):
                _send_to_job(group, number, shell_pid, members)
                signals.send(shell_pid, signal.SIGINT, members)
        else:
            with _held(shell_pid, members) if number in ENDING else contextlib.nullcontext():
                for pid in list(_in_group(shell_pid, shell_group)):
                    signals.send(pid, number, members)
                if number in ENDING:
                    signals.send(shell_pid, signal.SIGINT, members)


@contextlib.contextmanager
def _held(shell_pid: int, members: Members) -> Iterator[None]:
    """Keep the shell stopped (SIGSTOP) inside the `with`, so that it notices its child's end and its own signal
    together.

    Otherwise the shell may reap the child and begin the next command of the list before its own signal arrives.
    """
    if not signals.send(shell_pid, signal.SIGSTOP, members):
        yield
        return
    try:
        deadline = time.monotonic() + STOPPED_S
        while procfs.stat(shell_pid).state != "T" and time.monotonic() < deadline:
            os.sched_yield()  # poll: SIGSTOP takes effect within microseconds, and only a parent or tracer is notified
        yield
    finally:
        signals.send(shell_pid, signal.SIGCONT, members)


def _send_to_job(group: int, number: signal.Signals, shell_pid: int, members: Members) -> None:
    """Send the signal to the foreground job. If the job has just ended, the shell is about to continue with its list of
    commands; if the signal must end the list, send SIGINT to the shell instead.
    """
    if not signals.send_to_group(group, number, members) and number in ENDING:
        signals.send(shell_pid, signal.SIGINT, members)


def _in_group(parent: int, group: int) -> Iterator[int]:
    """Yield the descendants of `parent` in process group `group`, children first. A shell without job control runs its
    commands in its own group.
    """
    for pid in procfs.children(parent):
        with contextlib.suppress(ProcessLookupError):
            if procfs.stat(pid).group == group:
                yield from _in_group(pid, group)
                yield pid
