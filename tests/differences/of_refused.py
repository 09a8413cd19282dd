"""Objects that CRIU cannot dump."""

import ctypes
import mmap
import os
import resource
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.differences.objects import (
    LIBC,
    call,
    child,
    datagrams,
    in_child,
    prctl,
    refused,
)

PAGE = 4096


@refused("criu-time-stamp-counter")
def time_stamp_counter() -> Generator[None, None, Any]:
    """A process that may not read it. It must not ask for the time meanwhile."""
    return (yield from in_child(lambda: prctl(26, 2), lambda: None))


@refused("criu-own-system-calls")
def dispatched_calls() -> Generator[None, None, Any]:
    """A process that handles its system calls itself, once it has set a byte."""
    selector = ctypes.c_char(b"\0")
    prctl(59, 1, 0, 0, ctypes.addressof(selector))
    yield


@refused("criu-segments")
def descriptor_table() -> Generator[None, None, Any]:
    """A segment in the local descriptor table (modify_ldt(2))."""
    LIBC.syscall(154, 1, struct.pack("IIII", 3, 0x1000, 0xFFF, 1 | 1 << 6), 16)
    yield


@refused("criu-mdwe")
def denied_executable_memory() -> Generator[None, None, Any]:
    return (yield from in_child(lambda: prctl(65, 1), lambda: None))


@refused("criu-sealed-memory")
def sealed_mapping() -> Generator[None, None, Any]:
    made = mmap.mmap(-1, PAGE)
    place = ctypes.addressof(ctypes.c_char.from_buffer(made))
    call("syscall", 462, ctypes.c_void_p(place), ctypes.c_size_t(PAGE), 0)
    yield


@refused("criu-packet-pipe")
def packets() -> Generator[None, None, Any]:
    held = os.pipe2(os.O_DIRECT)
    yield
    return held


@refused("criu-file-from-outside")
def open_message_queue() -> Generator[None, None, Any]:
    call("mq_open", b"/open", os.O_CREAT | os.O_RDWR, 0o600, None)
    yield
    call("mq_unlink", b"/open")


@refused("criu-long-path")
def long_folder() -> Generator[None, None, Any]:
    os.chdir(tempfile.mkdtemp())
    for _ in range(20):
        os.mkdir("x" * 250)
        os.chdir("x" * 250)
    yield


@refused("criu-shared-memory")
def memory_with_a_hole() -> Generator[None, None, Any]:
    LIBC.shmat.restype = ctypes.c_void_p
    place = LIBC.shmat(call("shmget", 0, 3 * PAGE, 0o1600), None, 0)
    call("munmap", ctypes.c_void_p(place + PAGE), ctypes.c_size_t(PAGE))
    yield


@refused("criu-corked-socket")
def corked_datagrams() -> Generator[None, None, Any]:
    made = datagrams()
    made.setsockopt(17, 1, 1)
    yield


@refused("criu-unread-netlink")
def unread_netlink() -> Generator[None, None, Any]:
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    made.send(struct.pack("IHHIIBxxx", 20, 18, 0x301, 1, 0, 0))
    yield
    return made.fileno()


@refused("criu-unread-control")
def unread_credentials() -> Generator[None, None, Any]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    there.setsockopt(1, socket.SO_PASSCRED, 1)
    here.send(b"x")
    yield
    return here.fileno()


@refused("criu-unaccepted")
def unaccepted_message() -> Generator[None, None, Any]:
    """A connection of a Unix socket that nobody has accepted, with data."""
    listener, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    listener.bind("\0listener"), listener.listen()
    client.connect("\0listener"), client.send(b"x")
    yield
    return client.fileno()


@refused("criu-socket-path")
def path_of_socket() -> Generator[None, None, Any]:
    path = f"{tempfile.mkdtemp()}/socket"
    made = socket.socket(socket.AF_UNIX)
    made.bind(path)
    held = os.open(path, os.O_PATH)
    yield
    return held


@refused("criu-pidfd")
def descriptor_of_thread() -> Generator[None, None, Any]:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    held = call("syscall", 434, thread.native_id, os.O_EXCL)
    yield
    return held


@refused("criu-thread-file")
def file_of_thread() -> Generator[None, None, Any]:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    held = os.open(f"/proc/self/task/{thread.native_id}/status", os.O_RDONLY)
    yield
    return held


@refused("thread-parts")
def folder_of_thread() -> Generator[None, None, Any]:
    """A thread with a working directory of its own."""
    ready, stop = threading.Event(), threading.Event()

    def run() -> None:
        call("unshare", 0x200)
        os.chdir("/usr/share")
        ready.set()
        stop.wait()

    threading.Thread(target=run).start()
    ready.wait()
    yield


@refused("thread-parts")
def files_of_thread() -> Generator[None, None, Any]:
    """A thread with open files of its own."""
    ready, stop = threading.Event(), threading.Event()

    def run() -> None:
        call("unshare", 0x400)
        ready.set()
        stop.wait()

    threading.Thread(target=run).start()
    ready.wait()
    yield


@refused("criu-program-in-memory")
def program_in_memory() -> Generator[None, None, Any]:
    file = os.memfd_create("program")
    with open("/usr/bin/sleep", "rb") as program:
        os.write(file, program.read())
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.execv(f"/proc/self/fd/{file}", ["sleep", "1000"])
    os.close(writer)
    os.read(reader, 1)  # ends when the program is executed
    os.close(file)
    yield


@refused("criu-first-thread")
def ended_first_thread() -> Generator[None, None, Any]:
    reader, writer = os.pipe()

    def work() -> None:
        stop = threading.Event()
        threading.Thread(target=stop.wait).start()
        os.write(writer, b".")
        LIBC.syscall(60, 0)

    pid = child(work)
    os.read(reader, 1)
    while "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        pass
    yield


@refused("narrow-limit")
def hard_limit() -> Generator[None, None, Any]:
    """A process that has reached a hard limit of its open files."""
    return (yield from in_child(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (7, 7)), lambda: None))


@refused("criu-kind-of-file")
def landlock_rules() -> Generator[None, None, Any]:
    held = call("syscall", 444, struct.pack("Q", 1), ctypes.c_size_t(8), 0)
    yield
    return held


@refused("criu-pending-trap")
def pending_trap() -> Generator[None, None, Any]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP])
    os.kill(os.getpid(), signal.SIGTRAP)
    yield
