"""Where a store lies: a folder in which every file is written once, under a name that it gets when it is whole.

```
config.json       who the store is, and its keys
packs/NAME.pack   objects; NAME is the digest of the file
images/ID         what an image consists of; ID is the image's
index.db          where each object is; can be made again from the packs
locks/            who writes, who reads
tmp/              what is being written; what a crash leaves there means nothing
```
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from waypoint.linux.storage import files
from waypoint.model.errors import StateConflict
from waypoint.store.content.keys import StoreConfig, write_config

_FOLDERS = ("packs", "images", "locks", "tmp")
WRITER, PACKS, INDEX = "writer", "packs", "index"
"""The locks: of the one who adds or removes; of those who read packs, against whoever removes them; and of who opens
the index, which may have to be made anew.
"""


class StoreFolder:
    """The folder of one store. All calls raise OSError."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.packs, self.images, self.locks, self.tmp = (f"{folder}/{name}" for name in _FOLDERS)
        self.index, self.config = f"{folder}/index.db", f"{folder}/config.json"
        self.damaged = f"{folder}/damaged"

    def make(self, config: StoreConfig) -> None:
        """Make what is missing; config.json last, as a store without one is none. Durable on return."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self.complete()
        files.sync_folder(self.folder)
        write_config(self.config, config)

    def complete(self) -> None:
        """Make folders that are missing: a copy may lack those that were empty."""
        for name in _FOLDERS:
            files.make_folder(f"{self.folder}/{name}", 0o700)

    def exists(self) -> bool:
        return os.path.exists(self.config)

    def pack(self, name: str) -> str:
        return f"{self.packs}/{name}.pack"

    def publish(self, made: str, path: str) -> None:
        """Move the file `made`, whose content is on disk, to `path`. Not durable before `sync` of the folder."""
        os.rename(made, path)

    def sync(self, folder: str) -> None:
        files.sync_folder(folder)

    def sweep(self) -> None:
        """Remove what writers have left that are no more; for who holds the lock of writers."""
        for entry in Path(self.tmp).iterdir():
            with contextlib.suppress(FileNotFoundError):
                entry.unlink()

    @contextlib.contextmanager
    def writing(self, purpose: str) -> Iterator[None]:
        """Be the one who writes, until the `with` ends. The kernel lets the lock of a killed process go.

        `purpose`: in words, for others who want to write meanwhile. Raises StateConflict if somebody else writes.
        """
        path = f"{self.locks}/{WRITER}"
        try:
            fd = files.lock(path, wait=False)
        except BlockingIOError as error:
            said = f"it is in use: {self.holder() or 'somebody writes to it'}"
            raise StateConflict(purpose, f"store {self.folder}", said, "try again when that is done") from error
        try:
            os.truncate(fd, 0)
            files.write_all(fd, f"{purpose}, by the process {os.getpid()}".encode())
            self.sweep()
            yield
        finally:
            os.close(fd)

    def holder(self) -> str:
        """In words, who has said last that it writes; "" if nobody has."""
        with contextlib.suppress(OSError), open(f"{self.locks}/{WRITER}", "rb") as file:
            return file.read(400).decode(errors="replace")
        return ""

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Keep the packs from being removed, until the `with` ends. Waits for who is removing some: milliseconds."""
        fd = self._open_lock()
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def removing(self) -> Iterator[bool]:
        """Whether packs may be removed, until the `with` ends: nobody reads them now, nor can begin to."""
        fd = self._open_lock()
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def _open_lock(self) -> int:
        return os.open(f"{self.locks}/{PACKS}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def listed(folder: str) -> list[str]:
    """The names of the plain files in the folder, from which others may just be removed."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))


def has_content(folder: StoreFolder) -> bool:
    """Whether there is anything that a store without config.json must not be made beside. Raises OSError."""
    return any(os.path.isdir(one) and os.listdir(one) for one in (folder.packs, folder.images))
