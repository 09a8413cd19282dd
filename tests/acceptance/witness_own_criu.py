"""A program like witness.py, with kinds of objects that only Waypoint's own CRIU restores."""

import contextlib
import ctypes
import fcntl
import itertools
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import witness
from witness_memory import LIBC, Helper, must

FULL = b"full"  # as many bytes as both buffers take
EXCHANGES = list(itertools.product((b"", b"unread", FULL), (b"", b"unread", FULL), (False, True), (False, True)))
MAP_NORESERVE = 0x4000
THREAD_CLOCK = 3
TO_THREAD = 4  # SIGEV_THREAD_ID


class Connection:
    """A connection that may have unread bytes and may be shut down, in each direction."""

    def __init__(self, ends: tuple[socket.socket, socket.socket], exchange: tuple[bytes, bytes, bool, bool]) -> None:
        self.ends, self.shut = ends, exchange[2:]
        self.sent = [self.send(end, what) for end, what in zip(ends, exchange[:2], strict=True)]
        for end, is_shut in zip(ends, self.shut, strict=True):
            end.settimeout(60)  # a retransmission may be due late, if the machine is busy
            if is_shut:
                end.shutdown(socket.SHUT_WR)

    @staticmethod
    def send(end: socket.socket, what: bytes) -> int:
        """Send, and return the number of bytes."""
        end.settimeout(0)
        if what != FULL:
            return end.send(what)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += end.send(witness.BIG)
        return sent

    @staticmethod
    def receive(end: socket.socket, size: int) -> bytes:
        received = b""
        while len(received) < size and (part := end.recv(size - len(received))):
            received += part
        return received

    def look(self) -> None:
        for writer, reader, sent, is_shut in zip(self.ends, self.ends[::-1], self.sent, self.shut, strict=True):
            must(len(self.receive(reader, sent)), sent)
            if not is_shut:
                writer.sendall(b"more")
                must(self.receive(reader, 4), b"more")
                writer.shutdown(socket.SHUT_WR)
            must(reader.recv(1), b"")


class HalfClosed:
    """Connections in all combinations of unread bytes and shutdowns, by IPv4, IPv6 and Unix sockets."""

    def __init__(self) -> None:
        self.connections = [
            (make.__name__, exchange, Connection(make(), exchange))
            for make, exchange in itertools.product((self.ipv4, self.ipv6, socket.socketpair), EXCHANGES)
        ]

    def ipv4(self) -> tuple[socket.socket, socket.socket]:
        return self.connected(socket.create_server(("127.0.0.1", 0)))

    def ipv6(self) -> tuple[socket.socket, socket.socket]:
        return self.connected(socket.create_server(("::1", 0), family=socket.AF_INET6))

    @staticmethod
    def connected(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
        with listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # so that a full buffer is small
            client = socket.create_connection(listener.getsockname()[:2])
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            return client, listener.accept()[0]

    def look(self) -> None:
        for *what, connection in self.connections:
            try:
                connection.look()
            except (AssertionError, OSError) as error:
                error.add_note(str(what))
                raise


class Timers:
    """Timers that signal one thread: the first, and another one after 20 ms of its own processor time."""

    def __init__(self) -> None:
        self.burnt = threading.Event()
        self.go, self.armed = threading.Event(), threading.Event()
        self.create(0, threading.get_native_id(), (500, 0))
        self.burner = threading.Thread(target=self.burn, daemon=True)
        self.burner.start()
        self.armed.wait()
        self.notified = self.find_notified()

    @staticmethod
    def create(clock: int, thread: int, after: tuple[int, int]) -> None:
        timer = ctypes.c_void_p()
        event = ctypes.create_string_buffer(struct.pack("qiii", 0, signal.SIGRTMIN + 1, TO_THREAD, thread), 64)
        must(LIBC.timer_create(clock, event, ctypes.byref(timer)), 0)
        must(LIBC.timer_settime(timer, 0, struct.pack("qqqq", 0, 0, *after), None), 0)

    @staticmethod
    def find_notified() -> list[str]:
        return sorted(line for line in Path("/proc/self/timers").read_text().splitlines() if "notify" in line)

    def burn(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 1])
        self.create(THREAD_CLOCK, threading.get_native_id(), (0, 20_000_000))
        self.armed.set()
        self.go.wait()
        until = time.thread_time() + 5
        while time.thread_time() < until:
            if signal.SIGRTMIN + 1 in signal.sigpending():
                self.burnt.set()
                return

    def look(self) -> None:
        must(self.find_notified(), self.notified)
        self.go.set()
        self.burner.join()
        assert self.burnt.is_set()


