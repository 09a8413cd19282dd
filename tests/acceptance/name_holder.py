"""A program that runs inside a session: it holds open files whose names it has removed.

It makes the folder /root/held, and writes `ready` to /root/held.log. When the FIFO /root/held.ask is opened, it writes
to its open files and replaces the log by one line for each kind of file.
"""

import ctypes
import os
import socket

ROOT, LOG, ASK = "/root/held", "/root/held.log", "/root/held.ask"
WATCH, LONG = f"{ROOT}/watched", "n" * 250
CHANGES = 0x3C6  # IN_MODIFY, IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE


def make(path: str, *, fifo: bool = False) -> int:
    """A new open file, or an open FIFO."""
    if fifo:
        os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_CREAT)


def relink(path: str, other: str, *, fifo: bool = False) -> int:
    """A new open file whose name `path` was removed and that has the name `other`."""
    fd = make(path, fifo=fifo)
    os.link(path, other)
    os.unlink(path)
    return fd


def removed(path: str) -> int:
    """A new open file without a name. Its folders are removed, too, as far as they are empty."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = make(path)
    os.write(fd, b"kept")
    os.unlink(path)
    if os.path.dirname(path) != ROOT:
        os.removedirs(os.path.dirname(path))
    return fd


def read(path: str) -> str:
    with open(path) as file:
        return file.read()


def say(lines: list[str]) -> None:
    with open(f"{LOG}.new", "w") as file:
        file.writelines(f"{line}\n" for line in lines)
    os.rename(f"{LOG}.new", LOG)


os.makedirs(f"{WATCH}/below")
open(f"{ROOT}/stays", "w").close()
nameless = [removed(f"{ROOT}/{name}") for name in (LONG, "file/f", "link/deep/f", "gone/f", "dangling/f")]
open(f"{ROOT}/file", "w").close()
os.symlink("/var", f"{ROOT}/link")
os.symlink("/nowhere", f"{ROOT}/dangling")
linked = [relink(f"{WATCH}/{name}", f"{WATCH}/below/{name}") for name in ("a", "n" * 255)]
beside = relink(f"{WATCH}/b", f"{WATCH}/c")
fifo = relink(f"{WATCH}/fifo", f"{WATCH}/below/fifo", fifo=True)
unnamed = os.open(WATCH, os.O_RDWR | os.O_TMPFILE)
os.link(f"/proc/self/fd/{unnamed}", f"{WATCH}/t", src_dir_fd=unnamed, follow_symlinks=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"{ROOT}/socket")
listener.listen()
os.unlink(f"{ROOT}/socket")

libc = ctypes.CDLL(None)
watcher = libc.inotify_init1(os.O_NONBLOCK)
libc.inotify_add_watch(watcher, WATCH.encode(), CHANGES)
times = os.stat(WATCH).st_mtime_ns
os.mkfifo(ASK)
say(["ready"])
open(ASK).close()  # waits until it is opened for writing

try:
    notices = os.read(watcher, 4096)
except BlockingIOError:
    notices = b""
same_time = os.stat(WATCH).st_mtime_ns == times
for fd in (*linked, beside, unnamed, fifo):
    os.write(fd, b"written")
reader = os.open(f"{WATCH}/below/fifo", os.O_RDONLY | os.O_NONBLOCK)
say(
    [
        f"watched: {'changed' if notices or not same_time else 'unchanged'}",
        f"nameless: {' '.join(os.pread(fd, 9, 0).decode() for fd in nameless)}",
        f"linked: {' '.join(read(f'{WATCH}/{name}') for name in ('below/a', 'below/' + 'n' * 255, 'c', 't'))}",
        f"links: {' '.join(str(os.fstat(fd).st_nlink) for fd in (*nameless, *linked, beside, unnamed, fifo))}",
        f"fifo: {os.read(reader, 9).decode()}",
        f"names: {' '.join(sorted(os.listdir(ROOT) + os.listdir(WATCH)))}",
    ]
)
