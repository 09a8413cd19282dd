"""seccomp filters, which refuse system calls: assembling and installing them, and checking for the kernel's support.

A filter is a classic BPF program. The kernel runs it at each system call of a process and of its descendants; it cannot
be removed. The filter can read the architecture of the call, the call's number, and its arguments as numbers, but not
the memory that an argument points to. Sources: seccomp(2), linux/filter.h, linux/seccomp.h, linux/audit.h.

libseccomp is not used: every host would need a version of it that knows the newest calls. The program compares numbers
in a binary tree and does no arithmetic, so the kernel can find out at the installation which calls are always allowed,
and does not run the program for them (Linux 5.11).
"""

import ctypes
import errno
import struct
from collections.abc import Mapping
from typing import NamedTuple

from waypoint.linux.calls import libc

_SET_MODE_FILTER = 1
# Without this flag, kernels before 5.16 make the process slower, by switching off the processor's speculation.
_FLAG_SPEC_ALLOW = 1 << 2

_LOAD, _RETURN, _GO_ON, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x20, 0x06, 0x05, 0x15, 0x35, 0x45
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data
_RET_ALLOW, _RET_ERRNO = 0x7FFF0000, 0x00050000
_FAR = 255  # the most instructions that a conditional jump can skip

SKIPPED = 0xFFFFFFFF
"""The number that a tracer (ptrace) sets for a system call that the kernel must skip."""


class Instruction(NamedTuple):
    """One instruction (struct sock_filter). `then`, `otherwise`: how many instructions a conditional jump skips if the
    condition is true, or false.
    """

    code: int
    then: int
    otherwise: int
    value: int


Instructions = tuple[Instruction, ...]
"""A part of a program. Every path through it ends with a verdict on the call."""

ALLOW: Instructions = (Instruction(_RETURN, 0, 0, _RET_ALLOW),)


def refuse(number: int) -> Instructions:
    """Return instructions that make the call fail with the error `number`."""
    return (Instruction(_RETURN, 0, 0, _RET_ERRNO | number),)


def if_any_bit(argument: int, bits: int, then: Instructions, otherwise: Instructions = ALLOW) -> Instructions:
    """Return instructions that continue with `then` if one of `bits` is set in the lower 32 bits of an argument of the
    call, else with `otherwise`. `argument`: its number, counted from 0.
    """
    return (_load_argument(argument), *_choose(_IF_ANY_BIT, bits, then, otherwise))


def if_one_of(
    argument: int, values: tuple[int, ...], then: Instructions, otherwise: Instructions = ALLOW
) -> Instructions:
    """Return instructions that continue with `then` if the lower 32 bits of an argument of the call are one of
    `values`, else with `otherwise`. `argument`: its number, counted from 0. The kernel ignores the upper bits of an
    int, too.
    """
    steps = otherwise
    for value in reversed(values):
        steps = _choose(_IF_EQUAL, value, then, steps)
    return (_load_argument(argument), *steps)


def assemble(architectures: Mapping[int, Mapping[int, Instructions]], other: Instructions) -> bytes:
    """Assemble the program. `architectures`: by the number of an architecture (AUDIT_ARCH_...), the verdicts on its
    calls. Each verdict has the number of the first call to which it applies; it applies up to the number of the next
    verdict. The first number is 0. `other`: the verdict on the calls of all other architectures.
    """
    steps = other
    for number, calls in architectures.items():
        body = (Instruction(_LOAD, 0, 0, _NUMBER_AT), *_search(sorted(calls.items())))
        steps = _choose(_IF_EQUAL, number, body, steps)
    steps = (Instruction(_LOAD, 0, 0, _ARCHITECTURE_AT), *steps)
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def install(program: bytes) -> None:
    """Install the filter `program` for this thread and its later children, also after execve(2).

    The caller needs CAP_SYS_ADMIN in its user namespace, because no_new_privs is not set: with it, setuid programs
    would no longer work.
    """
    steps = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(steps))  # struct sock_fprog
    libc.syscall("seccomp", _SET_MODE_FILTER, _FLAG_SPEC_ALLOW, header)


def why_not() -> str:
    """Return the reason, as text, why no filter can be installed here; "" if it is possible. Installs nothing."""
    try:
        libc.syscall("seccomp", _SET_MODE_FILTER, _FLAG_SPEC_ALLOW, None)
    except OSError as error:
        if error.errno == errno.EFAULT:  # the kernel tried to read the program, so it supports filters
            return ""
        return f"the kernel has no filters of system calls: {error.strerror}"
    raise AssertionError("the kernel accepted a filter without a program")


def _load_argument(number: int) -> Instruction:
    """Load the argument's lower 32 bits. They come first in memory, because all supported machines are
    little-endian.
    """
    return Instruction(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * number)


def _choose(condition: int, value: int, then: Instructions, otherwise: Instructions) -> Instructions:
    if len(then) <= _FAR:
        return (Instruction(condition, 0, len(then), value), *then, *otherwise)
    return (Instruction(condition, 1, 0, value), Instruction(_GO_ON, 0, 0, len(then)), *then, *otherwise)


def _search(ranges: list[tuple[int, Instructions]]) -> Instructions:
    """Return the binary tree that finds the range in which the call's number is."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    return _choose(_IF_AT_LEAST, ranges[middle][0], _search(ranges[middle:]), _search(ranges[:middle]))
