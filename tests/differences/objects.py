"""A program for sessions: objects of the kernel, each in a process of its own that says what it finds.

An object is a generator. It makes the object, yields, and returns what it then finds: the session was captured, or
copied, at the `yield`. The result is compared with that of a session that was not captured.

    python3 objects.py FOLDER NAME...
"""

import array
import ctypes
import fcntl
import json
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

Object = Callable[[], Generator[None, None, Any]]
OBJECTS: dict[str, Object] = {}
REPORTED: dict[str, str] = {}
"""By the name of an object of which copies lose something: the code of the condition that the checkpoint reports."""

LIBC = ctypes.CDLL(None, use_errno=True)
LOOPBACK = "127.0.0.1"
PAUSE = threading.Event()


def kept(make: Object) -> Object:
    OBJECTS[make.__name__] = make
    return make


def reported(code: str) -> Callable[[Object], Object]:
    def note(make: Object) -> Object:
        REPORTED[make.__name__] = code
        return kept(make)

    return note


def child(work: Callable[[], object]) -> int:
    """Run `work` in a child, which waits afterwards until it is killed."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            signal.pause()
        finally:
            os._exit(1)
    return pid


def attempt(work: Callable[[], object]) -> object:
    """What `work` returns, or the name of its error."""
    try:
        return work()
    except OSError as error:
        return type(error).__name__


def prctl(option: int, *arguments: int) -> int:
    wide = [ctypes.c_ulong(one) for one in (*arguments, 0, 0, 0, 0)[:4]]
    return int(LIBC.prctl(option, *wide))


def connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


def datagrams() -> socket.socket:
    made = socket.socket(type=socket.SOCK_DGRAM)
    made.bind((LOOPBACK, 0))
    made.settimeout(60)
    return made


def temporary() -> int:
    return os.open(tempfile.mkstemp()[1], os.O_RDWR)


# Processes and their settings.


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


# Signals and timers.


@kept
def queued_signals() -> Generator[None, None, Any]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [34, 35])
    for number, value in ((35, 1), (34, 2), (35, 3)):
        LIBC.sigqueue(os.getpid(), number, ctypes.c_void_p(value))
    yield
    found = [signal.sigtimedwait([34, 35], 0) for _ in range(4)]
    return [one and (one.si_signo, one.si_code) for one in found]


@kept
def timer_of_the_day() -> Generator[None, None, Any]:
    """It expires at its time also in a copy that is made later."""
    timer = LIBC.timerfd_create(time.CLOCK_REALTIME, 0)
    at = int(time.time()) + 500
    LIBC.timerfd_settime(timer, 1, struct.pack("qqqq", 7, 0, at, 0), None)
    yield
    left = struct.unpack("qqqq", timer_left(timer))
    return abs(left[2] + left[3] / 1e9 + time.time() - at) < 0.05, left[:2]


def timer_left(timer: int) -> bytes:
    buffer = ctypes.create_string_buffer(32)
    LIBC.timerfd_gettime(timer, buffer)
    return buffer.raw


@reported("timer-overruns")
def waiting_timer() -> Generator[None, None, Any]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [10])
    timer = ctypes.c_void_p()
    LIBC.timer_create(1, struct.pack("qii", 0, 10, 0) + bytes(48), ctypes.byref(timer))
    LIBC.timer_settime(timer, 0, struct.pack("qqqq", 0, 1_000_000, 0, 1_000_000), None)
    while 10 not in signal.sigpending():
        PAUSE.wait(0.001)
    yield
    return signal.sigwait([10])


# Files and memory.


@kept
def inherited_lock() -> Generator[None, None, Any]:
    file, (here, there) = temporary(), socket.socketpair()
    child(lambda: (fcntl.lockf(file, fcntl.LOCK_EX), there.send(b"locked")))
    here.recv(6)
    yield
    return attempt(lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB))


@kept
def unread_pipe() -> Generator[None, None, Any]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 17)
    os.write(writer, b"unread" * 10_000)
    os.close(writer)
    yield
    return len(os.read(reader, 1 << 17)), os.read(reader, 1)


@kept
def shared_position() -> Generator[None, None, Any]:
    """A file that a process and its child have open together, and its position."""
    file = temporary()
    os.write(file, b"0123456789")
    os.lseek(file, 3, os.SEEK_SET)
    (asked, ask), (answer, answered) = os.pipe(), os.pipe()
    child(lambda: (os.read(asked, 1), os.write(answered, os.read(file, 4))))
    yield
    os.write(ask, b"?")
    return os.read(answer, 4), os.lseek(file, 0, os.SEEK_CUR)


@kept
def removed_file() -> Generator[None, None, Any]:
    file, path = tempfile.mkstemp()
    os.write(file, b"removed")
    os.unlink(path)
    yield
    return os.pread(file, 9, 0), os.path.exists(path)


@kept
def locks_of_open_files() -> Generator[None, None, Any]:
    """Locks by flock(2) and of an open file description."""
    first, second = tempfile.mkstemp()[1], tempfile.mkstemp()[1]
    held = [os.open(first, os.O_RDWR), os.open(second, os.O_RDWR)]
    fcntl.flock(held[0], fcntl.LOCK_EX)
    fcntl.fcntl(held[1], 37, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
    yield
    other = os.open(second, os.O_RDWR)
    return (
        attempt(lambda: fcntl.flock(os.open(first, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)),
        attempt(lambda: fcntl.fcntl(other, 37, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))),
    )


@reported("mapped-file-changed")
def overwritten_mapping() -> Generator[None, None, Any]:
    """A file of the base that is overwritten after it was mapped."""
    file = next(
        path for path in Path("/usr/share/common-licenses").iterdir() if path.is_file() and not path.is_symlink()
    )
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    before = mapped[:7]
    with file.open("r+b") as opened:
        opened.write(b"CHANGED")
    yield
    return mapped[:7] == before


@reported("semaphore-undo")
def semaphore_undo() -> Generator[None, None, Any]:
    number = LIBC.semget(0x7700, 1, 0o1600)
    LIBC.semctl(number, 0, 16, 1)
    LIBC.semop(number, struct.pack("HhH", 0, -1, 0o10000), 1)
    yield
    return LIBC.semctl(number, 0, 12)


# Sockets.


@kept
def unread_tcp() -> Generator[None, None, Any]:
    client, server = connection()
    client.sendall(b"unread")
    yield
    server.sendall(b"answer")
    return server.recv(9), client.recv(9)


@kept
def options_of_udp() -> Generator[None, None, Any]:
    """Options that CRIU leaves out, by level and number."""
    made = datagrams()
    options = {(1, 29): 1, (1, 40): 1, (1, 42): 0, (0, 10): 2, (0, 11): 1, (0, 12): 1, (0, 13): 1, (17, 103): 500}
    for (level, number), value in options.items():
        made.setsockopt(level, number, value)
    yield
    return [made.getsockopt(level, number) for level, number in options]


@kept
def options_of_udp6() -> Generator[None, None, Any]:
    made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    options = {(41, 16): 5, (41, 18): 6, (41, 25): 1, (41, 51): 1, (41, 66): 1, (41, 67): 8, (41, 72): 2}
    for (level, number), value in options.items():
        made.setsockopt(level, number, value)
    yield
    return [made.getsockopt(level, number) for level, number in options]


@kept
def options_of_tcp() -> Generator[None, None, Any]:
    client, server = connection()
    options = {(6, 7): 3, (6, 8): 11, (6, 18): 4321, (6, 25): 9999, (6, 36): 1, (1, 60): 1, (0, 21): 3}
    for one in (client, server):
        for (level, number), value in options.items():
            one.setsockopt(level, number, value)
    yield
    return [[one.getsockopt(level, number) for level, number in options] for one in (client, server)]


@kept
def options_of_listener() -> Generator[None, None, Any]:
    made = socket.create_server((LOOPBACK, 0))
    made.setsockopt(6, 9, 10)
    made.setsockopt(6, 23, 7)
    made.setsockopt(6, 27, 1)
    yield
    return [made.getsockopt(6, number) for number in (9, 23, 27)]


@kept
def peeked_at() -> Generator[None, None, Any]:
    here, there = socket.socketpair()
    there.setsockopt(socket.SOL_SOCKET, 42, 0)
    here.send(b"abcdef")
    there.recv(3, socket.MSG_PEEK)
    yield
    return there.recv(3, socket.MSG_PEEK), there.recv(2), there.recv(9)


@kept
def multicast_groups() -> Generator[None, None, Any]:
    """A member of three groups: of IPv4, of one sender only, and of IPv6."""
    first, second = datagrams(), datagrams()
    lo, group = socket.inet_aton(LOOPBACK), socket.inet_aton("239.1.2.3")
    first.setsockopt(0, socket.IP_ADD_MEMBERSHIP, group + lo)
    second.setsockopt(0, 39, group + lo + socket.inet_aton("127.0.0.9"))  # IP_ADD_SOURCE_MEMBERSHIP
    third = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    member = socket.inet_pton(socket.AF_INET6, "ff01::1234") + struct.pack("I", 1)
    third.setsockopt(41, socket.IPV6_JOIN_GROUP, member)
    yield
    buffer = ctypes.create_string_buffer(group + lo + struct.pack("II", 0, 9), 64)  # struct ip_msfilter
    LIBC.getsockopt(second.fileno(), 0, 41, buffer, ctypes.byref(ctypes.c_uint32(64)))
    return (
        attempt(lambda: first.setsockopt(0, socket.IP_DROP_MEMBERSHIP, group + lo)),
        attempt(lambda: third.setsockopt(41, socket.IPV6_LEAVE_GROUP, member)),
        buffer.raw[8:20].hex(),
    )


@kept
def unix_messages() -> Generator[None, None, Any]:
    """Unread messages with a descriptor on its way."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    os.write(writer, b"in the pipe")
    here.sendmsg([b"one"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [reader]))])
    here.send(b"two")
    os.close(reader)
    yield
    message, descriptors, _, _ = socket.recv_fds(there, 9, 1)
    return message, os.read(descriptors[0], 99), there.recv(9)


