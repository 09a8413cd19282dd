"""Tracing a task: holding it where it is, changing its registers and its signal mask, having it run a system call.

A tracer is a thread: only the thread that has seized a task may use the other functions on it, and when that thread
ends, the kernel lets the task go. Sources: ptrace(2), linux/ptrace.h.
"""

import contextlib
import ctypes
import errno
import os
import signal
import struct
from typing import NamedTuple

from waypoint.linux.calls import libc
from waypoint.linux.tasks import mappings

_CONT, _DETACH, _POKEUSER, _SYSCALL = 7, 17, 6, 24
_GETREGS, _SETREGS = 12, 13
_GETEVENTMSG = 0x4201
_SEIZE, _INTERRUPT, _LISTEN = 0x4206, 0x4207, 0x4208
_GETSIGMASK, _SETSIGMASK = 0x420A, 0x420B
_EVERY_SIGNAL = b"\xff" * 8
_O_TRACEEXIT, _O_SUSPEND_SECCOMP = 0x40, 1 << 21
_WALL = 0x40000000
_EVENT_EXIT = 6
_EVENT_STOP = 128
_GROUP_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_MASK_BYTES = 8
_REGISTERS = struct.Struct("<27Q")  # struct user_regs_struct of x86-64
REGISTERS_BYTES = _REGISTERS.size
_AX, _ORIG_AX, _IP, _SP = 10, 15, 16, 19
_ARGUMENTS = (14, 13, 12)  # di, si, dx: the first three
_SYSCALL_CODE = b"\x0f\x05"
_POLL = 7  # of x86-64
_ERESTART_RESTARTBLOCK = 516  # linux/errno.h
_DEBUG_CONTROL = 848 + 7 * 8  # offsetof(struct user, u_debugreg[7]) of x86-64


class Stop(NamedTuple):
    """Why a task has stopped. `signal`: the signal that is about to be delivered, 0 if none is. `is_exit`: the task has
    begun to end. `stopped_by`: the signal by which its process is stopped, as SIGSTOP; 0 if it is not.
    """

    signal: int
    is_exit: bool
    stopped_by: int


def seize(tid: int, *, tell_exit: bool = False, unfiltered: bool = False) -> None:
    """Become the tracer of a task, which runs on. `tell_exit`: the task stops (`Stop.is_exit`) before it ends, also if
    SIGKILL ends it. `unfiltered`: no filter of system calls (seccomp(2)) holds for the task as long as it is traced, if
    the caller has none itself. Raises PermissionError if it is traced already, or may not be; ProcessLookupError if it
    is gone.
    """
    options = _O_TRACEEXIT if tell_exit else 0
    if unfiltered:
        with contextlib.suppress(OSError):  # also if the kernel knows nothing of that; then as without it
            libc.call("ptrace", _SEIZE, tid, 0, options | _O_SUSPEND_SECCOMP)
            return
    libc.call("ptrace", _SEIZE, tid, 0, options)


def interrupt(tid: int) -> None:
    """Make a seized task stop. `wait` tells when it has."""
    libc.call("ptrace", _INTERRUPT, tid, 0, 0)


def wait(tid: int) -> Stop | None:
    """Block until a seized task stops; None if it has ended."""
    _, status = os.waitpid(tid, _WALL)
    if not os.WIFSTOPPED(status):
        return None
    number, event = os.WSTOPSIG(status), status >> 16
    if event:
        is_group_stop = event == _EVENT_STOP and number in _GROUP_STOPS
        return Stop(0, event == _EVENT_EXIT, number if is_group_stop else 0)
    return Stop(number, is_exit=False, stopped_by=0)


def stop_signal(pid: int) -> int:
    """The signal by which a process is stopped, as SIGSTOP; 0 if it is not, or has ended. It stays as it is. Raises as
    `seize`.
    """
    seize(pid)
    interrupt(pid)
    stop = wait(pid)
    if stop is None:
        return 0
    detach(pid)
    return stop.stopped_by


def go_on(tid: int, stop: Stop) -> None:
    """Let a task go on from `stop` as if nobody traced it."""
    if stop.stopped_by:
        libc.call("ptrace", _LISTEN, tid, 0, 0)
    else:
        libc.call("ptrace", _CONT, tid, 0, stop.signal)


def detach(tid: int) -> None:
    """Let a stopped task go, untraced."""
    libc.call("ptrace", _DETACH, tid, 0, 0)


def exit_status(tid: int) -> int:
    """The status, as of waitpid(2), with which a task that has stopped at its exit is going to end."""
    status = ctypes.c_ulong()
    libc.call("ptrace", _GETEVENTMSG, tid, 0, ctypes.addressof(status))
    return status.value


def registers(tid: int) -> bytes:
    """The general registers of a stopped task, as struct user_regs_struct."""
    buffer = ctypes.create_string_buffer(REGISTERS_BYTES)
    libc.call("ptrace", _GETREGS, tid, 0, ctypes.addressof(buffer))
    return buffer.raw


