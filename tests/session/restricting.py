"""Programs that restrict themselves. `python3 restricting.py NAME` does so in a second thread, makes /srv/on, and waits
for /srv/go. The thread then prints whether it can do what the restriction forbids.
"""

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Callable

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF, MSEAL = 444, 446, 462
WRITE_FILE = 2
PR_SET_NO_NEW_PRIVS, PR_SET_MDWE = 38, 65
ZERO, ONE = ctypes.c_ulong(0), ctypes.c_ulong(1)


def check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def write() -> None:
    with open("/srv/written", "w"):
        pass


def no_new_privs() -> Callable[[], object]:
    check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, ONE, ZERO, ZERO, ZERO))
    return write


def landlock() -> Callable[[], object]:
    no_new_privs()
    rules = check(LIBC.syscall(LANDLOCK_CREATE_RULESET, WRITE_FILE.to_bytes(8, "little"), ctypes.c_size_t(8), 0))
    check(LIBC.syscall(LANDLOCK_RESTRICT_SELF, rules, 0))
    os.close(rules)
    return write


def mseal() -> Callable[[], object]:
    size, flags = ctypes.c_size_t(mmap.PAGESIZE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    place = ctypes.c_void_p(LIBC.mmap(None, size, mmap.PROT_READ, flags, -1, ZERO))
    check(LIBC.syscall(MSEAL, place, size, ZERO))
    return lambda: check(LIBC.mprotect(place, size, mmap.PROT_READ | mmap.PROT_WRITE))


def mdwe() -> Callable[[], object]:
    check(LIBC.prctl(PR_SET_MDWE, ONE, ZERO, ZERO, ZERO))
    return lambda: mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)


def main() -> None:
    forbidden = globals()[sys.argv[1]]()
    tasks, files = os.listdir("/proc/self/task"), os.listdir("/proc/self/fd")
    os.mkfifo("/srv/go")
    os.mkdir("/srv/on")
    with open("/srv/go"):
        pass
    assert (os.listdir("/proc/self/task"), os.listdir("/proc/self/fd")) == (tasks, files)
    try:
        forbidden()
        print("allowed", flush=True)
    except PermissionError:
        print("refused", flush=True)


threading.Thread(target=main).start()
