"""Filters of system calls: an assembler for them, their installation, and whether the kernel takes them.

A filter is a program of the classic BPF machine, which the kernel runs at each system call of a process and of its
descendants; nobody can take it away again. It sees the architecture by which the call was made, the call's number
and its arguments as numbers, never what a pointer points to. Sources: seccomp(2), linux/filter.h, linux/seccomp.h,
linux/audit.h.

Written here in some sixty lines, because libseccomp would have to be on every host, in a version that knows the newest
calls. The program compares numbers in a binary tree and does no arithmetic, so the kernel finds out when it takes the
program which calls are always allowed, and runs the program for none of them (Linux 5.11).
"""

import ctypes
import errno
import struct
from collections.abc import Mapping
from typing import NamedTuple

from waypoint.linux.calls import libc

_SET_MODE_FILTER = 1
# Without this flag the kernels before 5.16 switch the processor's speculation off for the process: it gets slower.
_FLAG_SPEC_ALLOW = 1 << 2

_LOAD, _RETURN, _GO_ON, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x20, 0x06, 0x05, 0x15, 0x35, 0x45
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data
_RET_ALLOW, _RET_ERRNO = 0x7FFF0000, 0x00050000
_FAR = 255  # a conditional jump goes no further

SKIPPED = 0xFFFFFFFF
"""The number that a tracer gives a system call which the kernel shall not carry out."""


class Instruction(NamedTuple):
    """One instruction (struct sock_filter): `then`, `otherwise`: how many instructions a condition skips."""

    code: int
    then: int
    otherwise: int
    value: int


Instructions = tuple[Instruction, ...]
"""A piece of a program that ends with a verdict whichever way it takes."""

ALLOW: Instructions = (Instruction(_RETURN, 0, 0, _RET_ALLOW),)


def refuse(number: int) -> Instructions:
    """Let the call fail with the error `number`."""
    return (Instruction(_RETURN, 0, 0, _RET_ERRNO | number),)


def if_any_bit(argument: int, bits: int, then: Instructions, otherwise: Instructions = ALLOW) -> Instructions:
    """`then`, if one of `bits` is set in the lower half of the call's argument number `argument`, counted from 0."""
    return (_load_argument(argument), *_choose(_IF_ANY_BIT, bits, then, otherwise))


def if_one_of(
    argument: int, values: tuple[int, ...], then: Instructions, otherwise: Instructions = ALLOW
) -> Instructions:
    """`then`, if the lower half of the call's argument number `argument`, counted from 0, is one of `values`. The
    kernel itself looks at no more of an argument of the type int.
    """
    steps = otherwise
    for value in reversed(values):
        steps = _choose(_IF_EQUAL, value, then, steps)
    return (_load_argument(argument), *steps)


def assemble(architectures: Mapping[int, Mapping[int, Instructions]], other: Instructions) -> bytes:
    """The program. `architectures`: by the number of the architecture (AUDIT_ARCH_...) what becomes of its calls from
    the given number on, up to the next number that is given; the first is 0. `other`: what becomes of the calls of any
    other architecture.
    """
    steps = other
    for number, calls in architectures.items():
        body = (Instruction(_LOAD, 0, 0, _NUMBER_AT), *_search(sorted(calls.items())))
        steps = _choose(_IF_EQUAL, number, body, steps)
    steps = (Instruction(_LOAD, 0, 0, _ARCHITECTURE_AT), *steps)
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def install(program: bytes) -> None:
    """Have `program` decide on all system calls of this thread, and of what it becomes and creates, from now on.

    The caller needs CAP_SYS_ADMIN in its user namespace: without no_new_privs, programs that are setuid go on working.
    """
    steps = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(steps))  # struct sock_fprog
    libc.syscall("seccomp", _SET_MODE_FILTER, _FLAG_SPEC_ALLOW, header)


def why_not() -> str:
    """In words, why a filter cannot be installed here; "" if it can be. Installs nothing."""
    try:
        libc.syscall("seccomp", _SET_MODE_FILTER, _FLAG_SPEC_ALLOW, None)
    except OSError as error:
        if error.errno == errno.EFAULT:  # the kernel looked for the program
            return ""
        return f"the kernel has no filters of system calls: {error.strerror}"
    raise AssertionError("a filter without a program was taken")


def _load_argument(number: int) -> Instruction:
    """Load the argument's lower half, which comes first: all architectures here are little-endian."""
    return Instruction(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * number)


def _choose(condition: int, value: int, then: Instructions, otherwise: Instructions) -> Instructions:
    if len(then) <= _FAR:
        return (Instruction(condition, 0, len(then), value), *then, *otherwise)
    return (Instruction(condition, 1, 0, value), Instruction(_GO_ON, 0, 0, len(then)), *then, *otherwise)


def _search(ranges: list[tuple[int, Instructions]]) -> Instructions:
    """A binary tree that finds the range of the call's number."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    return _choose(_IF_AT_LEAST, ranges[middle][0], _search(ranges[middle:]), _search(ranges[:middle]))