@reported("pending-error")
def refused_connection() -> Generator[None, None, Any]:
    made = socket.socket()
    made.settimeout(0)
    made.connect_ex((LOOPBACK, 9))
    yield
    return made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


@reported("pending-error")
def reset_connection() -> Generator[None, None, Any]:
    client, server = connection()
    server.send(b"unread")
    select.select([client], [], [], 60)
    client.close()
    yield
    return attempt(lambda: server.recv(9))


@reported("urgent-data")
def urgent_data() -> Generator[None, None, Any]:
    client, server = connection()
    client.send(b"before")
    client.send(b"U", socket.MSG_OOB)
    client.send(b"after")
    yield
    return server.recv(6)


@reported("datagram-sender")
def nameless_sender() -> Generator[None, None, Any]:
    receiver, sender = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    receiver.bind("\0receiver")
    sender.bind("\0sender")
    sender.sendto(b"question", "\0receiver")
    yield
    return receiver.recv(9)


def run(folder: Path, name: str) -> None:
    """Make the object, wait for the file `go`, and write what the object then finds."""
    try:
        made = OBJECTS[name]()
        next(made)
        publish(folder / f"{name}.ready", str(os.getpid()))
        while not (folder / "go").exists():
            PAUSE.wait(0.02)
        try:
            next(made)
        except StopIteration as stopped:
            publish(folder / f"{name}.found", repr(stopped.value))
    except BaseException:
        publish(folder / f"{name}.ready", str(os.getpid()))
        publish(folder / f"{name}.found", traceback.format_exc())
    signal.pause()


def publish(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def main(folder: Path, names: list[str]) -> None:
    """Prints nothing. The file `all.ready` has the pids of the objects, `all.found` the results, as JSON."""
    for name in names:
        if os.fork() == 0:
            run(folder, name)
    for kind in ("ready", "found"):
        paths = {name: folder / f"{name}.{kind}" for name in names}
        while not all(path.exists() for path in paths.values()):
            PAUSE.wait(0.02)
        publish(folder / f"all.{kind}", json.dumps({name: path.read_text() for name, path in paths.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
