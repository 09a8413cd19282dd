"""Runs in a session: has memory of many kinds, changes it when asked, and answers with the digests of all of it.

    python3 memory_writer.py FOLDER [CONTENT]

Reads one word from FOLDER/ask: a function below; writes FOLDER/answer. Its child has FOLDER/child.
"""

import contextlib
import ctypes
import hashlib
import json
import mmap
import os
import sys

PAGE, MIB = 4096, 1 << 20
NONE, READ, WRITE = 0, 1, 2
PRIVATE, SHARED, FIXED, ANONYMOUS = 2, 1, 0x10, 0x20
MAYMOVE, MOVE_FIXED, DONTNEED, FREE, HUGE = 1, 2, 4, 8, 14
libc = ctypes.CDLL(None, use_errno=True)
for _name in ("mmap", "mremap"):
    getattr(libc, _name).restype = ctypes.c_void_p
at: dict[str, tuple[int, int]] = {}


def new(size: int, place: int = 0, flags: int = PRIVATE) -> int:
    place = ctypes.c_void_p(place)
    made = libc.mmap(place, ctypes.c_long(size), READ | WRITE, flags | ANONYMOUS | (FIXED if place else 0), -1, 0)
    assert made not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return made


def check(result: int) -> int:
    assert result not in (-1, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return result


def pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


def write(name: str, text: str, first: int = 0, step: int = 1, last: int | None = None) -> None:
    """Write each `step`-th page of the memory `name` anew."""
    start, size = at[name]
    for page in range(first, size // PAGE if last is None else last, step):
        content = f"{name} {text} {page}\n".encode()
        ctypes.memmove(pointer(start + page * PAGE + 8 * (page % 64)), content, len(content))


def fill() -> None:
    kinds = ("read", "dropped", "freed", "replaced", "moved", "over", "under", "hidden", "parts")
    for name, size in {"plain": 72, **dict.fromkeys(kinds, 1)}.items():
        at[name] = new(size * MIB), size * MIB
        new(PAGE)  # so that no two are merged
    at["huge"] = (new(4 * MIB) + 2 * MIB - 1) // (2 * MIB) * 2 * MIB, 2 * MIB
    check(libc.madvise(pointer(at["huge"][0]), ctypes.c_long(2 * MIB), HUGE))
    at["shared"] = new(MIB, flags=SHARED), MIB
    for name in at:
        write(name, "filled")
    hide(NONE)


def hide(rights: int) -> None:
    check(libc.mprotect(pointer(at["hidden"][0]), ctypes.c_long(at["hidden"][1]), rights))


def change() -> None:
    write("plain", "changed", step=97)
    write("huge", "changed", first=400, step=700)
    write("shared", "changed", step=5)
    with open("/dev/urandom", "rb", buffering=0) as source:  # the kernel writes
        target = (ctypes.c_char * (3 * PAGE)).from_address(at["read"][0] + 7 * PAGE)
        assert source.readinto(target) == 3 * PAGE
    start, size = at["dropped"]
    check(libc.madvise(pointer(start), ctypes.c_long(size // 2), DONTNEED))
    write("dropped", "again", first=3, step=11, last=100)
    start, size = at["replaced"]
    check(libc.munmap(pointer(start), ctypes.c_long(size)))
    new(size, start)
    write("replaced", "anew", step=3)
    start, size = at["moved"]
    at["moved"] = check(libc.mremap(pointer(start), ctypes.c_long(size), ctypes.c_long(2 * size), MAYMOVE)), 2 * size
    write("moved", "moved", first=size // PAGE, step=2)
    start, size = at.pop("over")
    target = at["under"][0]
    flags = MAYMOVE | MOVE_FIXED
    check(libc.mremap(pointer(start), ctypes.c_long(size), ctypes.c_long(size), flags, pointer(target)))
    start, size = at["parts"]
    check(libc.munmap(pointer(start + size // 2), ctypes.c_long(size // 4)))
    new(size // 4, start + size // 2)
    check(libc.mprotect(pointer(start), ctypes.c_long(PAGE * 16), READ))
    hide(READ | WRITE)
    write("hidden", "changed", step=9)
    hide(NONE)
    if not os.fork():
        write("plain", "of the child", step=51)
        start, size = at["freed"]
        check(libc.munmap(pointer(start), ctypes.c_long(size)))
        new(size, start)
        serve("child")


def change_again() -> None:
    write("plain", "changed again", first=1, step=101)
    write("replaced", "anew again", step=7)
    write("under", "written", step=13)
    write("parts", "written", first=120, step=3, last=200)
    with open("/dev/urandom", "rb", buffering=0) as source:
        target = (ctypes.c_char * PAGE).from_address(at["read"][0] + 100 * PAGE + 100)
        assert source.readinto(target) == PAGE


def execute() -> None:
    """Become another program, whose memory is at any addresses."""
    os.execv(sys.executable, [sys.executable, *sys.argv[:2], "executed"])


def report() -> None:
    """Change nothing."""


def digests() -> dict[str, str]:
    hide(READ)
    found = {name: hashlib.sha256(ctypes.string_at(*place)).hexdigest() for name, place in at.items()}
    hide(NONE)
    return found


def serve(name: str) -> None:
    ask, answer = (f"{sys.argv[1]}/{name}-{what}" for what in ("ask", "answer"))
    for path in (answer, ask):
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path)
    while True:
        with open(ask) as file:
            word = file.read().strip()
        globals()[word]()
        with open(answer, "w") as file:
            json.dump(digests(), file)


if __name__ == "__main__":
    assert mmap.PAGESIZE == PAGE
    fill()
    if sys.argv[2:]:
        write("plain", sys.argv[2])
        open(f"{sys.argv[1]}/executed", "w").close()
    serve("first")
