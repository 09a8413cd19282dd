"""Holds large memory in a session, and answers questions about it on the FIFOs `ask` and `answer` in folder argv[1]."""

import ctypes
import hashlib
import mmap
import os
import sys

MIB = 1 << 20
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
SHARED_MIB = 2
"""Of the memory that a child changes while the parent lives."""


def fill(size: int, **kind: int) -> mmap.mmap:
    area = mmap.mmap(-1, size, flags=PRIVATE, **kind)
    for place in range(0, size, MIB):
        area[place : place + MIB] = hashlib.shake_128(b"%d" % place).digest(MIB)
    return area


def digest() -> str:
    return hashlib.sha256(big).hexdigest()


def in_child() -> str:
    """The digest that a child computes of memory that it has changed and put back."""
    done, told = os.pipe()
    if os.fork() == 0:
        old = big[:MIB]
        big[:MIB] = bytes(MIB)
        big[:MIB] = old
        os.write(told, digest().encode())
        os._exit(0)
    os.wait()
    return os.read(done, 100).decode()


def dropped() -> str:
    """What is in memory that was given back to the kernel: zeros, and nothing of an image."""
    fresh = big[2 * MIB : 4 * MIB]
    big.madvise(mmap.MADV_DONTNEED, 2 * MIB, 2 * MIB)
    found = big[2 * MIB : 4 * MIB]
    big[2 * MIB : 4 * MIB] = fresh
    return "zeros" if found == bytes(2 * MIB) else "other bytes"


def run() -> str:
    return str(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())


big = fill(80 * MIB)
code = fill(2 * MIB, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code[:6] = b"\xb8\x2a\0\0\0\xc3"  # return 42
acts = {"digest": digest, "child": in_child, "drop": dropped, "run": run}
os.chdir(sys.argv[1])
for name in ("answer", "ask"):
    os.mkfifo(name)
while True:
    with open("ask") as ask:
        word, _, rest = ask.read().strip().partition(" ")
    if word == "write":
        big[: len(rest)] = rest.encode()
    said = acts[word]() if word in acts else bytes(big[:8]).hex()
    with open("answer", "w") as answer:
        answer.write(said)
