"""Open files, pipes, locks, terminals, and the files themselves."""

import ctypes
import errno
import fcntl
import itertools
import os
import pty
import signal
import socket
import struct
import sys
import tempfile
import termios
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.differences.objects import PAUSE, attempt, call, child, in_child, kept, locked, reported, temporary

ANYONE = 2**32 - 1


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
def blocked_write() -> Generator[None, None, Any]:
    """A write of more than fits into its pipe."""
    content, (reader, writer) = bytes(range(200)) * 1000, os.pipe()
    results: list[int] = []

    def write() -> None:
        results.append(os.write(writer, content))
        os.close(writer)

    threading.Thread(target=write, daemon=True).start()
    while unread(reader) < fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ):
        PAUSE.wait(0.001)
    yield
    with open(reader, "rb") as file:
        return file.read() == content, results


def unread(reader: int) -> int:
    return int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder)


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


@kept
def flags_of_files() -> Generator[None, None, Any]:
    path = tempfile.mkstemp()[1]
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOATIME | os.O_NONBLOCK | os.O_SYNC)
    os.dup2(file, 777, inheritable=False)
    reader, _ = os.pipe()
    os.set_blocking(reader, False)
    yield
    found = [fcntl.fcntl(one, fcntl.F_GETFL) for one in (file, 777, reader)]
    os.write(777, b"ab")
    return found, os.get_inheritable(777), os.lseek(file, 0, os.SEEK_CUR)


@kept
def path_descriptor() -> Generator[None, None, Any]:
    file = os.open("/usr/share/common-licenses", os.O_PATH)
    yield
    return os.stat("GPL-2", dir_fd=file).st_size, attempt(lambda: os.read(file, 1))


@reported("unnamed-file")
def unnamed_file() -> Generator[None, None, Any]:
    """A file without a name (O_TMPFILE), which gets one later."""
    folder = tempfile.mkdtemp()
    file = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    os.write(file, b"unnamed")
    yield
    path, name = f"/proc/self/fd/{file}".encode(), f"{folder}/named".encode()
    return os.pread(file, 9, 0), attempt(lambda: call("linkat", -100, path, -100, name, 0x400))


@kept
def removed_hole() -> Generator[None, None, Any]:
    """A removed file of 5 GiB, nearly all of it a hole, with its mode, owner and time."""
    file, path = tempfile.mkstemp()
    os.pwrite(file, b"end", 5 << 30)
    os.fchown(file, 5, 6), os.fchmod(file, 0o754), os.utime(file, ns=(10**18, 10**18 + 1000))
    os.lseek(file, 5 << 30, os.SEEK_SET)
    os.unlink(path)
    yield
    found = os.fstat(file)
    about = found.st_blocks < 1000, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns
    return os.read(file, 9), os.lseek(file, 0, os.SEEK_DATA) > 0, about


@kept
def attributes_of_removed_file() -> Generator[None, None, Any]:
    file, path = tempfile.mkstemp(dir="/var/tmp")
    os.setxattr(file, "user.note", b"kept")
    os.unlink(path)
    yield
    return attempt(lambda: os.getxattr(file, "user.note"))


@kept
def attributes_of_file() -> Generator[None, None, Any]:
    """Extended attributes, a list of access rights, flags, times and inode of a file that is not open."""
    path = tempfile.mkstemp(dir="/var/tmp")[1]
    os.setxattr(path, "user.note", b"kept")
    rights = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", *one)
        for one in ((1, 6, ANYONE), (2, 4, 99), (4, 4, ANYONE), (16, 4, ANYONE), (32, 0, ANYONE))
    )
    os.setxattr(path, "system.posix_acl_access", rights)
    with open(path) as file:
        attempt(lambda: fcntl.ioctl(file, 0x40086602, struct.pack("L", 0x40)))
    os.link(path, f"{path}.link")

    def now() -> tuple[object, ...]:
        stat = os.stat(path)
        with open(path) as file:
            flags = attempt(lambda: struct.unpack("L", fcntl.ioctl(file, 0x80086601, bytes(8))))
        names = sorted(os.listxattr(path))
        return flags, names, [os.getxattr(path, one) for one in names], stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns

    before = now()
    yield
    return before == now(), os.stat(path).st_nlink, now()[0]


