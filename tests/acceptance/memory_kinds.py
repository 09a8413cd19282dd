"""Runs in a session: one kind of program with much memory, which it changes when asked. It answers with the digests.

    python3 memory_kinds.py KIND FOLDER

KIND: a function below. Reads a line from FOLDER/ask: "change" or "report"; writes FOLDER/answer.
"""

import ctypes
import hashlib
import json
import os
import struct
import sys
import threading
from collections.abc import Callable

from memory_writer import (
    MAYMOVE,
    MIB,
    MOVE_FIXED,
    NONE,
    PAGE,
    PRIVATE,
    READ,
    WRITE,
    at,
    check,
    libc,
    new,
    pointer,
    write,
)

GUARD = 102
SIZE = 72 * MIB
PIECE = 128 << 10
USERFAULTFD, IO_SETUP = 323, 206
NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
KILL, ALLOW = 0x80000000, 0x7FFF0000
Change = Callable[[], object]


def rewrite() -> None:
    """Write so much that all is copied anew."""
    write("plain", "rewritten", last=SIZE // PAGE // 2)


def plain() -> Change:
    return rewrite


def pieces() -> Change:
    """Mappings that become too small to be copied."""
    first = at["plain"][0] + SIZE - 8 * MIB

    def change() -> None:
        for place in range(first, at["plain"][0] + SIZE, 2 * PIECE):
            check(libc.mprotect(pointer(place), ctypes.c_long(PIECE), READ))
        rewrite()

    return change


def guards() -> Change:
    place = at["plain"][0] + SIZE - MIB
    at["plain"] = at["plain"][0], SIZE - MIB
    if libc.madvise(pointer(place), ctypes.c_long(16 * PAGE), GUARD):  # before Linux 6.13
        check(libc.mprotect(pointer(place), ctypes.c_long(16 * PAGE), NONE))
    return rewrite


def grown() -> Change:
    """A mapping that grows in its place, and then moves twice."""
    start, size = new(32 * MIB), 4 * MIB
    check(libc.munmap(pointer(start + size), ctypes.c_long(28 * MIB)))
    at["grown"] = start, size
    write("grown", "filled")

    def remap(flags: int, *place: ctypes.c_void_p) -> None:
        whole = ctypes.c_long(2 * size)
        old = ctypes.c_long(at["grown"][1])
        at["grown"] = check(libc.mremap(pointer(at["grown"][0]), old, whole, flags, *place)), 2 * size

    def change() -> None:
        remap(MAYMOVE)
        write("grown", "grown", first=size // PAGE, step=3)
        for _ in range(2):
            remap(MAYMOVE | MOVE_FIXED, pointer(new(2 * size)))
            write("grown", "moved", step=5)
        rewrite()

    return change


def asynchronous() -> Change:
    check(libc.syscall(IO_SETUP, 8, ctypes.byref(ctypes.c_ulong())))
    return rewrite


def in_file() -> Change:
    fd = os.memfd_create("memory")
    os.ftruncate(fd, 8 * MIB)
    for name, flags in ("mine", PRIVATE), ("ours", 1):
        start = libc.mmap(None, ctypes.c_long(8 * MIB), READ | WRITE, flags, fd, ctypes.c_long(0))
        at[name] = check(start), 8 * MIB
        write(name, "filled", step=3)

    def change() -> None:
        for name in ("mine", "ours"):
            write(name, "changed", first=1, step=7)
        rewrite()

    return change


def filtered() -> Change:
    """The filter ends a program that creates a userfaultfd."""
    code = b"".join(struct.pack("HBBI", *one) for one in ((0x20, 0, 0, 0), (0x15, 0, 1, USERFAULTFD), (6, 0, 0, KILL)))
    code += struct.pack("HBBI", 6, 0, 0, ALLOW)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer)), 16)
    check(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
    check(libc.prctl(SECCOMP, FILTER, program, 0, 0))
    return rewrite


def writing() -> Change:
    """A thread writes at all times, and faster than memory is copied: the first page has a count, and page N the last
    count that was N modulo the number of pages.
    """
    area, pages = new(SIZE), SIZE // PAGE
    count = ctypes.c_uint64.from_address(area)
    is_still = threading.Lock()

    def work() -> None:
        while True:
            with is_still:
                for number in range(count.value + 1, count.value + 1001):
                    count.value = number
                    ctypes.c_uint64.from_address(area + number % pages * PAGE + 8).value = number

    def verify() -> None:
        with is_still:
            for number in range(max(0, count.value - pages) + 1, count.value + 1):
                found = ctypes.c_uint64.from_address(area + number % pages * PAGE + 8).value
                assert found == number, (found, number)
        rewrite()

    threading.Thread(target=work, daemon=True).start()
    return verify


def poked() -> Change:
    """Another process writes to the memory."""

    def change() -> None:
        content = ctypes.create_string_buffer(b"poked" * 10000, 50000)
        local = struct.pack("QQ", ctypes.addressof(content), 50000)
        for place in range(at["plain"][0] + 100, at["plain"][0] + SIZE - MIB, MIB):
            parent = os.getpid()
            if not (child := os.fork()):
                written = libc.process_vm_writev(parent, local, 1, struct.pack("QQ", place, 50000), 1, 0)
                os._exit(written != 50000)
            assert os.waitpid(child, 0)[1] == 0

    return change


def main() -> None:
    kind, folder = sys.argv[1:]
    os.chdir(folder)
    for name in ("ask", "answer"):
        os.mkfifo(f"{kind}-{name}")
    at["plain"] = new(SIZE), SIZE
    write("plain", "filled")
    change = globals()[kind]()
    open(f"{kind}-ready", "w").close()
    while True:
        with open(f"{kind}-ask") as file:
            word = file.read().strip()
        if word == "change":
            change()
        digests = {name: hashlib.sha256(ctypes.string_at(*place)).hexdigest() for name, place in at.items()}
        with open(f"{kind}-answer", "w") as file:
            json.dump(digests, file)


if __name__ == "__main__":
    main()
