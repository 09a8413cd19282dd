"""Processes and their settings."""

import ctypes
import os
import resource
import signal
import struct
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from tests.differences.objects import LIBC, attempt, call, child, in_child, kept, prctl


@kept
def affinity() -> Generator[None, None, Any]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    yield
    return sorted(os.sched_getaffinity(0))


@kept
def thread_settings() -> Generator[None, None, Any]:
    """Affinity, I/O class, nice value and timer slack of a thread that is not the first."""
    go, found = threading.Event(), []

    def run() -> None:
        tid = threading.get_native_id()
        os.sched_setaffinity(tid, {max(os.sched_getaffinity(0))})
        LIBC.syscall(251, 1, tid, 3 << 13)
        os.setpriority(os.PRIO_PROCESS, tid, 9)
        prctl(29, 777_000)
        go.wait()
        found.extend([sorted(os.sched_getaffinity(tid)), LIBC.syscall(252, 1, tid), prctl(30)])
        found.append(os.getpriority(os.PRIO_PROCESS, tid))

    thread = threading.Thread(target=run)
    thread.start()
    yield
    go.set()
    thread.join()
    return [*found, prctl(30)]


@kept
def io_class() -> Generator[None, None, Any]:
    LIBC.syscall(251, 1, 0, 2 << 13 | 6)
    yield
    return LIBC.syscall(252, 1, 0)


@kept
def personality() -> Generator[None, None, Any]:
    LIBC.personality(0x0040000)
    yield
    return LIBC.personality(0xFFFFFFFF)


@kept
def core_dump_filter() -> Generator[None, None, Any]:
    Path("/proc/self/coredump_filter").write_text("5")
    yield
    return Path("/proc/self/coredump_filter").read_text()


@kept
def timer_slack() -> Generator[None, None, Any]:
    prctl(29, 123_456)
    yield
    return prctl(30)


@kept
def limits() -> Generator[None, None, Any]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (99, 333))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    yield
    return resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE)


def limited(kind: int, limit: Callable[[], int]) -> Generator[None, None, Any]:
    """A child that has reached a soft limit, to which it lowers it once it has all that it needs."""
    (asked, ask), (answer, answered) = os.pipe(), os.pipe()
    hard = resource.getrlimit(kind)[1]

    def work() -> None:
        resource.setrlimit(kind, (limit(), hard))
        os.write(answered, b".")
        os.read(asked, 1)
        os.write(answered, b"kept" if resource.getrlimit(kind) == (limit(), hard) else b"changed")

    child(work)
    os.read(answer, 1)
    yield
    os.write(ask, b"?")
    return os.read(answer, 9)


@kept
def all_memory_used() -> Generator[None, None, Any]:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return (yield from limited(resource.RLIMIT_AS, lambda: size))


@kept
def all_descriptors_used() -> Generator[None, None, Any]:
    return (yield from limited(resource.RLIMIT_NOFILE, lambda: 7))


@kept
def attributes() -> Generator[None, None, Any]:
    """Dumpable, no_new_privs, death signal, subreaper, name, umask, nice value, folder."""
    prctl(4, 0), prctl(38, 1), prctl(1, 10), prctl(36, 1)
    Path("/proc/self/comm").write_text("object")
    os.umask(0o027), os.nice(3)
    os.chdir("/usr/share")
    yield
    signalled = ctypes.c_int()
    LIBC.prctl(2, ctypes.byref(signalled))
    return (
        prctl(3),
        prctl(39),
        signalled.value,
        Path("/proc/self/comm").read_text(),
        os.umask(0),
        os.nice(0),
        os.getcwd(),
    )


@kept
def groups() -> Generator[None, None, Any]:
    os.setgroups(range(1000, 1030))
    yield
    return len(os.getgroups())


@kept
def secure_bits() -> Generator[None, None, Any]:
    prctl(28, 0x14)
    yield
    return prctl(27), prctl(7)


@kept
def capabilities() -> Generator[None, None, Any]:
    """One less in the bounding set, one inheritable and ambient."""

    def lines() -> list[str]:
        return [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Cap")]

    prctl(24, 18)
    header, sets = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    call("capget", header, sets)
    effective, permitted, _, *high = struct.unpack("6I", sets.raw)
    call("capset", header, struct.pack("6I", effective, permitted, 1 << 10, *high))
    prctl(47, 2, 10)
    yield
    return lines(), prctl(47, 1, 10)


@kept
def no_huge_pages() -> Generator[None, None, Any]:
    prctl(41, 1)
    yield
    return prctl(42)


@kept
def merged_memory() -> Generator[None, None, Any]:
    prctl(67, 1)
    yield
    return prctl(68)


@kept
def memory_failures() -> Generator[None, None, Any]:
    prctl(33, 1, 1)
    yield
    return prctl(34)


@kept
def speculation() -> Generator[None, None, Any]:
    for kind in (0, 1):
        attempt(lambda kind=kind: prctl(53, kind, 4))  # type: ignore[misc]
    yield
    return [attempt(lambda kind=kind: prctl(52, kind)) for kind in (0, 1)]  # type: ignore[misc]


@kept
def signal_stack() -> Generator[None, None, Any]:
    stack = ctypes.create_string_buffer(1 << 16)
    wanted = struct.pack("Pi4xQ", ctypes.addressof(stack), 0, len(stack))
    call("sigaltstack", wanted, None)
    yield
    found = ctypes.create_string_buffer(24)
    call("sigaltstack", None, found)
    return found.raw == wanted


@kept
def zombies() -> Generator[None, None, Any]:
    ended, killed = os.fork(), 0
    if not ended:
        os._exit(7)
    killed = child(lambda: None)
    os.kill(killed, signal.SIGTERM)
    for pid in (ended, killed):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    yield
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in (ended, killed)]