@kept
def position_in_folder() -> Generator[None, None, Any]:
    folder = tempfile.mkdtemp()
    for number in range(3000):
        Path(folder, str(number)).touch()
    listing = os.scandir(folder)
    seen = [one.name for one in itertools.islice(listing, 5)]
    yield
    seen += [one.name for one in listing]
    return len(seen), len(set(seen))


@kept
def signalled_input() -> Generator[None, None, Any]:
    """A pipe that sends a signal of choice (F_SETOWN, F_SETSIG, O_ASYNC)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [40])
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(reader, fcntl.F_SETSIG, 40)
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    yield
    os.write(writer, b"x")
    found = signal.sigtimedwait([40], 0)
    return found and found.si_signo, fcntl.fcntl(reader, fcntl.F_GETFL)


@kept
def signalled_socket() -> Generator[None, None, Any]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [41])
    here, there = socket.socketpair()
    fcntl.fcntl(here, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(here, fcntl.F_SETSIG, 41)
    fcntl.fcntl(here, fcntl.F_SETFL, os.O_ASYNC)
    yield
    there.send(b"x")
    found = signal.sigtimedwait([41], 0)
    return found and found.si_signo, fcntl.fcntl(here, fcntl.F_GETFL)


@reported("folder-notices")
def folder_notices() -> Generator[None, None, Any]:
    """dnotify (F_NOTIFY)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
    folder = tempfile.mkdtemp()
    file = os.open(folder, os.O_RDONLY)
    fcntl.fcntl(file, fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)
    yield
    Path(folder, "made").touch()
    return signal.SIGIO in signal.sigpending()


@kept
def locked_ranges() -> Generator[None, None, Any]:
    path = tempfile.mkstemp()[1]
    file = os.open(path, os.O_RDWR)
    fcntl.lockf(file, fcntl.LOCK_SH, 10, 0)
    fcntl.lockf(file, fcntl.LOCK_EX, 10, 20)

    def find() -> list[object]:
        other = os.open(path, os.O_RDWR)
        kinds = (fcntl.LOCK_SH, fcntl.LOCK_EX)
        return [
            attempt(lambda kind=kind, start=start: fcntl.lockf(other, kind | fcntl.LOCK_NB, 5, start))  # type: ignore[misc]
            for kind in kinds
            for start in (0, 12, 22, 30)
        ]

    return (yield from in_child(lambda: None, find))


@kept
def awaited_lock() -> Generator[None, None, Any]:
    """A child that waits for a lock."""
    path = tempfile.mkstemp()[1]
    file, (reader, writer) = os.open(path, os.O_RDWR), os.pipe()
    fcntl.flock(file, fcntl.LOCK_EX)
    pid = child(lambda: (fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX), os.write(writer, b"mine")))
    while not Path(f"/proc/{pid}/syscall").read_text().startswith("73 "):
        PAUSE.wait(0.01)
    yield
    fcntl.flock(file, fcntl.LOCK_UN)
    return os.read(reader, 9)


@kept
def sealed_memory_file() -> Generator[None, None, Any]:
    file = os.memfd_create("a name", os.MFD_ALLOW_SEALING)
    os.write(file, b"content")
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    yield
    return (
        os.pread(file, 9, 0),
        fcntl.fcntl(file, fcntl.F_GET_SEALS),
        attempt(lambda: os.ftruncate(file, 1)),
        os.readlink(f"/proc/self/fd/{file}"),
    )


@kept
def unwritable_memory_file() -> Generator[None, None, Any]:
    file = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.write(file, b"content")
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    yield
    return os.pread(file, 9, 0), attempt(lambda: os.pwrite(file, b"x", 0))


@kept
def named_pipe() -> Generator[None, None, Any]:
    path = f"{tempfile.mkdtemp()}/fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY)
    os.write(writer, b"unread")
    yield
    found = os.read(reader, 99), attempt(lambda: os.read(reader, 1))
    os.close(writer)
    return found, os.read(reader, 1)


@kept
def spliced_pipe() -> Generator[None, None, Any]:
    """A pipe with pages of a file and of another pipe (splice(2), tee(2))."""
    file, (reader, writer), (copied, copy) = temporary(), os.pipe(), os.pipe()
    os.write(file, b"a page" * 1000)
    os.splice(file, writer, 3000, offset_src=6)
    call("tee", reader, copy, 2000, 0)
    yield
    return hash(os.read(reader, 9000)) and len(os.read(copied, 9000)), os.lseek(file, 0, os.SEEK_CUR)


