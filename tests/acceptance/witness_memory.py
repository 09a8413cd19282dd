"""Memory that processes share: classes for witness.py."""

import ctypes
import fcntl
import mmap
import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)


def must(value: object, *expected: object) -> None:
    assert value in expected, f"{value!r}, not {' or '.join(map(repr, expected))}"


class Helper:
    """A child process that answers each question with `serve(question)`, over a pair of Unix sockets."""

    def __init__(self, serve: Callable[[bytes], bytes]) -> None:
        self.ours, theirs = socket.socketpair()
        if os.fork() == 0:
            self.ours.close()
            while question := theirs.recv(4096):
                theirs.sendall(serve(question))
            os._exit(0)
        theirs.close()

    def ask(self, question: bytes) -> bytes:
        self.ours.sendall(question)
        return self.ours.recv(4096)


class SharedMemory:
    """Memory shared with a child: anonymous, in /dev/shm (also a removed file), a memfd, and a System V segment."""

    def __init__(self) -> None:
        name = f"/dev/shm/witness-{os.getpid()}"
        self.maps = [mmap.mmap(-1, 8192)]
        for path, removed in ((name, False), (f"{name}-removed", True)):
            self.maps.append(self.map(os.open(path, os.O_CREAT | os.O_RDWR, 0o600)))
            if removed:
                os.unlink(path)
        self.memfd = os.memfd_create("witness", os.MFD_ALLOW_SEALING)
        self.maps.append(self.map(self.memfd))
        fcntl.fcntl(self.memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.segment = LIBC.shmget(0x4711, 8192, 0o1600)
        LIBC.shmat.restype = ctypes.c_void_p
        address = LIBC.shmat(self.segment, None, 0)
        self.maps.append((ctypes.c_char * 8192).from_address(address))
        for number, one in enumerate(self.maps):
            one[:7] = b"before%d" % number
            one[5000:5004] = b"last"
        self.helper = Helper(self.exchange)
        self.name = name

    @staticmethod
    def map(fd: int) -> mmap.mmap:
        os.ftruncate(fd, 8192)
        return mmap.mmap(fd, 8192)

    def exchange(self, question: bytes) -> bytes:
        before = b"".join(one[:7] for one in self.maps)
        for one in self.maps:
            one[100:105] = question
        return before

    def look(self) -> None:
        must(self.helper.ask(b"after"), b"before0before1before2before3before4")
        must(b"|".join(one[100:105] for one in self.maps), b"|".join([b"after"] * 5))
        must(b"|".join(one[5000:5004] for one in self.maps), b"|".join([b"last"] * 5))
        must(Path(self.name).read_bytes()[:7], b"before1")
        must(fcntl.fcntl(self.memfd, fcntl.F_GET_SEALS), fcntl.F_SEAL_SHRINK)
        must(LIBC.shmget(0x4711, 8192, 0), self.segment)


class SystemV:
    """A System V semaphore with a value, and a message queue with a message."""

    def __init__(self) -> None:
        self.semaphore = LIBC.semget(0x4712, 1, 0o1600)
        must(LIBC.semctl(self.semaphore, 0, 16, 42), 0)  # SETVAL
        self.queue = LIBC.msgget(0x4713, 0o1600)
        must(LIBC.msgsnd(self.queue, ctypes.create_string_buffer((7).to_bytes(8, "little") + b"message"), 7, 0), 0)

    def look(self) -> None:
        must(LIBC.semctl(self.semaphore, 0, 12), 42)  # GETVAL
        buffer = ctypes.create_string_buffer(64)
        must(LIBC.msgrcv(self.queue, buffer, 7, 0, 0o4000), 7)
        must(buffer.raw[8:15], b"message")


class Multiprocessing:
    """A lock and queues of multiprocessing, which use removed files in /dev/shm as semaphores."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.queue, self.back = context.SimpleQueue(), context.SimpleQueue()
        self.lock = context.Lock()
        self.lock.acquire()
        self.process = context.Process(target=self.work, daemon=True)
        self.process.start()
        self.queue.put("first")

    def work(self) -> None:
        while True:
            self.back.put(f"got {self.queue.get()}")

    def look(self) -> None:
        must(self.back.get(), "got first")
        self.queue.put("second")
        must(self.back.get(), "got second")
        assert not self.lock.acquire(timeout=0.01)
        self.lock.release()
        assert self.lock.acquire(timeout=0.01)
