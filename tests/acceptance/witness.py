"""A program that runs inside a session: it holds one object of each kind that processes have and share, and reports
on request whether each object is unchanged.

Each kind is a class. Its object is made at the start of the program; `look` raises if the object has changed, and is
called once after a restore. The argument is a folder: a request comes through the FIFO `ask` in it, and the answer, in
JSON, goes to the FIFO `answer`. Only the standard library is used, as the session's own Python runs the program.
"""

import contextlib
import fcntl
import json
import mmap
import os
import pty
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from witness_memory import Multiprocessing, SharedMemory, SystemV, must

PAUSE = threading.Event()
BIG = bytes(range(256)) * 200


class TcpConnection:
    """A connection between two processes, with unread bytes in both directions."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        self.ours.sendall(b"question")
        theirs.sendall(BIG)
        if os.fork() == 0:
            self.ours.close()
            self.ours = None
            with contextlib.suppress(ConnectionResetError):
                while theirs.recv(8) == b"question":  # the first was sent before the capture
                    theirs.sendall(b"answer!!")
            os._exit(0)
        theirs.close()
        listener.close()

    def look(self) -> None:
        must(self.ours.recv(len(BIG), socket.MSG_WAITALL), BIG)
        for _ in range(3):
            must(self.ours.recv(8, socket.MSG_WAITALL), b"answer!!")
            self.ours.sendall(b"question")


class TcpListener:
    """Listeners for IPv4 and IPv6; a thread answers the connections of the IPv4 listener."""

    def __init__(self) -> None:
        self.six = socket.create_server(("::1", 0), family=socket.AF_INET6)
        self.four = socket.create_server(("127.0.0.1", 4711))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            with self.four.accept()[0] as one:
                one.sendall(b"welcome")

    def look(self) -> None:
        with socket.create_connection(("127.0.0.1", 4711), 5) as one:
            must(one.recv(7, socket.MSG_WAITALL), b"welcome")
        with socket.create_connection(self.six.getsockname()[:2], 5):
            self.six.accept()[0].close()


class UdpSockets:
    def __init__(self) -> None:
        self.one, self.two = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        self.one.bind(("127.0.0.1", 0))
        self.two.connect(self.one.getsockname())

    def look(self) -> None:
        self.two.send(b"datagram")
        must(self.one.recv(100), b"datagram")


class UnixSockets:
    """Socket pairs of each type with unread bytes; listeners at a path and at an abstract name."""

    def __init__(self, folder: str) -> None:
        self.kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
        self.pairs = [socket.socketpair(socket.AF_UNIX, kind) for kind in self.kinds]
        for one, _ in self.pairs:
            one.sendall(b"on its way")
        self.listeners = []
        for name in (f"{folder}/socket", b"\0abstract-of-the-witness"):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(name)
            listener.listen()
            self.listeners.append(listener)

    def look(self) -> None:
        for one, two in self.pairs:
            must(two.recv(100), b"on its way")
            two.sendall(b"back")
            must(one.recv(100), b"back")
        for listener in self.listeners:
            client = socket.socket(socket.AF_UNIX)
            client.connect(listener.getsockname())
            server, _ = listener.accept()
            server.sendall(b"welcome")
            must(client.recv(7), b"welcome")


class Pipes:
    """A full pipe, a pipe of another size, a FIFO with unread bytes, and a program connected by pipes."""

    def __init__(self, folder: str) -> None:
        self.full = os.pipe2(os.O_NONBLOCK)
        self.size = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self.size += os.write(self.full[1], BIG)
        self.large = os.pipe()
        fcntl.fcntl(self.large[1], fcntl.F_SETPIPE_SZ, 1 << 19)
        os.write(self.large[1], BIG * 5)
        os.mkfifo(f"{folder}/fifo")
        self.fifo = os.open(f"{folder}/fifo", os.O_RDWR)
        os.write(self.fifo, b"in the fifo")
        self.program = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def look(self) -> None:
        got = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                got += os.read(self.full[0], 1 << 20)
        must(len(got), self.size)
        must(got[: len(BIG)], BIG)
        must(fcntl.fcntl(self.large[1], fcntl.F_GETPIPE_SZ), 1 << 19)
        must(os.read(self.large[0], 1 << 20), BIG * 5)
        must(os.read(self.fifo, 100), b"in the fifo")
        self.program.stdin.write(b"through cat")
        must(self.program.stdout.read(100), b"through cat")


class Descriptors:
    """An eventfd, an epoll set, and a file with two descriptors and different flags."""

    def __init__(self, folder: str) -> None:
        self.event = os.eventfd(7)
        self.readable, self.writable = os.pipe()
        self.epoll = select.epoll()
        self.epoll.register(self.readable, select.EPOLLIN)
        self.append = os.open(f"{folder}/append", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.twice, inheritable = os.dup(self.append), True
        os.set_inheritable(self.twice, inheritable)
        os.write(self.append, b"before ")

    def look(self) -> None:
        must(os.eventfd_read(self.event), 7)
        must(self.epoll.poll(0), [])
        os.write(self.writable, b"x")
        must(self.epoll.poll(5), [(self.readable, select.EPOLLIN)])
        must((os.get_inheritable(self.append), os.get_inheritable(self.twice)), (False, True))
        os.write(self.twice, b"after")
        must(os.lseek(self.append, 0, os.SEEK_CUR), 12)  # dup: both descriptors share the position


class Files:
    """Open files that were removed (one mapped, one with another name left) or renamed, a removed folder, and locks."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.files = {}
        for name in ("removed", "linked", "renamed", "mapped", "flock", "posix"):
            self.files[name] = open(f"{folder}/{name}", "w+b", buffering=0)  # noqa: SIM115
            self.files[name].write(b"content of " + name.encode())
        self.map = mmap.mmap(self.files["mapped"].fileno(), 4)
        self.map[:4] = b"CONT"
        os.link(f"{folder}/linked", f"{folder}/other-name")
        for name in ("removed", "linked", "mapped"):
            os.unlink(f"{folder}/{name}")
        os.rename(f"{folder}/renamed", f"{folder}/new-name")
        os.mkdir(f"{folder}/gone")
        self.gone = os.open(f"{folder}/gone", os.O_RDONLY)
        os.rmdir(f"{folder}/gone")
        fcntl.flock(self.files["flock"], fcntl.LOCK_EX)
        fcntl.lockf(self.files["posix"], fcntl.LOCK_EX)

    def look(self) -> None:
        for name, file in self.files.items():
            content = (b"CONTent" if name == "mapped" else b"content") + b" of " + name.encode()
            must(file.tell(), len(content))
            must(os.pread(file.fileno(), 100, 0), content)
        must(self.map[:4], b"CONT")
        self.files["linked"].write(b", more")
        must(Path(self.folder, "other-name").read_bytes(), b"content of linked, more")
        must(os.fstat(self.files["linked"].fileno()).st_nlink, 1)
        must(os.listdir(self.gone), [])
        assert not Path(self.folder, "linked").exists()
        left = {"socket", "fifo", "ask", "answer", "append", "other-name", "new-name", "flock", "posix"}
        must(set(os.listdir(self.folder)), left)
        for name, lock in (("flock", "fcntl.flock"), ("posix", "fcntl.lockf")):
            words = f"import fcntl; {lock}(open('{self.folder}/{name}', 'w+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
            other = subprocess.run([sys.executable, "-c", words], capture_output=True, check=False)
            assert b"BlockingIOError" in other.stderr