def set_registers(tid: int, registers: bytes) -> None:
    """Set the general registers of a stopped task."""
    buffer = ctypes.create_string_buffer(registers, REGISTERS_BYTES)
    libc.call("ptrace", _SETREGS, tid, 0, ctypes.addressof(buffer))


def set_signal_mask(tid: int, mask: bytes) -> None:
    """Set which signals a stopped task blocks. `mask`: 8 bytes, bit N - 1 for signal N."""
    buffer = ctypes.create_string_buffer(mask, _MASK_BYTES)
    libc.call("ptrace", _SETSIGMASK, tid, _MASK_BYTES, ctypes.addressof(buffer))


def clear_breakpoints(tid: int) -> None:
    """Switch off all hardware breakpoints of a stopped task. x86-64 only."""
    libc.call("ptrace", _POKEUSER, tid, _DEBUG_CONTROL, 0)


def system_call(tid: int, code: int, number: int, *args: int, data: bytes) -> int:
    """Have a stopped task run one system call. x86-64 only. Afterwards the task stands still as before, with its
    registers, its signal mask and its memory; if it was to be stopped by SIGSTOP, it still is.

    `code`: `code_place` of it. `args`: the first arguments; behind them comes the address of `data`, which lies on the
    task's stack meanwhile. Returns what the call returns, which is -errno if it fails. Raises OSError, also if the task
    ends meanwhile, or its stack pointer leads to no memory.
    """
    kept, mask = registers(tid), _signal_mask(tid)
    own = list(_REGISTERS.unpack(kept))
    place = own[_SP] & ~0xF
    before = mappings.read(tid, place, len(data)) if place >> 63 == 0 else b""
    if len(before) < len(data):
        raise OSError(errno.EFAULT, "its stack pointer leads to no memory")
    own[_AX], own[_ORIG_AX], own[_IP] = number, -1 % (1 << 64), code
    for register, value in zip(_ARGUMENTS, (*args, place), strict=True):
        own[register] = value
    mappings.write(tid, place, data)
    is_to_stop = False
    try:
        set_signal_mask(tid, _EVERY_SIGNAL)  # no handler runs meanwhile
        set_registers(tid, _REGISTERS.pack(*own))
        for _ in ("entry", "exit"):
            is_to_stop |= _go_to(tid, _SYSCALL, signal.SIGTRAP)
        result: int = _REGISTERS.unpack(registers(tid))[_AX]
        # From a stop like the one before: there the kernel sees to a call that was interrupted (signal(7)).
        interrupt(tid)
        is_to_stop |= _go_to(tid, _CONT, 0)
    finally:
        mappings.write(tid, place, before)
        set_registers(tid, kept)
        set_signal_mask(tid, mask)
    if is_to_stop:
        os.kill(tid, signal.SIGSTOP)
    return result - (1 << 64) if result >> 63 else result


def _go_to(tid: int, request: int, wanted: int) -> bool:
    """Let a stopped task, which blocks all signals, go on until it stops with the signal `wanted`. Returns whether
    SIGSTOP, which cannot be blocked, came meanwhile; it is taken away.
    """
    is_to_stop = False
    while True:
        libc.call("ptrace", request, tid, 0, 0)
        stop = wait(tid)
        if stop is None:
            raise ProcessLookupError(errno.ESRCH, "it has ended")
        if stop.signal == wanted:
            return is_to_stop
        is_to_stop |= stop.signal == signal.SIGSTOP


def _signal_mask(tid: int) -> bytes:
    buffer = ctypes.create_string_buffer(_MASK_BYTES)
    libc.call("ptrace", _GETSIGMASK, tid, _MASK_BYTES, ctypes.addressof(buffer))
    return buffer.raw


def begin_poll_anew(tid: int) -> bool:
    """Have a stopped task begin its poll(2) anew when it goes on, if it was broken off in one that waits for ever; else
    do nothing. Returns whether it was. x86-64 only.

    By itself the kernel would go on with the call by what it has noted of it (restart_syscall(2)), which is lost as
    soon as a tracer has the task run another call.
    """
    own = list(_REGISTERS.unpack(registers(tid)))
    is_endless = own[_ARGUMENTS[2]] >> 31 & 1  # the third argument is an int: the timeout
    if (own[_ORIG_AX], own[_AX]) != (_POLL, -_ERESTART_RESTARTBLOCK % (1 << 64)) or not is_endless:
        return False
    own[_AX], own[_ORIG_AX] = _POLL, -1 % (1 << 64)
    own[_IP] -= len(_SYSCALL_CODE)
    set_registers(tid, _REGISTERS.pack(*own))
    return True


def code_place(tid: int) -> int:
    """Where the task's vdso(7) has the instruction that begins a system call. Raises OSError."""
    for mapping in mappings.read_mappings(tid):
        if mapping.path == "[vdso]":
            at = mappings.read(tid, mapping.start, mapping.end - mapping.start).find(_SYSCALL_CODE)
            if at >= 0:
                return mapping.start + at
    raise OSError(errno.ENOEXEC, "it has no vdso with a system call")
