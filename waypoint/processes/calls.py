"""Resuming the system calls that freezing a session interrupts.

The freezer of cgroup2 wakes every task that waits in a system call. The kernel restarts most calls at the thaw. Some
fail with EINTR instead (signal(7)), and some are continued by restart_syscall(2), which no later image can continue.
`resume` makes the kernel restart such a call with its own number and arguments, if that means the same: the call has no
timeout, or an absolute one, or the kernel has written the remaining time over the request. If a signal handler runs at
the thaw, the call still fails with EINTR. Calls with another timeout fail as before.

CRIU does the same for the tasks that it dumps (criu/patches/10-exact-again.patch), so `resume` is for a session that is
thawed without a complete dump.

A write of more than fits into a pipe ends early at the freeze and returns the size of the part that was written.
`finish_writes` enlarges the pipe, writes the rest for the task, and changes the result in the task's registers. It
writes only memory that is sure to be there (`mappings.is_present`), because a read of other memory could wait for a
process of the frozen session.

x86-64 only.
"""

import contextlib
import errno
import os
import select
import struct
from collections.abc import Callable, Iterable, Iterator

from waypoint.linux.calls import machine
from waypoint.linux.tasks import cgroups, mappings, pipes, procfs, ptrace
from waypoint.linux.tasks.states import system_call, task_state

_RESTART = -514  # ERESTARTNOHAND of linux/errno.h: restart the call unless a handler runs
_INTERRUPTED = (-errno.EINTR, -516)  # ERESTART_RESTARTBLOCK
_REGISTERS = struct.Struct(f"<{ptrace.REGISTERS_BYTES // 8}q")
_STATUS_BYTES = 1 << 20
_TIMER_ABSTIME, _FUTEX_COMMAND, _FUTEX_WAIT_BITSET, _EXT_ARG = 1, 127, 9, 8

_WRITE = 1
_MOST_PIPE_BYTES = 1 << 20  # the default of /proc/sys/fs/pipe-max-size
_MOST_BYTES = 4 << 20  # that one pause writes for its tasks

_Call = tuple[int, int, list[int]]
"""A task that is in a system call, the number of the call, and its six arguments."""


def _is_negative(value: int) -> bool:
    return bool(value & 1 << 31)


_RESTARTABLE: dict[int, Callable[[list[int]], bool]] = {
    7: lambda args: _is_negative(args[2]),  # poll
    35: lambda args: bool(args[0]) and args[0] == args[1],  # nanosleep
    65: lambda args: True,  # semop
    128: lambda args: not args[2],  # rt_sigtimedwait
    202: lambda args: args[1] & _FUTEX_COMMAND == _FUTEX_WAIT_BITSET,
    208: lambda args: not args[4],  # io_getevents
    220: lambda args: not args[3],  # semtimedop
    230: lambda args: bool(args[1] & _TIMER_ABSTIME) or (bool(args[2]) and args[2] == args[3]),  # clock_nanosleep
    232: lambda args: _is_negative(args[3]),  # epoll_wait
    281: lambda args: _is_negative(args[3]),  # epoll_pwait
    285: lambda args: args[1] in (0, 1),  # fallocate: a file in memory is as before
    426: lambda args: not args[3] & _EXT_ARG,  # io_uring_enter
    441: lambda args: not args[3],  # epoll_pwait2
}
"""By number of a system call on x86-64: whether a call with these six arguments can be restarted."""


def resume(cgroup: str) -> None:
    """Let the interrupted calls of a frozen group go on at its thaw. Reads one file of /proc for each thread. A task
    that is stopped, or that cannot be traced, keeps its EINTR. Never raises OSError.
    """
    tids: list[int] = []
    with contextlib.suppress(OSError):
        tids = [int(tid) for tid in cgroups.read(cgroup, "cgroup.threads").split()]
    calls = [*_calls(tids)]
    _finish_writes(calls)
    for tid, number, args in calls:
        with contextlib.suppress(OSError):
            if number in _RESTARTABLE and _RESTARTABLE[number](args) and task_state(tid).state != "T":
                _restart(tid, number)


def finish_writes(tids: Iterable[int]) -> bool:
    """Finish the writes to pipes that the freeze has interrupted, for frozen tasks. Reads one file of /proc for each
    task. Return True if tasks were stopped for that: they may still be about to sleep again.

    A write stays short if a signal waits for the task, the descriptor does not block, the pipe is a named one or cannot
    be enlarged enough, or the memory is not the task's own. Never raises OSError.
    """
    return _finish_writes(_calls(tids))


def _finish_writes(calls: Iterable[_Call]) -> bool:
    budget = _MOST_BYTES
    has_stopped = False
    for tid, number, (fd, start, size, *_) in calls:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if number == _WRITE and size > select.PIPE_BUF and _is_finishable(tid, fd):
                has_stopped = True
                budget -= _finish_write(tid, fd, start, size, budget)
    return has_stopped


def _calls(tids: Iterable[int]) -> Iterator[_Call]:
    if machine.architecture() != "x86_64":
        return
    for tid in tids:
        with contextlib.suppress(OSError, ValueError):
            number, *args = system_call(tid)
            if args:
                yield tid, number, args


@contextlib.contextmanager
def _stopped(tid: int) -> Iterator[list[int]]:
    """Stop a frozen task meanwhile. Yields its registers. Raises OSError if that is not possible."""
    ptrace.seize(tid)
    ptrace.interrupt(tid)
    if ptrace.wait(tid) is None:
        raise ProcessLookupError(errno.ESRCH, "the task has ended")
    try:
        yield list(_REGISTERS.unpack(ptrace.registers(tid)))
    finally:
        ptrace.detach(tid)


def _restart(tid: int, number: int) -> None:
    with _stopped(tid) as registers:
        if registers[ptrace.ORIG_AX] == number and registers[ptrace.AX] in _INTERRUPTED:
            registers[ptrace.AX] = _RESTART
            ptrace.set_registers(tid, _REGISTERS.pack(*registers))


def _is_finishable(tid: int, fd: int) -> bool:
    """Whether only the freeze can have made a write by the task end early."""
    if not procfs.open_path(tid, fd).startswith("pipe:["):
        return False
    _, flags = procfs.position(tid, fd)
    status = procfs.raw(tid, "status", _STATUS_BYTES)
    fields = dict(line.split(b":\t", 1) for line in status.splitlines() if b":\t" in line)
    waiting, waiting_for_all, blocked = (int(fields[name], 16) for name in (b"SigPnd", b"ShdPnd", b"SigBlk"))
    is_signalled = (waiting | waiting_for_all) & ~blocked
    return not flags & (os.O_NONBLOCK | os.O_DIRECT) and not is_signalled and fields[b"State"][:1] != b"T"


def _finish_write(tid: int, fd: int, start: int, size: int, most: int) -> int:
    """Write the rest of a write, if it has at most `most` bytes. Return the number of bytes."""
    with _stopped(tid) as registers:
        done = registers[ptrace.AX]
        rest = size - done
        if registers[ptrace.ORIG_AX] != _WRITE or done <= 0 or not 0 < rest <= most:
            return 0
        if not mappings.is_present(tid, start + done, rest):
            return 0
        content = mappings.read(tid, start + done, rest)
        written = pipes.write_more(tid, fd, content, _MOST_PIPE_BYTES)
        registers[ptrace.AX] += written
        ptrace.set_registers(tid, _REGISTERS.pack(*registers))
        return written
