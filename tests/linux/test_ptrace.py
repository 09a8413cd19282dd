"""Tracing children with ptrace(2)."""

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until
from waypoint.linux.calls import seccomp
from waypoint.linux.tasks import procfs, ptrace

FCNTL = 72  # its number on x86-64
USR1_ONLY = (1 << signal.SIGUSR1 - 1).to_bytes(8, "little")


@pytest.fixture
def child() -> Iterator[int]:
    """A child that waits for ever."""
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    yield pid
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # the child has ended, and the test has reaped it
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def blocked(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("SigBlk:")[2].split()[0], 16)


def test_the_signal_mask_and_registers_of_a_stopped_task_can_be_set(child: int) -> None:
    ptrace.seize(child)
    ptrace.interrupt(child)
    assert ptrace.wait(child) == 0
    before = ptrace.registers(child)
    ptrace.set_signal_mask(child, USR1_ONLY)
    ptrace.set_registers(child, before)
    ptrace.detach(child)
    assert blocked(child) == int.from_bytes(USR1_ONLY, "little")
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == signal.SIGTERM


def test_a_system_call_injected_into_a_stopped_task_leaves_its_state_unchanged(tmp_path: Path) -> None:
    """The task was stopped in a system call, which continues afterwards."""
    (tmp_path / "file").write_bytes(bytes(100))
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        fd = os.open(tmp_path / "file", os.O_RDWR)
        os.write(tell, bytes([fd]))
        began = time.monotonic()
        select.select([], [], [], 1.0)
        os._exit(0 if time.monotonic() - began >= 1.0 else 1)
    (fd,) = os.read(told, 1)
    ptrace.seize(pid)
    ptrace.interrupt(pid)
    ptrace.wait(pid)
    before = ptrace.registers(pid), blocked(pid)
    code = ptrace.code_place(pid)
    lock = struct.pack("<hh4xqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 10, 20, 0)
    assert ptrace.system_call(pid, code, FCNTL, fd, fcntl.F_SETLK, None, data=lock) == 0
    assert ptrace.system_call(pid, code, FCNTL, 999, fcntl.F_SETLK, None, data=lock) == -errno.EBADF
    assert (ptrace.registers(pid), blocked(pid)) == before
    with open(tmp_path / "file", "r+b") as file:
        with pytest.raises(BlockingIOError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 29)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 30)
    ptrace.detach(pid)
    assert os.waitpid(pid, 0)[1] == 0


LOCK = struct.pack("<hh4xqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)


def test_a_pending_sigstop_takes_effect_after_an_injected_system_call(child: int) -> None:
    ptrace.seize(child)
    ptrace.interrupt(child)
    ptrace.wait(child)
    os.kill(child, signal.SIGSTOP)  # not delivered yet
    for _ in range(2):
        assert (
            ptrace.system_call(child, ptrace.code_place(child), FCNTL, 999, fcntl.F_SETLK, None, data=LOCK)
            == -errno.EBADF
        )
    ptrace.detach(child)
    wait_until(lambda: procfs.stat(child).state == "T", "it is stopped")
    os.kill(child, signal.SIGCONT)
    wait_until(lambda: procfs.stat(child).state == "S", "it runs again")


@pytest.mark.parametrize("place", [8, 0xDEAD_0000_0000_0008])
def test_a_task_with_an_invalid_stack_pointer_is_left_unchanged(child: int, place: int) -> None:
    ptrace.seize(child)
    ptrace.interrupt(child)
    ptrace.wait(child)
    kept, mask = ptrace.registers(child), blocked(child)
    numbers = list(struct.unpack("<27Q", kept))
    numbers[19] = place
    ptrace.set_registers(child, struct.pack("<27Q", *numbers))
    with pytest.raises(OSError, match=r"Input/output|not point to memory"):
        ptrace.system_call(child, ptrace.code_place(child), FCNTL, 999, fcntl.F_SETLK, None, data=LOCK)
    assert (ptrace.registers(child), blocked(child)) == (struct.pack("<27Q", *numbers), mask)
    ptrace.set_registers(child, kept)


@pytest.mark.privileged
def test_the_seccomp_filter_applies_again_after_detaching() -> None:
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        kill = (seccomp.Instruction(0x06, 0, 0, 0x8000_0000),)  # SECCOMP_RET_KILL_PROCESS
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        calls = {0: seccomp.ALLOW, FCNTL: kill, FCNTL + 1: seccomp.ALLOW}
        seccomp.install(seccomp.assemble({0xC000_003E: calls}, seccomp.ALLOW))
        os.write(tell, b".")
        signal.sigwait([signal.SIGUSR1])
        fcntl.fcntl(0, fcntl.F_GETFD)
        os._exit(0)
    os.read(told, 1)
    ptrace.seize(pid, unfiltered=True)
    ptrace.interrupt(pid)
    ptrace.wait(pid)
    assert ptrace.system_call(pid, ptrace.code_place(pid), FCNTL, 999, fcntl.F_SETLK, None, data=LOCK) == -errno.EBADF
    ptrace.detach(pid)
    os.kill(pid, signal.SIGUSR1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGSYS
