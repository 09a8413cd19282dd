"""The files of requests in a session's folder: finding the ones that wait, reading them, and opening the FIFOs for
their answers.

`a.<id>` is the FIFO for an answer, `r.<id>` a request that waits, `w.<id>` a request that is being served, `c.<id>` a
request that was captured: it waited, or was being served, in the session of which this one is a copy.

The folder belongs to the session's user. Names are therefore checked, links are not followed, and reads are bounded.
All methods block, and the session can make each of them slow: by names by the hundred thousand, or by holding the
folder's lock. Call them in a thread that nobody else waits for.
"""

import os
import re
import time
from typing import NamedTuple

from waypoint.terminal.hooks.run_folder import RunFolder

MAX_REQUEST_BYTES = 4096
_NAME = re.compile(r"[crw]\.([0-9]{1,10}\.[0-9]{1,4})")


class TakenRequest(NamedTuple):
    """A request that was taken: its text, of which at most one byte more than MAX_REQUEST_BYTES is read, or the error
    for which it cannot be read.
    """

    ident: str
    text: bytes | OSError


class Taken(NamedTuple):
    """`requests`: those that were taken. `are_more`: further requests wait. `cost_s`: the processor time that the look
    took.
    """

    requests: list[TakenRequest]
    are_more: bool
    cost_s: float


def mark_captured(folder_fd: int) -> None:
    """Mark every request in the folder `folder_fd` as captured, so that `Inbox.take` never takes it. To be called on
    the files of a copy of a session before any process of the copy runs. Reads the whole folder, which may take long.
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
            except IsADirectoryError:  # somebody in the session has made a folder of that name
                os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


class Inbox:
    """`folder`: `close` closes its descriptor, which nobody else may use."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._answers: set[int] = set()

    def close(self) -> None:
        """Close the folder, and every FIFO of `open_answer` that was not closed since its user was cancelled."""
        for fd in list(self._answers):
            self.close_answer(fd)
        os.close(self.folder.fd)

    def waiting(self, kinds: str) -> list[str]:
        """Ids of the clients with a file of one of `kinds`."""
        found = (_NAME.fullmatch(name) for name in self.folder.names() if name[0] in kinds)
        return sorted({match[1] for match in found if match})

    def take(self, most: int) -> Taken:
        """Mark at most `most` of the requests that wait as being served, and read them."""
        began = time.thread_time()
        requests: list[TakenRequest] = []
        waiting = self.waiting("r")
        while waiting and len(requests) < most:
            ident = waiting.pop(0)
            try:
                self.folder.rename(f"r.{ident}", f"w.{ident}")
            except OSError:  # the client has withdrawn it, or it is no request
                continue
            requests.append(self.read_begun(ident))
        return Taken(requests, bool(waiting), time.thread_time() - began)

    def read_begun(self, ident: str) -> TakenRequest:
        """The request `ident`, which is being served, or which an earlier daemon had begun to serve."""
        try:
            return TakenRequest(ident, self.folder.read(f"w.{ident}", MAX_REQUEST_BYTES + 1))
        except OSError as error:
            return TakenRequest(ident, error)

    def open_answer(self, ident: str) -> int | None:
        """A descriptor to write the answer to, for `close_answer`; None if the client has not opened its end yet, or
        has something else in its place. Raises FileNotFoundError if the client has gone.
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
        """Close a descriptor of `open_answer`. Any thread may call this; a second call does nothing."""
        try:
            self._answers.remove(fd)
        except KeyError:
            return
        os.close(fd)

    def remove(self, ident: str) -> None:
        """Remove the request."""
        for kind in "crw":
            self.folder.remove(f"{kind}.{ident}")