class Signals:
    """A blocked pending signal, signal handlers, an ignored signal and a timer."""

    def __init__(self) -> None:
        self.caught = []
        signal.signal(signal.SIGUSR1, lambda number, frame: self.caught.append(number))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        os.kill(os.getpid(), signal.SIGUSR2)
        signal.signal(signal.SIGALRM, lambda number, frame: self.caught.append(number))
        signal.setitimer(signal.ITIMER_REAL, 1000)

    def look(self) -> None:
        assert signal.SIGUSR2 in signal.sigpending()
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGHUP)
        must(self.caught, [signal.SIGUSR1])
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000


class Processes:
    """An ended child that was not waited for, a stopped child, a priority, limits, a name, and running threads."""

    def __init__(self) -> None:
        self.ended = subprocess.Popen(["sh", "-c", "exit 7"])
        os.waitid(os.P_PID, self.ended.pid, os.WEXITED | os.WNOWAIT)
        self.stopped = subprocess.Popen(["sh", "-c", "kill -STOP $$; exit 8"])
        os.waitpid(self.stopped.pid, os.WUNTRACED)
        os.nice(3)
        resource.setrlimit(resource.RLIMIT_NOFILE, (333, 444))
        Path("/proc/self/comm").write_text("the-witness")
        self.counts = [0] * 8
        for number in range(8):
            threading.Thread(target=self.work, args=(number,), daemon=True).start()

    def work(self, number: int) -> None:
        while True:
            self.counts[number] += 1
            PAUSE.wait(0.005)

    def look(self) -> None:
        must(self.ended.wait(), 7)
        os.kill(self.stopped.pid, signal.SIGCONT)
        must(self.stopped.wait(), 8)
        must(os.nice(0), 3)
        must(resource.getrlimit(resource.RLIMIT_NOFILE), (333, 444))
        must(Path("/proc/self/comm").read_text(), "the-witness\n")
        before, end = list(self.counts), time.monotonic() + 60
        while any(now == then for now, then in zip(self.counts, before, strict=True)):
            assert time.monotonic() < end, f"{before} {self.counts}"
            PAUSE.wait(0.005)


