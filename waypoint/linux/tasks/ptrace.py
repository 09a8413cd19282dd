"""Tracing a task: holding it where it is, and changing its registers and its signal mask.

A tracer is a thread: only the thread that has seized a task may use the other functions on it, and when that thread
ends, the kernel lets the task go. Sources: ptrace(2), linux/ptrace.h.
"""

import ctypes
import os
import signal
from typing import NamedTuple

from waypoint.linux.calls import libc

_CONT, _DETACH, _POKEUSER = 7, 17, 6
_GETREGS, _SETREGS = 12, 13
_GETEVENTMSG = 0x4201
_SEIZE, _INTERRUPT, _LISTEN = 0x4206, 0x4207, 0x4208
_SETSIGMASK = 0x420B
_O_TRACEEXIT = 0x40
_WALL = 0x40000000
_EVENT_EXIT = 6
_EVENT_STOP = 128
_GROUP_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_MASK_BYTES = 8
REGISTERS_BYTES = 27 * 8  # struct user_regs_struct of x86-64
_DEBUG_CONTROL = 848 + 7 * 8  # offsetof(struct user, u_debugreg[7]) of x86-64


class Stop(NamedTuple):
    """Why a task has stopped. `signal`: the signal that is about to be delivered, 0 if none is. `is_exit`: the task has
    begun to end. `is_group_stop`: its process is stopped, as by SIGSTOP.
    """

    signal: int
    is_exit: bool
    is_group_stop: bool


def seize(tid: int, *, tell_exit: bool = False) -> None:
    """Become the tracer of a task, which runs on. `tell_exit`: the task stops (`Stop.is_exit`) before it ends, also if
    SIGKILL ends it. Raises PermissionError if it is traced already, or may not be; ProcessLookupError if it is gone.
    """
    libc.call("ptrace", _SEIZE, tid, 0, _O_TRACEEXIT if tell_exit else 0)


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
        return Stop(0, event == _EVENT_EXIT, event == _EVENT_STOP and number in _GROUP_STOPS)
    return Stop(number, is_exit=False, is_group_stop=False)


def go_on(tid: int, stop: Stop) -> None:
    """Let a task go on from `stop` as if nobody traced it."""
    if stop.is_group_stop:
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
