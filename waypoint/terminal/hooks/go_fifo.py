"""The FIFO `go`: after the shell has printed the mark S (a command starts) or E (a command has ended), it reads from
this FIFO, and so waits until the daemon lets it continue (docs/protocol.md, section 3).
"""

import contextlib
import os

from waypoint.linux.tty import terminals
from waypoint.terminal.hooks.run_folder import RunFolder

_NAME = "go"


class GoFifo:
    """The daemon's end of the FIFO. `open` it before each command; `close` it when the daemon releases the session."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._fd = -1

    def open(self) -> None:
        """Open the FIFO, if it is not open or the session's user has replaced it."""
        if not self.is_there:
            self.close()
            self._fd = self._folder.open_fifo(_NAME)

    @property
    def is_there(self) -> bool:
        """True if the FIFO is open and still in the folder. If the session's user has removed or replaced the FIFO, the
        shell does not wait in it.
        """
        with contextlib.suppress(FileNotFoundError):
            return self._fd >= 0 and os.fstat(self._fd).st_ino == self._folder.inode(_NAME)
        return False

    def say(self, phase: str, nonce: str) -> None:
        """Let the shell continue after `phase` (`S`, `E` or `E+`) of the command with `nonce`."""
        # `open` again: the command may have replaced the FIFO, and the shell then waits in the new FIFO.
        with contextlib.suppress(OSError):  # BlockingIOError: a full FIFO holds enough lines already
            self.open()
            os.write(self._fd, f"{phase} {nonce}\n".encode("ascii"))

    def say_again(self, phase: str, nonce: str) -> None:
        """Repeat `say` if the FIFO is empty, since a signal may have made the shell lose a part of the line. If the
        shell reads the same line twice, it ignores the second.
        """
        if not self.is_there or terminals.unread_bytes(self._fd) == 0:
            self.say(phase, nonce)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