class Terminal:
    """A pseudo-terminal with a program that leads its terminal session."""

    def __init__(self) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execvp("sh", ["sh", "-c", 'stty -echo; echo ready; while read -r line; do echo "<$line>"; done'])
        must(os.read(self.master, 100), b"ready\r\n")

    def look(self) -> None:
        os.write(self.master, b"typed\n")
        must(os.read(self.master, 100), b"<typed>\r\n")
        os.write(self.master, b"\x03")
        must(os.waitpid(self.pid, 0)[1] & 0x7F, signal.SIGINT)


class Clock:
    """A thread that checks twice a millisecond that the monotonic clock never goes back."""

    def __init__(self) -> None:
        self.last, self.back = time.monotonic(), []
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        while True:
            now = time.monotonic()
            if now < self.last:
                self.back.append((self.last, now))
            self.last = now
            PAUSE.wait(0.0005)

    def look(self) -> None:
        must(self.back, [])


def make_all(folder: str) -> list[Any]:
    """Make one object of each class; classes with threads come last, as the others fork and block signals."""
    made = [kind() for kind in (Signals, Terminal, SharedMemory, Multiprocessing, TcpConnection, SystemV)]
    made += [kind(folder) for kind in (UnixSockets, Pipes, Descriptors, Files)]
    return made + [kind() for kind in (TcpListener, UdpSockets, Processes, Clock)]


def verdict(one: Any) -> str:
    try:
        one.look()
    except BaseException:
        return traceback.format_exc()
    return "unchanged"


def main(folder: str, make: Callable[[str], list[Any]] = make_all) -> None:
    for name in ("ask", "answer.new"):
        os.mkfifo(f"{folder}/{name}")
    made = make(folder)
    os.rename(f"{folder}/answer.new", f"{folder}/answer")  # ready
    while True:
        Path(folder, "ask").read_text()
        Path(folder, "answer").write_text(json.dumps({type(one).__name__: verdict(one) for one in made}))


if __name__ == "__main__":
    main(sys.argv[1])
