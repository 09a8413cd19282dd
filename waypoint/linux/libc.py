"""System calls that Python's `os` does not offer, through libc's `syscall(2)` and friends.

Numbers are per architecture; x86-64 and aarch64 are known, anything else raises at import.
"""

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)

_NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {"pivot_root": 155, "keyctl": 250, "add_key": 248},
    "aarch64": {"pivot_root": 41, "keyctl": 219, "add_key": 217},
}
# From Linux 5.1 on new calls have one number on every architecture.
_COMMON = {
    "clone3": 435,
    "openat2": 437,
    "pidfd_getfd": 438,
    "pidfd_send_signal": 424,
    "move_mount": 429,
    "open_tree": 428,
}
MACHINE = os.uname().machine
SYSCALLS = {**_NUMBERS[MACHINE], **_COMMON}


def check(result: int, call: str, path: str | None = None) -> int:
    """Return `result`, or raise OSError from errno if it is negative, naming the call and the path."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}", path)
    return result


def syscall(name: str, *args: int | bytes | ctypes.Array[ctypes.c_char] | None, path: str | None = None) -> int:
    """Call `name` with `args`; integers go as 64-bit values."""
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result: int = _libc.syscall(ctypes.c_long(SYSCALLS[name]), *wide)
    return check(result, name, path)


def call(name: str, *args: int | bytes | None, path: str | None = None) -> int:
    """Call libc's function `name`; integers go as 64-bit values (unsigned long in every call used here)."""
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result: int = getattr(_libc, name)(*wide)
    return check(result, name, path)
