"""A task that is left as a dying CRIU leaves it is set back by what CRIU has noted of it."""

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.linux.conftest import group as group
from tests.waiting import DEADLINE_S
from waypoint.linux.tasks import cgroups, ptrace
from waypoint.processes.criu import remains

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.requires("root", "cgroup2"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="only tasks of x86-64 are set back"),
]

INJECTED = b"\x0f\x05" + 6 * b"\xcc" + b"CRIUMFD\0"
ALL_BUT_SIGTRAP = ((1 << 64) - 1 & ~(1 << 4)).to_bytes(8, "little")
NO_SIGNALS = bytes(8)
OF_64_BITS = b"\x0a\x00"
IP = 16 * 8
PROGRAM = "import sys; print('ready', flush=True); print(sys.stdin.readline().strip() * 2)"


@pytest.fixture
def program(group: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in the group, which reads a line."""
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        cgroups.write(group, "cgroup.procs", str(started.pid))
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        yield started
        started.kill()


def leave_as_criu_does(pid: int) -> tuple[bytes, int]:
    """Put the task where CRIU has it run a system call; it stays there, as its group is frozen. Returns CRIU's note of
    the task, amid other memory, and where the code is.
    """
    ptrace.seize(pid)
    ptrace.interrupt(pid)
    assert ptrace.wait(pid) is not None
    before = ptrace.registers(pid)
    with open(f"/proc/{pid}/maps") as file:
        start = next(int(line.split("-")[0], 16) for line in file if " r-xp " in line)
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        os.pwrite(memory.fileno(), INJECTED, start)
    ptrace.set_registers(pid, before[:IP] + start.to_bytes(8, "little") + before[IP + 8 :])
    ptrace.set_signal_mask(pid, ALL_BUT_SIGTRAP)
    ptrace.detach(pid)
    other = before[: 5 * 8] + bytes(8) + before[6 * 8 :]  # of another task, which had the same memory
    notes = [pid.to_bytes(8, "little"), bytes(64), NO_SIGNALS, before, OF_64_BITS, bytes(6)]
    return b"".join([bytes(4096), NO_SIGNALS, other, OF_64_BITS, bytes(6), *notes, bytes(4096)]), start


def code(pid: int, start: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), len(INJECTED), start)


def test_a_task_on_an_injected_system_call_goes_on_as_if_nothing_had_been(
    group: str, program: subprocess.Popen[bytes]
) -> None:
    cgroups.freeze(group)
    notes, start = leave_as_criu_does(program.pid)
    assert code(program.pid, start) == INJECTED
    assert remains.set_back(group, notes) == 1
    assert code(program.pid, start) != INJECTED
    cgroups.thaw(group)
    assert program.communicate(b"word\n", timeout=DEADLINE_S)[0] == b"wordword\n"
    assert program.returncode == 0


LOOP = """
import os, signal, socket, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
end.connect("\\0" + sys.argv[1])
pipe = socket.recv_fds(end, 1, 1)[1][0]
print("connected", flush=True)
sys.stdin.readline()
os.write(pipe, b"pages")
print("told", len(end.recv(12, socket.MSG_WAITALL)), flush=True)
"""
DYING = """
import os, socket, sys, time
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("\\0" + sys.argv[1])
listener.listen()
print("listening", flush=True)
end = listener.accept()[0]
pipe = os.pipe()
socket.send_fds(end, [b"p"], [pipe[1]])
time.sleep(1000)
"""


@pytest.mark.parametrize("is_kept", [True, False])
def test_who_writes_to_a_pipe_of_a_criu_that_has_ended_is_not_ended_by_that(group: str, *, is_kept: bool) -> None:
    name = f"waypoint-test-{os.getpid()}-{is_kept}"
    words = [sys.executable, "-I", "-S", "-c"]
    with subprocess.Popen([*words, DYING, name], stdout=subprocess.PIPE) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == b"listening\n"
        with subprocess.Popen([*words, LOOP, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as loop:
            cgroups.write(group, "cgroup.procs", str(loop.pid))
            assert loop.stdout is not None
            assert loop.stdout.readline() == b"connected\n"
            if is_kept:
                remains.keep_pipes(dying.pid, group)
            dying.kill()
            dying.wait(DEADLINE_S)
            said = loop.communicate(b"\n", timeout=DEADLINE_S)[0]
    assert (said, loop.returncode) == ((b"told 1\n", 0) if is_kept else (b"", -signal.SIGPIPE))


def test_a_task_of_which_nothing_is_noted_is_left_as_it_is(group: str, program: subprocess.Popen[bytes]) -> None:
    cgroups.freeze(group)
    notes, _ = leave_as_criu_does(program.pid)
    assert remains.set_back(group, notes.replace(program.pid.to_bytes(8, "little"), bytes(8))) == 0


def test_a_group_that_no_criu_has_touched_is_left_alone(group: str, program: subprocess.Popen[bytes]) -> None:
    cgroups.freeze(group)
    assert not remains.is_traced_by(os.getpid(), group)
    assert remains.set_back(group, b"") == 0
    cgroups.thaw(group)
    assert program.communicate(b"word\n", timeout=DEADLINE_S)[0] == b"wordword\n"
