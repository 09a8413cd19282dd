"""Traces a task: stops it, changes its registers and its signal mask, and lets it run a system call.

A tracer is a thread. Only the thread that has called `seize` for a task may call the other functions for that task.
When this thread ends, the kernel detaches the task. Sources: ptrace(2), linux/ptrace.h.
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
_O_TRACECLONE, _O_SUSPEND_SECCOMP = 1 << 3, 1 << 21
WALL = 0x40000000
_MASK_BYTES = 8
_REGISTERS = struct.Struct("<27Q")  # struct user_regs_struct of x86-64
REGISTERS_BYTES = _REGISTERS.size
AX, ORIG_AX, _IP, _SP = 10, 15, 16, 19
_ARGUMENTS = (14, 13, 12)  # di, si, dx: the registers of the first three arguments
_SYSCALL_CODE = b"\x0f\x05"
_EXIT = 60  # the number of _exit(2) on x86-64


def seize(tid: int, *, unfiltered: bool = False, with_threads: bool = False) -> None:
    """Become the tracer of a task, without stopping it.

    `unfiltered`: suspend the task's filters of system calls (seccomp(2)) while it is traced, if the kernel supports
    that and the caller itself has no filter. `with_threads`: also trace the threads that it makes, which are stopped
    when they begin; then a filter that cannot be suspended is an error, too. Raises PermissionError if the task is
    already traced or must not be traced, ProcessLookupError if it has ended.
    """
    if with_threads:
        libc.call("ptrace", _SEIZE, tid, 0, _O_SUSPEND_SECCOMP | _O_TRACECLONE)
        return
    if unfiltered:
        with contextlib.suppress(OSError):
            libc.call("ptrace", _SEIZE, tid, 0, _O_SUSPEND_SECCOMP)
            return
    libc.call("ptrace", _SEIZE, tid, 0, 0)


def interrupt(tid: int) -> None:
    """Make a seized task stop. Call `wait` to wait for the stop."""
    libc.call("ptrace", _INTERRUPT, tid, 0, 0)


def wait(tid: int) -> int | None:
    """Block until a seized task stops. Return the signal that is about to be delivered to the task, or 0 if there is no
    signal. Return None if the task has ended.
    """
    _, status = os.waitpid(tid, WALL)
    if not os.WIFSTOPPED(status):
        return None
    return 0 if status >> 16 else os.WSTOPSIG(status)


def detach(tid: int) -> None:
    """End the tracing of a stopped task, which then continues."""
    libc.call("ptrace", _DETACH, tid, 0, 0)


def registers(tid: int) -> bytes:
    """Return the general registers of a stopped task, as struct user_regs_struct."""
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


def system_call(tid: int, code: int, number: int, *args: int | None, data: bytes = b"") -> int:
    """Let a stopped task run one system call (x86-64 only). Afterwards the task is stopped again, with its old
    registers, signal mask and memory. A SIGSTOP that arrives during the call is sent again afterwards.

    `code`: the result of `code_place` for this task. `args`: at most three arguments. None stands for the address of
    `data`, which is on the task's stack during the call. Return the call's result, which is -errno if the call fails.
    Raises OSError, also if the task ends during the call, or its stack pointer does not point to memory.
    """
    kept, mask = registers(tid), _signal_mask(tid)
    own = list(_REGISTERS.unpack(kept))
    place = own[_SP] & ~0xF
    before = mappings.read(tid, place, len(data)) if data and place >> 63 == 0 else b""
    if len(before) < len(data):
        raise OSError(errno.EFAULT, "the task's stack pointer does not point to memory")
    own[AX], own[ORIG_AX], own[_IP] = number, -1 % (1 << 64), code
    for register, value in zip(_ARGUMENTS, args, strict=False):
        own[register] = place if value is None else value
    if data:
        mappings.write(tid, place, data)
    is_to_stop = False
    try:
        set_signal_mask(tid, _EVERY_SIGNAL)  # so that no signal handler runs during the call
        set_registers(tid, _REGISTERS.pack(*own))
        for _ in ("entry", "exit"):
            is_to_stop |= _go_to(tid, _SYSCALL, signal.SIGTRAP)
        result: int = _REGISTERS.unpack(registers(tid))[AX]
        # Leave the task in the same kind of stop as before: at such a stop, the kernel restarts an interrupted call
        # (signal(7)).
        interrupt(tid)
        is_to_stop |= _go_to(tid, _CONT, 0)
    finally:
        if data:
            mappings.write(tid, place, before)
        set_registers(tid, kept)
        set_signal_mask(tid, mask)
    if is_to_stop:
        os.kill(tid, signal.SIGSTOP)
    return result - (1 << 64) if result >> 63 else result


def _go_to(tid: int, request: int, wanted: int) -> bool:
    """Continue a stopped task, which blocks all signals, until it stops with the signal `wanted`. Return True if
    SIGSTOP, which cannot be blocked, arrived before; that signal is discarded.
    """
    is_to_stop = False
    while True:
        libc.call("ptrace", request, tid, 0, 0)
        stop = wait(tid)
        if stop is None:
            raise ProcessLookupError(errno.ESRCH, "the task has ended")
        if stop == wanted:
            return is_to_stop
        is_to_stop |= stop == signal.SIGSTOP


def _signal_mask(tid: int) -> bytes:
    buffer = ctypes.create_string_buffer(_MASK_BYTES)
    libc.call("ptrace", _GETSIGMASK, tid, _MASK_BYTES, ctypes.addressof(buffer))
    return buffer.raw


def end_thread(tid: int, code: int) -> None:
    """Let a stopped thread, which must not be the first of its process, end (x86-64 only). `code`: as for
    `system_call`.
    """
    own = list(_REGISTERS.unpack(registers(tid)))
    own[AX], own[ORIG_AX], own[_IP] = _EXIT, -1 % (1 << 64), code
    set_signal_mask(tid, _EVERY_SIGNAL)
    set_registers(tid, _REGISTERS.pack(*own))
    while True:
        libc.call("ptrace", _CONT, tid, 0, 0)
        if wait(tid) is None:
            return


def code_place(tid: int) -> int:
    """Return the address, in the task's vdso(7), of the instruction that starts a system call."""
    for mapping in mappings.read_mappings(tid):
        if mapping.path == "[vdso]":
            at = mappings.read(tid, mapping.start, mapping.end - mapping.start).find(_SYSCALL_CODE)
            if at >= 0:
                return mapping.start + at
    raise OSError(errno.ENOEXEC, "the task has no vdso with a system call instruction")
