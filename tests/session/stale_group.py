"""A terminal whose foreground process group has ended, and a process of the machine that gets the group's number."""

import array
import contextlib
import ctypes
import os
import signal
import struct
from collections.abc import Iterator

# PyDLL keeps the interpreter's lock during the call, which the child would wait for.
_python = ctypes.PyDLL(None, use_errno=True)
_CLONE3 = ctypes.c_long(435)

LEAVE = """
import os, signal, sys, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = os.fork()
if not child:
    time.sleep(1000)
os.setpgid(child, child)
os.tcsetpgrp(0, child)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print("left", flush=True)
while True:
    signal.pause()
"""
"""A program that makes a child the foreground group of its terminal (stdin), and ends the child."""


@contextlib.contextmanager
def process_with_number(number: int) -> Iterator[int]:
    """Start a process of the machine whose pid and process group have this number, which must be free. Yield a pidfd.
    The process must still run at the end of the block; the block then ends it by its group's number, as a control.
    """
    wanted = array.array("i", [number])
    arguments = struct.pack("=11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, wanted.buffer_info()[0], 1, 0)
    pid = _python.syscall(_CLONE3, arguments, ctypes.c_long(len(arguments)))
    if pid < 0:
        raise OSError(ctypes.get_errno(), f"cannot start a process with the number {number}")
    if pid == 0:
        os.setpgid(0, 0)
        for each in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)
        os.execv("/bin/sleep", ["sleep", "1000"])
    fd = os.pidfd_open(number)
    try:
        yield fd
        os.killpg(number, signal.SIGTERM)
        ended = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        assert ended.si_status == signal.SIGTERM, "the process got another signal before the control"
    finally:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.waitpid(number, 0)
        os.close(fd)