@kept
def packets_in_pipe_read() -> Generator[None, None, Any]:
    """A pipe of which nothing is unread, with the end of its writer."""
    reader, writer = os.pipe()
    os.close(writer)
    yield
    return os.read(reader, 1)


@kept
def files_of_the_kernel() -> Generator[None, None, Any]:
    """Files of /proc and devices."""
    status, version = os.open("/proc/self/status", os.O_RDONLY), os.open("/proc/version", os.O_RDONLY)
    os.read(version, 5)
    devices = [os.open(f"/dev/{name}", os.O_RDWR) for name in ("null", "zero", "full", "urandom")]
    yield
    null, zero, full, random = devices
    return (
        os.read(status, 4),
        os.read(version, 8),
        os.read(null, 1),
        os.read(zero, 2),
        attempt(lambda: os.write(full, b"x")),
        len(os.read(random, 3)),
    )


@kept
def terminal() -> Generator[None, None, Any]:
    """Settings, size, packet mode, exclusive use, and what waits in both directions."""
    master, slave = pty.openpty()
    modes = termios.tcgetattr(slave)
    modes[0], modes[3], modes[6][termios.VERASE] = 0, termios.ICANON, b"#"
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    termios.tcsetwinsize(slave, (33, 111))
    fcntl.ioctl(slave, termios.TIOCEXCL)
    os.write(master, b"ab#c\nrest"), os.write(slave, b"output")
    yield
    again = termios.tcgetattr(slave)
    exclusive = fcntl.ioctl(slave, 0x80045440, bytes(4))
    return os.read(slave, 9), os.read(master, 99), termios.tcgetwinsize(master), again == modes, exclusive


@kept
def packet_mode() -> Generator[None, None, Any]:
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCPKT, struct.pack("i", 1))
    os.write(slave, b"output")
    yield
    return os.read(master, 99), struct.unpack("i", fcntl.ioctl(master, 0x80045438, bytes(4)))


@kept
def controlling_terminal() -> Generator[None, None, Any]:
    master, slave = pty.openpty()
    os.write(master, b"")

    def make() -> None:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    found = yield from in_child(make, lambda: os.tcgetpgrp(slave) == os.getpid())
    os.write(master, b"\x03")
    return found


@kept
def removed_folder() -> Generator[None, None, Any]:
    def make() -> None:
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)

    return (yield from in_child(make, lambda: (attempt(os.getcwd), os.listdir("."), attempt(lambda: os.mkdir("x")))))


@kept
def replaced_file() -> Generator[None, None, Any]:
    """A removed file whose name another file has."""
    file, path = tempfile.mkstemp()
    os.write(file, b"former")
    os.unlink(path)
    Path(path).write_bytes(b"present")
    yield
    return os.pread(file, 9, 0), Path(path).read_bytes(), os.fstat(file).st_nlink


@kept
def linked_file() -> Generator[None, None, Any]:
    """An open file, one of whose two names was removed."""
    file, path = tempfile.mkstemp()
    os.link(path, f"{path}.other")
    os.unlink(path)
    yield
    os.write(file, b"written")
    return Path(f"{path}.other").read_bytes(), os.fstat(file).st_nlink


@kept
def shared_files() -> Generator[None, None, Any]:
    """A file and a lock in /dev/shm."""
    file = os.open("/dev/shm/object", os.O_RDWR | os.O_CREAT)
    os.write(file, b"shared")
    fcntl.lockf(file, fcntl.LOCK_EX)
    yield
    return Path("/dev/shm/object").read_bytes(), os.fstat(file).st_nlink, locked(file)


@kept
def unwritten_file() -> Generator[None, None, Any]:
    """Space that a file has reserved beyond its end (FALLOC_FL_KEEP_SIZE), and a mapped hole."""
    file = temporary()
    attempt(lambda: call("fallocate", file, 1, ctypes.c_long(0), ctypes.c_long(1 << 20)))
    os.pwrite(file, b"x", 1 << 16)
    yield
    return os.fstat(file).st_size, os.lseek(file, 0, os.SEEK_END), os.pread(file, 1, 1 << 16)


@kept
def process_files() -> Generator[None, None, Any]:
    """A file of another process in /proc, which has ended since."""
    pid = child(lambda: None)
    file = os.open(f"/proc/{pid}/comm", os.O_RDONLY)
    yield
    found = os.read(file, 9)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.lseek(file, 0, os.SEEK_SET)
    return found[:3], attempt(lambda: os.read(file, 9)) == ("ProcessLookupError", errno.ESRCH)
