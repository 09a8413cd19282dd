"""The seccomp filter, run by a small interpreter of BPF: every call on every architecture, with relevant arguments.
test_seccomp.py tests the filter in real sessions.
"""

import errno
import re
import struct
from pathlib import Path

import pytest

from waypoint.launch.walls.call_numbers import AUDIT_NUMBERS, LAST, NUMBERS, ON_MACHINE
from waypoint.launch.walls.refused import filter_program, put_up, seccomp_for
from waypoint.linux.calls import seccomp
from waypoint.linux.calls.libc import MACHINE
from waypoint.model.records import Seccomp

ALLOWED = 0
EPERM, ENOSYS, EINVAL, ENOMEM = errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.ENOMEM
EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT = errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT
CASES = [(machine, architecture) for machine, ran in ON_MACHINE.items() for architecture in ran]
KINDS: tuple[Seccomp, ...] = ("default", "userns")

HEADERS = {"aarch64": "asm-generic/unistd.h"}
if MACHINE == "x86_64":
    HEADERS |= {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "i386": "x86_64-linux-gnu/asm/unistd_32.h"}

NEWUSER, NEWNS, NEWCGROUP, NEWTIME, SIGCHLD, THREAD = 0x10000000, 0x00020000, 0x02000000, 0x80, 17, 0x003D0F00
NO_LEASES = [
    ((3, 1), ALLOWED, ALLOWED),
    ((3, 1025), ALLOWED, ALLOWED),  # F_GETLEASE
    ((3, 1024), EINVAL, EINVAL),
    ((3, 1040), EINVAL, EINVAL),
    ((3, 7 << 32 | 1024), EINVAL, EINVAL),
]
# By the name of a call: its arguments, and the results under the filters `default` and `userns`.
IN_PART: dict[str, list[tuple[tuple[int, ...], int, int]]] = {
    "clone": [
        ((SIGCHLD,), ALLOWED, ALLOWED),
        ((THREAD,), ALLOWED, ALLOWED),
        ((NEWUSER | SIGCHLD,), EPERM, ALLOWED),
        ((NEWNS | SIGCHLD,), EPERM, ALLOWED),
        ((NEWUSER | NEWCGROUP | SIGCHLD,), EPERM, EPERM),
        ((1 << 32 | SIGCHLD,), ALLOWED, ALLOWED),
    ],
    "clone3": [((0x1000, 88), ENOSYS, ENOSYS)],
    "unshare": [
        ((0x400,), ALLOWED, ALLOWED),  # CLONE_FILES
        ((NEWUSER,), EPERM, ALLOWED),
        ((NEWTIME,), EPERM, ALLOWED),
        ((NEWCGROUP,), EPERM, EPERM),
        ((NEWUSER | NEWCGROUP,), EPERM, EPERM),
    ],
    "socket": [
        ((1, 1), ALLOWED, ALLOWED),
        ((10, 1), ALLOWED, ALLOWED),
        ((16, 3), ALLOWED, ALLOWED),
        ((17, 3), ALLOWED, ALLOWED),
        ((0, 1), EAFNOSUPPORT, EAFNOSUPPORT),
        ((30, 1), EAFNOSUPPORT, EAFNOSUPPORT),  # AF_TIPC
        ((29, 3), EAFNOSUPPORT, EAFNOSUPPORT),  # AF_CAN
        ((1 << 32 | 30, 1), EAFNOSUPPORT, EAFNOSUPPORT),
        ((2, 1 | 0x80800, 6), ALLOWED, ALLOWED),
        ((2, 3, 132), EPROTONOSUPPORT, EPROTONOSUPPORT),  # SCTP
        ((10, 1, 132), EPROTONOSUPPORT, EPROTONOSUPPORT),
        ((2, 2, 115), EPROTONOSUPPORT, EPROTONOSUPPORT),  # L2TP
        ((2, 5 | 0x80000, 0), ESOCKTNOSUPPORT, ESOCKTNOSUPPORT),  # also SCTP, by its type
        ((2, 6, 0), ESOCKTNOSUPPORT, ESOCKTNOSUPPORT),  # DCCP
        ((1, 5, 0), ALLOWED, ALLOWED),
        ((38, 5), EPERM, EPERM),
        ((40, 1), EPERM, EPERM),
        ((1 << 32 | 40, 1), EPERM, EPERM),  # the kernel reads only the lower 32 bits
    ],
    "socketpair": [((1, 1), ALLOWED, ALLOWED), ((30, 1), EAFNOSUPPORT, EAFNOSUPPORT), ((40, 1), EPERM, EPERM)],
    "socketcall": [
        ((1, 0x1000), EPERM, EPERM),
        ((8, 0x1000), EPERM, EPERM),
        ((3, 0x1000), ALLOWED, ALLOWED),
    ],
    "fcntl": NO_LEASES,
    "fcntl64": NO_LEASES,
    "mmap": [((0, 4096, 3, 0x22), ALLOWED, ALLOWED), ((0, 1 << 21, 3, 0x40022), ENOMEM, ENOMEM)],
    "mmap2": [((0, 4096, 3, 0x22), ALLOWED, ALLOWED), ((0, 1 << 21, 3, 0x40022), ENOMEM, ENOMEM)],
    "memfd_create": [
        ((0x1000, 3), ALLOWED, ALLOWED),
        ((0x1000, 5), ENOMEM, ENOMEM),
        ((0x1000, 21 << 26 | 5), ENOMEM, ENOMEM),  # with a size of pages
        ((0x1000, 0xFFFFFFFF), EINVAL, EINVAL),
    ],
    "shmget": [((0, 4096, 0o1600), ALLOWED, ALLOWED), ((0, 1 << 21, 0o5600), ENOMEM, ENOMEM)],
    "ioctl": [
        ((0, 0x5401), ALLOWED, ALLOWED),
        ((0, 0x5412), EPERM, EPERM),
        ((0, 7 << 32 | 0x5412), EPERM, EPERM),
        ((0, 0x541C), EPERM, EPERM),
    ],
    "personality": [
        ((0,), ALLOWED, ALLOWED),
        ((0xFFFFFFFF,), ALLOWED, ALLOWED),
        ((0x0040000,), ALLOWED, ALLOWED),  # ADDR_NO_RANDOMIZE
        ((0x0020008,), ALLOWED, ALLOWED),
        ((0x0400000,), EPERM, EPERM),  # READ_IMPLIES_EXEC
        ((0x0100000,), EPERM, EPERM),  # MMAP_PAGE_ZERO
        ((0x0006,), EPERM, EPERM),  # another system's programs
    ],
}
OF_NAMESPACES = (
    "fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree open_tree_attr pivot_root setdomainname "
    "sethostname setns umount umount2"
)


