"""Writing to a pipe that a task has open (pipe(7))."""

import fcntl
import os


def write_more(tid: int, fd: int, content: bytes, most_bytes: int) -> int:
    """Enlarge the unnamed pipe `fd` of the task by the size of `content`, and write `content` without waiting. Return
    the number of written bytes; 0 if the pipe would be larger than `most_bytes`. Raises OSError.
    """
    pipe = os.open(f"/proc/{tid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        enlarged = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) + len(content)
        if enlarged > most_bytes:
            return 0
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, enlarged)
        return os.write(pipe, content)
    finally:
        os.close(pipe)
