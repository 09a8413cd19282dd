"""System calls that Python's `os` does not offer, through ctypes: libc's functions and syscall(2).

System call numbers differ between architectures. On others than x86-64 and aarch64, importing raises KeyError.
"""

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)

_NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "pivot_root": 155,
        "keyctl": 250,
        "add_key": 248,
        "perf_event_open": 298,
        "userfaultfd": 323,
        "setfsuid": 122,
        "setfsgid": 123,
        "seccomp": 317,
        "setgroups": 116,
        "kcmp": 312,
        "ioprio_set": 251,
        "ioprio_get": 252,
        "statx": 332,
    },
    "aarch64": {
        "pivot_root": 41,
        "keyctl": 219,
        "add_key": 217,
        "perf_event_open": 241,
        "userfaultfd": 282,
        "setfsuid": 151,
        "setfsgid": 152,
        "seccomp": 277,
        "setgroups": 159,
        "kcmp": 272,
        "ioprio_set": 30,
        "ioprio_get": 31,
        "statx": 291,
    },
}
# System calls that were added since Linux 5.1 have one number on every architecture.
_COMMON = {
    "clone3": 435,
    "openat2": 437,
    "faccessat2": 439,
    "pidfd_getfd": 438,
    "pidfd_send_signal": 424,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "open_tree": 428,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
}
MACHINE = os.uname().machine
SYSCALLS = {**_NUMBERS[MACHINE], **_COMMON}


def check(result: int, call: str, path: str | None = None) -> int:
    """Return `result`. If `result` is negative, raise OSError from errno, with `call` and `path` in its message."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}", path)
    return result


def syscall(name: str, *args: int | bytes | ctypes.Array[ctypes.c_char] | None, path: str | None = None) -> int:
    """Make the system call `name`; integers are passed as 64-bit values."""
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result: int = _libc.syscall(ctypes.c_long(SYSCALLS[name]), *wide)
    return check(result, name, path)


def call(name: str, *args: int | bytes | None, path: str | None = None) -> int:
    """Call libc's function `name`; integers are passed as 64-bit values."""
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result: int = getattr(_libc, name)(*wide)
    return check(result, name, path)


def get_option(fd: int, level: int, number: int, buffer: bytearray) -> int:
    """Call getsockopt(2) for an option that also reads `buffer`; return how many bytes of it the answer takes."""
    content = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    size = ctypes.c_uint32(len(buffer))
    check(_libc.getsockopt(fd, level, number, content, ctypes.byref(size)), "getsockopt")
    return size.value
