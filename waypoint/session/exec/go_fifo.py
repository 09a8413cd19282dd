"""The FIFO in which the shell waits at its marks S and E, until it is told to go on (docs/protocol.md, section 3)."""

import contextlib
import os

from waypoint.linux import terminals
from waypoint.session.exec.run_folder import RunFolder

_NAME = "go"


class GoFifo:
    """`open` it before each command; `close` it in the end."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._fd = -1

    def open(self) -> None:
        """Open it once; again if the session's user has replaced it. Raises OSError."""
        if not self.is_there:
            self.close()
            self._fd = self._folder.open_fifo(_NAME)

    @property
    def is_there(self) -> bool:
        """False if the session's user has taken it away, or replaced it: then the shell does not wait in it."""
        with contextlib.suppress(FileNotFoundError):
            return self._fd >= 0 and os.fstat(self._fd).st_ino == self._folder.inode(_NAME)
        return False

    def say(self, phase: str, nonce: str) -> None:
        """Let the shell go on from `phase` of the command with `nonce`."""
        with contextlib.suppress(BlockingIOError):  # full of lines: then the shell has not stopped reading
            os.write(self._fd, f"{phase} {nonce}\n".encode("ascii"))

    def say_again(self, phase: str, nonce: str) -> None:
        """A signal at the wrong moment may have made the shell lose a part of the line. One too many does no harm."""
        if terminals.unread_bytes(self._fd) == 0:
            self.say(phase, nonce)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
