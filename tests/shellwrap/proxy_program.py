"""A program for tests of the proxy: `proxy_program.py REPORT COMMAND...` shows COMMAND on a new pty through the proxy.

At the end it writes the outcome or the exception to the file REPORT. If COMMAND is REPORT_RAISE, receiving the first
output raises an exception.
"""

import fcntl
import os
import pty
import struct
import sys
import termios

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from shellwrap import proxy
from shellwrap.detach_key import DetachKey

FAILING = "REPORT_RAISE"


class PtyRemote:
    """The proxy's other end: the master of a pty."""

    def __init__(self, master: int, *, fails: bool) -> None:
        os.set_blocking(master, False)
        self._master = master
        self._unsent = b""
        self._fails = fails
        self.repaints = 0

    def fileno(self) -> int:
        return self._master

    def receive(self) -> bytes | None:
        try:
            data = os.read(self._master, 65536)
        except BlockingIOError:
            return b""
        except OSError:  # EIO: the last slave is closed
            return None
        if self._fails:
            raise ConnectionError("the other end broke")
        return data

    def send(self, data: bytes) -> None:
        self._unsent += data

    def flush(self) -> int:
        try:
            self._unsent = self._unsent[os.write(self._master, self._unsent) :] if self._unsent else b""
        except BlockingIOError:
            return len(self._unsent)
        return len(self._unsent)

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def repaint(self) -> None:
        self.repaints += 1

    def due_s(self) -> float | None:
        return None


def main(report: str, command: list[str]) -> None:
    fails = command == [FAILING]
    pid, master = pty.fork()
    if pid == 0:
        words = ["echo", "x"] if fails else command
        os.execvp(words[0], words)
    remote = PtyRemote(master, fails=fails)
    try:
        outcome = proxy.run(remote, detach_key=DetachKey())
        words = f"{outcome.why.name} {outcome.signal} repaints={remote.repaints}"
    except ConnectionError as error:
        words = f"raised {error}"
    with open(report, "w") as file:
        file.write(words)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
