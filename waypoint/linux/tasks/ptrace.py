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

from waypoint.linux.calls import libc
from waypoint.linux.tasks import mappings

_CONT, _DETACH, _SYSCALL = 7, 17, 24
_GETREGS, _SETREGS = 12, 13
_SEIZE, _INTERRUPT = 0x4206, 0x4207
_GETSIGMASK, _SETSIGMASK = 0x420A, 0x420B
_EVERY_SIGNAL = b"\xff" * 8
_O_SUSPEND_SECCOMP = 1 << 21
_WALL = 0x40000000
_MASK_BYTES = 8
_REGISTERS = struct.Struct("<27Q")  # struct user_regs_struct of x86-64
REGISTERS_BYTES = _REGISTERS.size
_AX, _ORIG_AX, _IP, _SP = 10, 15, 16, 19
_ARGUMENTS = (14, 13, 12)  # di, si, dx: the first three
_SYSCALL_CODE = b"\x0f\x05"


def seize(tid: int, *, unfiltered: bool = False) -> None:
    """Become the tracer of a task, which runs on.

    `unfiltered`: while the task is traced, no filter of system calls (seccomp(2)) applies to it, if the kernel can do
    that and the caller itself has no filter. Raises PermissionError if the task is traced already or must not be
    traced, ProcessLookupError if it has ended.
    """
    if unfiltered:
        with contextlib.suppress(OSError):
            libc.call("ptrace", _SEIZE, tid, 0, _O_SUSPEND_SECCOMP)
            return
    libc.call("ptrace", _SEIZE, tid, 0, 0)


def interrupt(tid: int) -> None:
    """Make a seized task stop. `wait` tells when it has."""
    libc.call("ptrace", _INTERRUPT, tid, 0, 0)


def wait(tid: int) -> int | None:
    """Block until a seized task stops. Returns the signal that is about to be delivered to it, 0 if none is; None if
    the task has ended.
    """
    _, status = os.waitpid(tid, _WALL)
    if not os.WIFSTOPPED(status):
        return None
    return 0 if status >> 16 else os.WSTOPSIG(status)


def detach(tid: int) -> None:
    """Let a stopped task go, untraced."""
    libc.call("ptrace", _DETACH, tid, 0, 0)


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
        if stop == wanted:
            return is_to_stop
        is_to_stop |= stop == signal.SIGSTOP


def _signal_mask(tid: int) -> bytes:
    buffer = ctypes.create_string_buffer(_MASK_BYTES)
    libc.call("ptrace", _GETSIGMASK, tid, _MASK_BYTES, ctypes.addressof(buffer))
    return buffer.raw


def code_place(tid: int) -> int:
    """Where the task's vdso(7) has the instruction that begins a system call."""
    for mapping in mappings.read_mappings(tid):
        if mapping.path == "[vdso]":
            at = mappings.read(tid, mapping.start, mapping.end - mapping.start).find(_SYSCALL_CODE)
            if at >= 0:
                return mapping.start + at
    raise OSError(errno.ENOEXEC, "it has no vdso with a system call")