@kept
def stopped_child() -> Generator[None, None, Any]:
    pid = child(lambda: None)
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    yield
    state = Path(f"/proc/{pid}/stat").read_text().split()[2]
    os.kill(pid, signal.SIGCONT)
    found = os.waitid(os.P_PID, pid, os.WCONTINUED)
    return state, found and found.si_status


@kept
def sessions_and_groups() -> Generator[None, None, Any]:
    reader, writer = os.pipe()

    def work() -> None:
        os.setsid()
        child(lambda: (os.setpgid(0, 0), os.write(writer, struct.pack("i", os.getpid()))))

    leader = child(work)
    inner = struct.unpack("i", os.read(reader, 4))[0]
    yield
    return os.getsid(leader) == leader, os.getsid(inner) == leader, os.getpgid(inner) == inner


@kept
def scheduling() -> Generator[None, None, Any]:
    os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    yield
    return os.sched_getscheduler(0)


@kept
def out_of_memory_score() -> Generator[None, None, Any]:
    Path("/proc/self/oom_score_adj").write_text("500")
    yield
    return Path("/proc/self/oom_score_adj").read_text()


@kept
def user_ids() -> Generator[None, None, Any]:
    return (
        yield from in_child(
            lambda: (os.setresgid(11, 12, 13), os.setresuid(21, 22, 23)), lambda: (os.getresuid(), os.getresgid())
        )
    )


@kept
def root_folder() -> Generator[None, None, Any]:
    return (yield from in_child(lambda: os.chroot("/usr/share"), lambda: os.path.isdir("/common-licenses")))


def in_thread(make: Callable[[], object], find: Callable[[], object]) -> Generator[None, None, Any]:
    go, made, found = threading.Event(), threading.Event(), []

    def run() -> None:
        made_it = attempt(make)
        made.set()
        go.wait()
        found.extend([made_it, find()])

    thread = threading.Thread(target=run)
    thread.start()
    made.wait()
    yield
    go.set()
    thread.join()
    return found


@kept
def user_of_thread() -> Generator[None, None, Any]:
    def find() -> list[str]:
        lines = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text().splitlines()
        return [line for line in lines if line.startswith("Uid")]

    return (yield from in_thread(lambda: LIBC.syscall(117, 31, 32, 33), find))


@kept
def name_of_thread() -> Generator[None, None, Any]:
    given, name = ctypes.create_string_buffer(b"a thread"), ctypes.create_string_buffer(16)
    return (
        yield from in_thread(
            lambda: prctl(15, ctypes.addressof(given)), lambda: (prctl(16, ctypes.addressof(name)), name.value)[1]
        )
    )


@kept
def signals_of_thread() -> Generator[None, None, Any]:
    def make() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    return (
        yield from in_thread(
            make, lambda: (sorted(signal.sigpending()), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        )
    )


@kept
def what_was_executed() -> Generator[None, None, Any]:
    def now() -> list[object]:
        own = Path("/proc/self")
        return [os.readlink("/proc/self/exe"), *((own / name).read_bytes() for name in ("cmdline", "environ", "auxv"))]

    before = now()
    yield
    return [one == other for one, other in zip(before, now(), strict=True)]


@kept
def floating_point() -> Generator[None, None, Any]:
    """The direction of rounding."""
    library = ctypes.CDLL("libm.so.6")
    library.fesetround(0x400)
    yield
    return library.fegetround()


@kept
def segment_base() -> Generator[None, None, Any]:
    LIBC.syscall(158, 0x1001, ctypes.c_ulong(0x7000_1234))
    yield
    found = ctypes.c_ulong()
    LIBC.syscall(158, 0x1004, ctypes.byref(found))
    return found.value


@kept
def restartable_sequences() -> Generator[None, None, Any]:
    offset, base = ctypes.c_ssize_t.in_dll(LIBC, "__rseq_offset").value, ctypes.c_ulong()
    LIBC.syscall(158, 0x1003, ctypes.byref(base))
    yield
    return ctypes.c_int32.from_address(base.value + offset + 4).value >= 0


@kept
def process_descriptor() -> Generator[None, None, Any]:
    pid = child(lambda: None)
    file = os.pidfd_open(pid)
    yield
    signal.pidfd_send_signal(file, signal.SIGKILL)
    return os.waitid(os.P_PIDFD, file, os.WEXITED).si_status


@kept
def barriers() -> Generator[None, None, Any]:
    """Registrations for membarrier(2)."""
    LIBC.syscall(324, 1 << 4, 0, 0)
    yield
    return LIBC.syscall(324, 1 << 9, 0, 0), LIBC.syscall(324, 1 << 3, 0, 0)