def verdict(program: bytes, audit: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Run the filter `program`, and return ALLOWED or an errno. The program may use only the BPF instructions with
    which Linux can precompute the calls that are always allowed.
    """
    padded = (*arguments, *[0] * (6 - len(arguments)))
    fields = struct.pack("<iIQ6Q", number - (1 << 32) if number >> 31 else number, audit, 0, *padded)
    steps = [struct.unpack_from("=HBBI", program, place) for place in range(0, len(program), 8)]
    place, held = 0, 0
    while True:
        code, then, otherwise, value = steps[place]
        place += 1
        match code:
            case 0x20:
                (held,) = struct.unpack_from("<I", fields, value)
            case 0x05:
                place += value
            case 0x15:
                place += then if held == value else otherwise
            case 0x35:
                place += then if held >= value else otherwise
            case 0x45:
                place += then if held & value else otherwise
            case 0x06:
                return ALLOWED if value == 0x7FFF0000 else value & 0xFFFF
            case _:
                raise AssertionError(f"instruction {code:#x}")


@pytest.mark.parametrize(("machine", "architecture"), CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_the_list_is_refused_and_no_other(machine: str, architecture: str, kind: Seccomp) -> None:
    program, audit = filter_program(kind, machine), AUDIT_NUMBERS[architecture]
    numbers = NUMBERS[architecture]
    allowed = {*IN_PART, *(OF_NAMESPACES.split() if kind == "userns" else ())}
    refused = {number for name, number in numbers.items() if name not in allowed}
    in_part = {numbers[name] for name in IN_PART if name in numbers}
    for number in range(LAST + 1):
        if number not in in_part:
            assert verdict(program, audit, number) == (EPERM if number in refused else ALLOWED), number


@pytest.mark.parametrize(("machine", "architecture"), CASES)
@pytest.mark.parametrize(("kind", "column"), [("default", 0), ("userns", 1)])
def test_some_calls_are_refused_only_with_certain_arguments(
    machine: str, architecture: str, kind: Seccomp, column: int
) -> None:
    program, audit = filter_program(kind, machine), AUDIT_NUMBERS[architecture]
    for name, rows in IN_PART.items():
        if name not in NUMBERS[architecture]:
            assert name in ("socketcall", "fcntl64", "mmap", "mmap2")
            continue
        for arguments, *expected in rows:
            answer = verdict(program, audit, NUMBERS[architecture][name], arguments)
            assert answer == expected[column], (name, arguments)


@pytest.mark.parametrize(("machine", "architecture"), CASES)
def test_calls_that_are_newer_than_the_list_do_not_exist(machine: str, architecture: str) -> None:
    program, audit = filter_program("default", machine), AUDIT_NUMBERS[architecture]
    assert {verdict(program, audit, number) for number in (LAST + 1, 512, 547, 0x7FFFFFFF)} == {ENOSYS}
    x32 = 0x40000000
    assert {verdict(program, audit, x32 | number) for number in range(LAST + 1)} == {ENOSYS}
    assert verdict(program, audit, 0xFFFFFFFF) == ALLOWED  # a tracer has replaced the call, and sets its result


def test_private_calls_of_arm_are_allowed_on_arm_only() -> None:
    program = filter_program("default", "aarch64")
    assert verdict(program, AUDIT_NUMBERS["arm"], 0xF0002) == ALLOWED  # cacheflush
    assert verdict(program, AUDIT_NUMBERS["aarch64"], 0xF0002) == ENOSYS


@pytest.mark.parametrize("machine", ON_MACHINE)
def test_no_calls_of_another_architecture_exist(machine: str) -> None:
    for audit in {*AUDIT_NUMBERS.values(), 0x80000016} - {AUDIT_NUMBERS[one] for one in ON_MACHINE[machine]}:
        assert verdict(filter_program("userns", machine), audit, 0) == ENOSYS


def test_without_kernel_support_there_is_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "why_not", lambda: "the kernel has none")
    assert seccomp_for(["userns"]) == ("none", "the kernel has none")
    put_up("none")
    monkeypatch.setattr(seccomp, "why_not", str)
    assert (seccomp_for([]), seccomp_for(["userns"])) == (("default", ""), ("userns", ""))


@pytest.mark.requires("headers")
@pytest.mark.parametrize("architecture", HEADERS)
def test_the_call_numbers_match_the_kernel_headers(architecture: str) -> None:
    text = Path("/usr/include", HEADERS[architecture]).read_text()
    found = dict(re.findall(r"^#define\s+__NR(?:3264)?_(\w+)\s+(\d+)$", text, re.MULTILINE))
    mine = NUMBERS[architecture]
    assert {name: int(found[name]) for name in mine if name in found} == {n: mine[n] for n in mine if n in found}
    newer = {"set_mempolicy_home_node", "open_tree_attr"}  # Linux 5.17 and 6.15
    assert set(mine) - set(found) <= newer
