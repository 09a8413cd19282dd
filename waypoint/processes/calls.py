"""Resuming the system calls that freezing a session interrupts.

The freezer of cgroup2 wakes every task that waits in a system call. The kernel restarts most calls at the thaw. Some
fail with EINTR instead (signal(7)), and some are continued by restart_syscall(2), which no later image can continue.
`resume` makes the kernel restart such a call with its own number and arguments, if that means the same: the call has no
timeout, or an absolute one, or the kernel has written the remaining time over the request. If a signal handler runs at
the thaw, the call still fails with EINTR. Calls with another timeout fail as before.

CRIU does the same for the tasks that it dumps (criu/patches/10-exact-again.patch), so `resume` is for a session that is
thawed without a complete dump. x86-64 only.
"""

import contextlib
import errno
import struct
from collections.abc import Callable

from waypoint.linux.calls import machine
from waypoint.linux.tasks import cgroups, ptrace
from waypoint.linux.tasks.states import system_call, task_state

_RESTART = -514  # ERESTARTNOHAND of linux/errno.h: restart the call unless a handler runs
_INTERRUPTED = (-errno.EINTR, -516)  # ERESTART_RESTARTBLOCK
_TIMER_ABSTIME, _FUTEX_COMMAND, _FUTEX_WAIT_BITSET, _EXT_ARG = 1, 127, 9, 8


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
    tids: list[str] = []
    if machine.architecture() == "x86_64":
        with contextlib.suppress(OSError):
            tids = cgroups.read(cgroup, "cgroup.threads").split()
    for tid in map(int, tids):
        with contextlib.suppress(OSError, ValueError):
            number, *rest = system_call(tid)
            if number in _RESTARTABLE and _RESTARTABLE[number](rest) and task_state(tid).state != "T":
                _restart(tid, number)


def _restart(tid: int, number: int) -> None:
    ptrace.seize(tid)
    ptrace.interrupt(tid)
    if ptrace.wait(tid) is None:
        return
    try:
        registers = list(struct.unpack(f"<{ptrace.REGISTERS_BYTES // 8}q", ptrace.registers(tid)))
        if registers[ptrace.ORIG_AX] == number and registers[ptrace.AX] in _INTERRUPTED:
            registers[ptrace.AX] = _RESTART
            ptrace.set_registers(tid, struct.pack(f"<{len(registers)}q", *registers))
    finally:
        ptrace.detach(tid)
