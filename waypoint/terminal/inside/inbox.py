"""The request files in a session's folder: finds waiting requests, reads them, and opens the FIFOs for the answers.

`a.<id>` is the FIFO for an answer, `r.<id>` a request that waits, `w.<id>` a request that is being served. `c.<id>` is
a captured request: it was waiting or being served when the session was captured from which this session was restored.

The folder belongs to the session's user. Names are therefore checked, links are not followed, and reads are limited.
All methods block, and the session can make each of them slow, by creating very many names or by holding the folder's
lock. Call them in a thread for which nothing else waits.
"""

import os
import re
import time
from typing import NamedTuple

from waypoint.terminal.hooks.run_folder import RunFolder

MAX_REQUEST_BYTES = 4096
_NAME = re.compile(r"[crw]\.([0-9]{1,10}\.[0-9]{1,4})")


class TakenRequest(NamedTuple):
    """A request that is being served. `text`: its content, at most MAX_REQUEST_BYTES and one byte more, or the error
    that prevented reading the file.
    """

    ident: str
    text: bytes | OSError


class Taken(NamedTuple):
    """The result of `Inbox.take`. `are_more`: further requests wait. `cost_s`: the processor time that `take` used."""

    requests: list[TakenRequest]
    are_more: bool
    cost_s: float


def mark_captured(folder_fd: int) -> None:
    """Mark every request in the folder `folder_fd` as captured, so that `Inbox.take` skips it. Call this on the files
    of a copied or restored session before any of its processes runs. Reads the whole folder, which may take long.
    """
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        with os.scandir(fd) as found:
            plain = [entry.name for entry in found if entry.is_file(follow_symlinks=False)]
        for name in plain:
            if not _NAME.fullmatch(name) or name[0] == "c":
                continue
            try:
                os.rename(name, f"c{name[1:]}", src_dir_fd=fd, dst_dir_fd=fd)
            except IsADirectoryError:  # the session has created a folder with the new name
                os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


class Inbox:
    """The requests in `folder`. No other object may use the folder's descriptor; `close` closes it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._answers: set[int] = set()

    def close(self) -> None:
        """Close the folder, and every FIFO of `open_answer` that is still open because its user was cancelled."""
        for fd in list(self._answers):
            self.close_answer(fd)
        os.close(self.folder.fd)

    def waiting(self, kinds: str) -> list[str]:
        """Return the ids of the clients that have a file of one of `kinds` (the letters `c`, `r`, `w`)."""
        found = (_NAME.fullmatch(name) for name in self.folder.names() if name[0] in kinds)
        return sorted({match[1] for match in found if match})

    def take(self, most: int) -> Taken:
        """Mark up to `most` waiting requests as being served, and read them."""
        began = time.thread_time()
        requests: list[TakenRequest] = []
        waiting = self.waiting("r")
        while waiting and len(requests) < most:
            ident = waiting.pop(0)
            try:
                self.folder.rename(f"r.{ident}", f"w.{ident}")
            except OSError:  # the client has removed the request, or the entry is not a request
                continue
            requests.append(self.read_begun(ident))
        return Taken(requests, bool(waiting), time.thread_time() - began)

    def read_begun(self, ident: str) -> TakenRequest:
        """Read the request `ident`, which this daemon or an earlier daemon has marked as being served."""
        try:
            return TakenRequest(ident, self.folder.read(f"w.{ident}", MAX_REQUEST_BYTES + 1))
        except OSError as error:
            return TakenRequest(ident, error)

    def open_answer(self, ident: str) -> int | None:
        """Open the FIFO for the answer. Return a descriptor for `close_answer`, or None if the client has not opened
        the FIFO yet, or the entry is not a FIFO. Raises FileNotFoundError if the client has left.
        """
        try:
            fd = self.folder.open_fifo_to_write(f"a.{ident}")
        except FileNotFoundError:
            raise
        except OSError:  # ENXIO: nobody reads
            return None
        self._answers.add(fd)
        return fd

    def close_answer(self, fd: int) -> None:
        """Close a descriptor that `open_answer` returned. Any thread may call this; a second call does nothing."""
        try:
            self._answers.remove(fd)
        except KeyError:
            return
        os.close(fd)

    def remove(self, ident: str) -> None:
        for kind in "crw":
            self.folder.remove(f"{kind}.{ident}")
