"""Memory, and what processes share by it; System V objects."""

import ctypes
import errno
import mmap
import os
import re
import signal
import struct
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.differences.objects import LIBC, attempt, call, child, in_child, kept, reported

PAGE = 4096


def flags_of(mapped: mmap.mmap) -> set[str]:
    """The kernel's flags of a mapping (VmFlags in proc_pid_smaps(5)), without those that only it changes."""
    start = address(mapped)
    for part in re.split(r"\n(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text()):
        begin, end = (int(one, 16) for one in part.split(" ", 1)[0].split("-"))
        if begin <= start < end:
            return {*part[part.index("VmFlags:") + 8 :].split()} - {"sd", "uw", "ac"}
    return set()


def address(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def private(pages: int = 4) -> mmap.mmap:
    return mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


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


@kept
def advice() -> Generator[None, None, Any]:
    """madvise(2): not to fork, not to dump, to wipe in children, to merge, huge pages, none."""
    # Neighbours of other kinds, so that the kernel merges none of them.
    made = [private() for _ in range(6)]
    for one, what in zip(made, (10, 16, 18, 12, 14, 15), strict=True):
        one[0] = 7
        attempt(lambda one=one, what=what: one.madvise(what))  # type: ignore[misc]
    yield
    wanted = {"dc", "dd", "wf", "mg", "hg", "nh"}
    return [(sorted(flags_of(one) & wanted), one[0]) for one in made]


@kept
def locked_memory() -> Generator[None, None, Any]:
    made = private()
    call("mlock", ctypes.c_void_p(address(made)), ctypes.c_size_t(PAGE))
    yield
    return "lo" in flags_of(made)


@kept
def all_memory_locked() -> Generator[None, None, Any]:
    """mlockall(2), also of what is mapped later."""

    def make() -> None:
        call("mlockall", 2)

    return (yield from in_child(make, lambda: "lo" in flags_of(private(2))))


@kept
def wiped_in_children() -> Generator[None, None, Any]:
    made = private()
    made[0] = 7
    made.madvise(18)
    yield
    reader, writer = os.pipe()
    child(lambda: os.write(writer, made[:1]))
    return os.read(reader, 1), made[0]


@kept
def shared_memory() -> Generator[None, None, Any]:
    """Between a process and its child, without a file."""
    made = mmap.mmap(-1, 2 * PAGE)
    made[0] = 7
    (asked, ask), (answer, answered) = os.pipe(), os.pipe()
    child(lambda: (os.read(asked, 1), os.write(answered, made[:2])))
    yield
    made[1] = 8
    os.write(ask, b"?")
    return os.read(answer, 2)


@kept
def changed_copy_of_file() -> Generator[None, None, Any]:
    file, path = tempfile.mkstemp()
    os.write(file, b"a" * 3 * PAGE)
    made = mmap.mmap(file, 3 * PAGE, flags=mmap.MAP_PRIVATE)
    made[PAGE : PAGE + 2] = b"MY"
    yield
    os.pwrite(file, b"new", 2 * PAGE)
    return made[:1], made[PAGE : PAGE + 3], made[2 * PAGE : 2 * PAGE + 3], os.path.exists(path)


@kept
def mapped_removed_file() -> Generator[None, None, Any]:
    file, path = tempfile.mkstemp()
    os.write(file, b"mapped" + bytes(2 * PAGE))
    made = mmap.mmap(file, 2 * PAGE)
    os.unlink(path)
    yield
    made[:3] = b"MAP"
    return os.pread(file, 6, 0)


def fault(place: int) -> int:
    """How a child ends that writes there."""
    pid = child(lambda: ctypes.memset(place, 1, 1) and os.kill(os.getpid(), signal.SIGTERM))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@kept
def protected_memory() -> Generator[None, None, Any]:
    made = private()
    made[0] = 7
    start = address(made)
    call("mprotect", ctypes.c_void_p(start), ctypes.c_size_t(PAGE), 0)
    call("mprotect", ctypes.c_void_p(start + PAGE), ctypes.c_size_t(PAGE), 1)
    yield
    found = [fault(start + page * PAGE) for page in range(3)]
    call("mprotect", ctypes.c_void_p(start), ctypes.c_size_t(PAGE), 3)
    return found, made[0]


@kept
def guarded_memory() -> Generator[None, None, Any]:
    """A guard page (MADV_GUARD_INSTALL)."""
    made = private()
    made[0] = 7
    made.madvise(102, PAGE, PAGE)
    yield
    return [fault(address(made) + page * PAGE) for page in range(3)], made[0]


@kept
def kinds_of_mappings() -> Generator[None, None, Any]:
    """A mapping that grows down, and one that reserves no memory."""
    usual = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    made = [mmap.mmap(-1, 8 * PAGE, flags=usual | kind) for kind in (0x100, 0x4000)]
    for one in made:
        one[0] = 7
    yield
    return [(sorted(flags_of(one) & {"gd", "nr"}), one[0]) for one in made]


@kept
def heap() -> Generator[None, None, Any]:
    LIBC.sbrk.restype = ctypes.c_void_p
    start = LIBC.sbrk(ctypes.c_ssize_t(1 << 20))
    ctypes.memset(start, 7, 9)
    yield
    after = LIBC.sbrk(ctypes.c_ssize_t(0))
    return after - start >= 1 << 20, ctypes.string_at(start, 9)


@kept
def robust_mutex() -> Generator[None, None, Any]:
    """A mutex whose holder is killed later."""
    shared = mmap.mmap(-1, PAGE)
    place = address(shared)
    kind = ctypes.create_string_buffer(64)
    LIBC.pthread_mutexattr_init(kind)
    LIBC.pthread_mutexattr_setpshared(kind, 1)
    LIBC.pthread_mutexattr_setrobust(kind, 1)
    LIBC.pthread_mutex_init(ctypes.c_void_p(place), kind)
    reader, writer = os.pipe()
    pid = child(lambda: (LIBC.pthread_mutex_lock(ctypes.c_void_p(place)), os.write(writer, b".")))
    os.read(reader, 1)
    yield
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return LIBC.pthread_mutex_trylock(ctypes.c_void_p(place)) == errno.EOWNERDEAD


@kept
def system_v_memory() -> Generator[None, None, Any]:
    """Attached and removed; and another one that nobody has attached."""
    attach = LIBC.shmat
    attach.restype = ctypes.c_void_p
    removed, other = call("shmget", 0, 5000, 0o1640), call("shmget", 0x7701, 9000, 0o1604)
    place = attach(removed, None, 0)
    ctypes.memset(place, 65, 3)
    call("shmctl", removed, 0, None)
    there = attach(other, None, 0)
    ctypes.memset(there, 66, 3)
    call("shmdt", ctypes.c_void_p(there))
    yield
    again = attach(call("shmget", 0x7701, 9000, 0), None, 0o10000)
    rights = [line.split()[2] for line in Path("/proc/sysvipc/shm").read_text().splitlines() if " 9000 " in line]
    return (
        ctypes.string_at(place, 4),
        ctypes.string_at(again, 4),
        rights,
        call("shmget", 0x7701, 1, 0) == other,
    )


@kept
def message_queue() -> Generator[None, None, Any]:
    queue = call("msgget", 0x7702, 0o1642)
    for kind, text in ((3, b"third"), (1, b"first"), (3, b"again")):
        call("msgsnd", queue, struct.pack("q", kind) + text, ctypes.c_size_t(len(text)), 0)
    yield
    queue, buffer = call("msgget", 0x7702, 0), ctypes.create_string_buffer(64)
    found = []
    for kind in (3, 0, 0):
        size = call("msgrcv", queue, buffer, ctypes.c_size_t(50), ctypes.c_long(kind), 0o4000)
        found.append((struct.unpack_from("q", buffer)[0], buffer.raw[8 : 8 + size]))
    return found


@kept
def semaphores() -> Generator[None, None, Any]:
    """Values, and a child that waits."""
    number = call("semget", 0x7703, 3, 0o1600)
    for place, value in enumerate((0, 5, 9)):
        call("semctl", number, place, 16, value)
    (reader, writer) = os.pipe()
    child(lambda: (call("semop", number, struct.pack("HhH", 0, -1, 0), 1), os.write(writer, b"taken")))
    while call("semctl", number, 0, 14) == 0:  # GETNCNT
        pass
    yield
    values = [call("semctl", number, place, 12) for place in range(3)]
    call("semop", number, struct.pack("HhH", 0, 1, 0), 1)
    return values, os.read(reader, 9)


@reported("message-queues")
def closed_message_queue() -> Generator[None, None, Any]:
    """A POSIX message queue that nobody has open."""
    queue = call("mq_open", b"/queue", os.O_CREAT | os.O_RDWR, 0o600, None)
    call("mq_send", queue, b"message", ctypes.c_size_t(7), 0)
    os.close(queue)
    yield
    return attempt(lambda: call("mq_open", b"/queue", os.O_RDONLY) > 0)


@kept
def posix_semaphore() -> Generator[None, None, Any]:
    LIBC.sem_open.restype = ctypes.c_void_p
    place = LIBC.sem_open(b"/object", os.O_CREAT, 0o600, 3)
    call("sem_trywait", ctypes.c_void_p(place))
    yield
    value = ctypes.c_int()
    call("sem_getvalue", ctypes.c_void_p(place), ctypes.byref(value))
    other = LIBC.sem_open(b"/object", 0)
    call("sem_post", ctypes.c_void_p(place))
    call("sem_getvalue", ctypes.c_void_p(other), ctypes.byref(value))
    return value.value
