"""Setting back the tasks that a killed CRIU was working on.

CRIU has a task run code of CRIU's own, in three ways (compel/src/lib/infect.c). It blocks all signals but SIGTRAP
before, and gives the task its own signal mask back when all else is as it was, so the mask shows which tasks are in
CRIU's hands.

* One system call: `syscall; int3` is written over the beginning of the task's first executable mapping.
* A loop in a mapping of CRIU's (`/memfd:CRIUMFD`), run by the first thread of a process. When CRIU is gone, the loop
  ends and sets the thread back by itself (sigreturn); its breakpoint must not stop it. If it was told to put pages
  into a pipe of CRIU's, that must still be there, or SIGPIPE ends the program afterwards.
* One function in that mapping, run by another thread, up to an `int3`.

In the first and the last case only CRIU knows the registers that the task had. They are in CRIU's memory
(`struct thread_ctx`): in front the signal mask, then the registers and a mark that tells their format. Which record is
of which task is told by the registers that never change, the bases of the segments fs and gs.

All of this is of x86-64. On other machines nothing is set back.
"""

import contextlib
import os
import re
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.calls import machine
from waypoint.linux.net import sockets
from waypoint.linux.tasks import cgroups, mappings, pidfd, procfs, ptrace
from waypoint.linux.tasks.mappings import Mapping, read_mappings
from waypoint.linux.tasks.states import TaskState, task_state

_INJECTED = b"\x0f\x05" + 6 * b"\xcc"  # syscall; int3, six times (compel/arch/x86/src/lib/infect.c)
_NAME = b"CRIUMFD\0"  # the argument of memfd_create, which CRIU writes behind the code
_PARASITE = "/memfd:CRIUMFD"
_SIGTRAP = 1 << 4
_SIGNALS_OF_CRIU = ~(1 << 4 | 1 << 8 | 1 << 18) & (1 << 64) - 1  # all but SIGTRAP, SIGKILL and SIGSTOP
_REGISTERS = struct.Struct("<27Q")
_IP, _FS_BASE, _GS_BASE = 16, 21, 22
_KEPT = slice(0, 6)  # r15 to r12, bp, bx
_CS, _SS = (number.to_bytes(8, "little") for number in (0x33, 0x2B))
_OF_64_BITS = b"\x0a\x00"  # user_regs_struct_t.__is_native
_ID_WITHIN_BYTES = 512
_MOST_MEMORY_BYTES = 64 << 20
_MOST_PIPES = 250  # the kernel takes 253 descriptors at once


class _Record(NamedTuple):
    """What CRIU has noted of a task."""

    mask: bytes
    registers: bytes


def keep_pipes(criu: int, group: str) -> None:
    """Keep the pipes by which the process `criu`, which is about to end, gets pages from the loops in the tasks of the
    cgroup2 group `group`, until each loop has done what it was told: else SIGPIPE waits for the task.

    CRIU's ends of the pipes go into the queue of the loop's own socket (SCM_RIGHTS, unix(7)). The loop reads that next,
    or finds that CRIU is gone; for a command it is too short, so the loop ends, and the queue with it
    (compel/plugins/std/infect.c, `__parasite_daemon_wait_msg`).
    """
    processes, files = set(cgroups.members(group)), procfs.open_files(criu)
    for number, target in files.items():
        if target.startswith("socket:["):
            with contextlib.suppress(OSError), sockets.take(criu, number) as end:
                if end.family == socket.AF_UNIX and (pid := _peer(end)) in processes:
                    _leave_pipes(end, pid, criu, files)


def _leave_pipes(end: socket.socket, pid: int, criu: int, files: dict[int, str]) -> None:
    """`end`: CRIU's, of the socket of the loop in process `pid`. `files`: what CRIU has open."""
    shared = set(procfs.open_files(pid).values())
    pipes = [number for number, target in files.items() if target.startswith("pipe:[") and target in shared]
    with contextlib.ExitStack() as held:
        kept = [pidfd.take(criu, number) for number in pipes[:_MOST_PIPES]]
        for fd in kept:
            held.callback(os.close, fd)
        socket.send_fds(end, [b"\0"], kept, socket.MSG_DONTWAIT)


def _peer(end: socket.socket) -> int:
    """The process that has the other end of a Unix socket, by the pid that the caller sees; 0 if there is none."""
    pid, _uid, _gid = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def is_traced_by(criu: int, group: str) -> bool:
    """Whether process `criu` traces a task of the cgroup2 group `group`."""
    return any(task.tracer == criu for _, task in _tasks(group))


def memory(criu: int) -> bytes:
    """What `set_back` needs of a CRIU that has not yet ended: the memory in which it keeps its notes."""
    parts, left = [], _MOST_MEMORY_BYTES
    for mapping in read_mappings(criu):
        size = mapping.end - mapping.start
        if mapping.rights == "rw-p" and mapping.path in ("", "[heap]") and size <= left:
            left -= size
            parts.append(mappings.read(criu, mapping.start, size))
    return b"".join(parts)