class FolderOfProcess:
    """Processes that stand in the folder of a process, or have a file of it open."""

    def __init__(self) -> None:
        self.paths = ("/proc/1", f"/proc/{os.getpid()}", f"/proc/{os.getpid()}/fdinfo")
        self.helpers = []
        for path in self.paths:
            before = os.getcwd()
            os.chdir(path)
            self.helpers.append(Helper(lambda _: os.getcwd().encode()))
            os.chdir(before)
        self.folder = os.open("/proc/1", os.O_PATH)

    def look(self) -> None:
        must([helper.ask(b"?").decode() for helper in self.helpers], list(self.paths))
        must(os.readlink(f"/proc/self/fd/{self.folder}"), "/proc/1")


class InheritedLock:
    """A lock of fcntl(2) on a file that the process has got open from its parent."""

    def __init__(self) -> None:
        self.file = os.open("/tmp/witness/locked", os.O_RDWR | os.O_CREAT)
        self.child = Helper(self.lock)
        must(self.child.ask(b"lock"), b"locked")

    def lock(self, _: bytes) -> bytes:
        fcntl.lockf(self.file, fcntl.LOCK_EX)
        return b"locked"

    def look(self) -> None:
        with contextlib.suppress(BlockingIOError):
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise AssertionError("the lock is free")


class Reservation:
    """Address space that a process and its child have reserved: 80 TiB nearly empty, as sanitizers reserve it, and
    60 GiB without access rights.
    """

    SIZE = 40 << 40
    NEAR_ITS_END = SIZE - (1 << 30)

    def __init__(self) -> None:
        self.helper = Helper(self.serve)

    @staticmethod
    def map(size: int, protection: int, flags: int) -> int:
        LIBC.mmap.restype = ctypes.c_void_p
        found = LIBC.mmap(None, ctypes.c_size_t(size), protection, flags, -1, ctypes.c_long(0))
        assert found != ctypes.c_void_p(-1).value
        return int(found)

    def serve(self, question: bytes) -> bytes:
        if question == b"make":
            private, usable = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE
            start = self.map(self.SIZE, usable, private | MAP_NORESERVE)
            self.map(self.SIZE, usable, private | MAP_NORESERVE)
            self.map(60 << 30, 0, private)
            self.at = start + self.NEAR_ITS_END
            ctypes.memset(self.at, 7, 3000)
            self.child = Helper(lambda _: ctypes.string_at(self.at, 3001))
            return b"made"
        return bytes([ctypes.string_at(self.at, 3001) == self.child.ask(b"?") == b"\7" * 3000 + b"\0"])

    def look(self) -> None:
        must(self.helper.ask(b"look"), b"\1")


class NoVdso:
    """A process that has unmapped its vDSO, as valgrind does. It may call nothing that reads a clock."""

    def __init__(self) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.answer, self.question = ours[0], theirs[1]
        if os.fork() == 0:
            (vdso,) = (line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[vdso]"))
            start, end = (int(word, 16) for word in vdso.split()[0].split("-"))
            LIBC.munmap(ctypes.c_void_p(start), ctypes.c_size_t(end - start))
            while os.write(ours[1], b"here"):
                os.read(theirs[0], 1)
        must(os.read(self.answer, 4), b"here")

    def look(self) -> None:
        os.write(self.question, b"?")
        must(os.read(self.answer, 4), b"here")


def make_all(_: str) -> list[Any]:
    made = [kind() for kind in (Reservation, NoVdso, FolderOfProcess, InheritedLock, HalfClosed, Timers)]
    must(made[0].helper.ask(b"make"), b"made")
    return made


if __name__ == "__main__":
    witness.main(sys.argv[1], make_all)
