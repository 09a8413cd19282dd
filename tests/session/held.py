"""A program that a session runs and that holds something which CRIU refuses. `python3 held.py KIND` opens an object of
that kind, then makes the file /srv/on. At SIGUSR1 it closes the object, makes the file /srv/off, and keeps running.
"""

import array
import ctypes
import os
import pty
import select
import signal
import socket
import sys
from collections.abc import Callable

OUTSIDE = "/mnt/outside"
"""A socket whose listener, outside of the session, sends an open file."""
IO_URING_SETUP, LANDLOCK_CREATE_RULESET = 425, 444


def system_call(*words: object) -> int:
    got: int = ctypes.CDLL(None, use_errno=True).syscall(*words)
    if got < 0:
        raise OSError(ctypes.get_errno(), f"system call {words[0]}")
    return got


def ruleset() -> int:
    return system_call(LANDLOCK_CREATE_RULESET, ctypes.byref(ctypes.c_uint64(1)), ctypes.c_size_t(8), 0)


def nothing() -> int:
    return os.open("/dev/null", os.O_RDONLY)


def io_uring() -> int:
    return system_call(IO_URING_SETUP, 1, ctypes.create_string_buffer(120))


def dev_tty() -> int:
    return os.open("/dev/tty", os.O_RDWR)


def sent_file() -> int:
    """Connect to the socket OUTSIDE. Return the descriptor of the file that its listener sent."""
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(OUTSIDE)
        _, ((_, _, sent),), _, _ = made.recvmsg(1, 100)
    return array.array("i", sent)[0]


def terminal() -> int:
    """Open a terminal whose foreground process group has ended. Its leader notices that when somebody presses Enter."""
    leader, master = pty.fork()
    if leader:
        os.read(master, 2)
        return master
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    command = os.fork()
    if not command:
        signal.pause()
    os.setpgid(command, command)
    os.tcsetpgrp(0, command)
    os.kill(command, signal.SIGKILL)
    os.waitpid(command, 0)
    os.write(1, b"on")
    select.select([0], [], [])
    os.tcsetpgrp(0, os.getpid())
    os.write(1, b"off")
    signal.pause()
    os._exit(0)


def press_enter(master: int) -> None:
    os.write(master, b"\n")
    printed = b""
    while b"off" not in printed:
        printed += os.read(master, 10)


def main(hold: Callable[[], int]) -> None:
    held = hold()

    def let_go(*_: object) -> None:
        (press_enter if hold is terminal else os.close)(held)
        os.close(os.open("/srv/off", os.O_CREAT))

    signal.signal(signal.SIGUSR1, let_go)
    os.close(os.open("/srv/on", os.O_CREAT))
    while True:
        signal.pause()


if __name__ == "__main__":
    main(globals()[sys.argv[1]])