def set_back(group: str, notes: bytes) -> int:
    """Set back all tasks of the group that a CRIU had in its hands. `notes`: its `memory`. Returns how many tasks.

    CRIU must have ended, and the group must be frozen or be freezing. The caller must have one thread. A task of which
    no note is found stays as it is, and ends with SIGTRAP when it runs.
    """
    if machine.architecture() != "x86_64":
        return 0
    taken = [tid for tid, task in _tasks(group) if _is_of_criu(task.blocked)]
    processes = cgroups.members(group)
    done = sum(_set_task_back(tid, notes, is_first=tid in processes) for tid in taken)
    for pid in processes:
        with contextlib.suppress(OSError, ValueError):  # it has ended
            _set_code_back(pid)
    return done


def _set_task_back(tid: int, notes: bytes, *, is_first: bool) -> bool:
    """`is_first`: the task is the first thread of its process."""
    with contextlib.suppress(OSError):  # it has ended
        ptrace.seize(tid)
        ptrace.interrupt(tid)
        if ptrace.wait(tid) is None:
            return False
        try:
            ptrace.clear_breakpoints(tid)
            return _set_registers_back(tid, notes, is_first=is_first)
        finally:
            ptrace.detach(tid)
    return False


def _set_registers_back(tid: int, notes: bytes, *, is_first: bool) -> bool:
    now = _REGISTERS.unpack(ptrace.registers(tid))
    mapped = read_mappings(tid)
    in_parasite = any(m.start <= now[_IP] < m.end for m in mapped if m.path.startswith(_PARASITE))
    if in_parasite and is_first:
        return False  # its loop sets it back
    found = [record for record in _records(notes, tid, now) if not _is_ours(record, mapped)]
    if not in_parasite:  # a system call keeps these registers
        found = [record for record in found if _REGISTERS.unpack(record.registers)[_KEPT] == now[_KEPT]]
    if len({record.mask for record in found}) != 1:
        return False
    ptrace.set_registers(tid, found[-1].registers)
    ptrace.set_signal_mask(tid, found[-1].mask)
    return True


def _records(notes: bytes, tid: int, now: tuple[int, ...]) -> Iterator[_Record]:
    """CRIU's notes of the task `tid`, which has the registers `now`. A little before each note is the task's id."""
    bases = struct.pack("<2Q", now[_FS_BASE], now[_GS_BASE])
    pattern = re.escape(_CS) + b".{16}" + re.escape(_SS + bases) + b".{32}" + re.escape(_OF_64_BITS)
    for match in re.finditer(pattern, notes, re.DOTALL):
        start = match.start() - 17 * 8  # cs is the 18th register
        before = range(max(0, start - _ID_WITHIN_BYTES), start - 8, 8)
        if any(notes[place : place + 4] == tid.to_bytes(4, "little") for place in before):
            yield _Record(notes[start - 8 : start], notes[start : start + _REGISTERS.size])


def _is_ours(record: _Record, mapped: list[Mapping]) -> bool:
    """Whether the record is of a task that already runs CRIU's code."""
    ip = _REGISTERS.unpack(record.registers)[_IP]
    injected = _code_place(mapped)
    in_code = injected is not None and injected.start <= ip <= injected.start + len(_INJECTED)
    in_parasite = any(m.start <= ip < m.end for m in mapped if m.path.startswith(_PARASITE))
    return in_code or in_parasite or _is_of_criu(int.from_bytes(record.mask, "little"))


def _is_of_criu(mask: int) -> bool:
    """Whether CRIU has set this signal mask. A task that has come to the `int3`, and handles SIGTRAP, is about to run
    its handler, in which SIGTRAP is blocked too.
    """
    return mask | _SIGTRAP == _SIGNALS_OF_CRIU | _SIGTRAP


def _set_code_back(pid: int) -> None:
    """Write what the file says over what CRIU has written at the beginning of the process's code."""
    place = _code_place(read_mappings(pid))
    if place is None or not place.path.startswith("/"):
        return
    size = len(_INJECTED) + len(_NAME)
    now = mappings.read(pid, place.start, size)
    if now.startswith(_INJECTED) or now.endswith(_NAME):
        mappings.write(pid, place.start, mappings.read_file(pid, place, size))


def _code_place(mapped: list[Mapping]) -> Mapping | None:
    """The mapping into which CRIU writes its system calls: the first that can be executed."""
    return next((mapping for mapping in mapped if "x" in mapping.rights), None)


def _tasks(group: str) -> Iterator[tuple[int, TaskState]]:
    """The group's tasks, each with its id."""
    for tid in map(int, cgroups.read(group, "cgroup.threads").split()):
        with contextlib.suppress(ProcessLookupError):
            yield tid, task_state(tid)
