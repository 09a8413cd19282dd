"""One store, opened: who may read it, who may write to it."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from waypoint.model.errors import StoreDamaged
from waypoint.store import failures
from waypoint.store.content import damage
from waypoint.store.content.image_files import Images
from waypoint.store.content.keys import PUT_BACK, Keys, StoreConfig, new_config, read_config, unlock
from waypoint.store.content.object_reader import ObjectReader
from waypoint.store.content.object_writer import ObjectWriter
from waypoint.store.content.store_folder import INDEX, StoreFolder, has_content
from waypoint.store.content.write_steps import WriteStep, reached
from waypoint.store.packs.ciphers import WrongBytes
from waypoint.store.packs.pack_index import PackIndex, standing_still


class Store:
    """One store. To be closed. One thread at a time may use it; several processes may have the same store open.

    `id`: random, made with the store. `unread`: in words, which packs cannot be read.
    """

    def __init__(self, folder: StoreFolder, config: StoreConfig, keys: Keys) -> None:
        """As `open_store` and `make_store` do it."""
        self.folder = folder
        self.id = config.id
        self.cipher = config.cipher
        self.keys = keys
        self.images = Images(folder, keys, config.cipher)
        self.unread: list[str] = []
        self._index: PackIndex | None = None

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[ObjectReader]:
        """Read objects: all that the store has now, whatever others remove until the `with` ends. What could not be
        read is noted. Raises Failed for what has happened.
        """
        try:
            with self.told("read"), self.folder.reading():
                index = self.index()
                reader = ObjectReader(self.folder, index, self.keys)
                try:
                    with standing_still(index):
                        yield reader
                finally:
                    reader.close()
                    self._note(reader)
        finally:
            with contextlib.suppress(OSError, sqlite3.Error):  # the next one tries again
                self.remove_retired()

    @contextlib.contextmanager
    def writing(self, purpose: str) -> Iterator[ObjectWriter]:
        """Add objects and images. Without `ObjectWriter.commit`, what was put may be in the store or not.

        `purpose`: in words, for others who want to write meanwhile. Raises StateConflict if somebody else writes,
        Failed for what has happened (the disk is full).
        """
        with self.told(purpose), self.folder.writing(purpose):
            with self.folder.reading():  # nobody removes packs that an index which is made anew finds
                index = self.index()
            writer = ObjectWriter(self.folder, index, self.keys, self.cipher)
            self.remove_retired()
            try:
                yield writer
            finally:
                writer.close()
                self._note(writer)

    def _note(self, reader: ObjectReader) -> None:
        if reader.unreadable:
            with contextlib.suppress(OSError):  # a full disk: who reads it next is told all the same
                damage.note(self.folder, reader.unreadable)

    def index(self) -> PackIndex:
        """The index, which knows all packs that are there now. For who reads or writes."""
        if self._index is None:
            self._index = PackIndex(self.folder.index, f"{self.folder.locks}/{INDEX}")
        try:
            self.unread = self._index.catch_up(self.folder.packs, self.keys.seal, damage.known(self.folder))
        except WrongBytes as error:
            raise StoreDamaged("read", f"store {self.folder.folder}", "its packs have another key", PUT_BACK) from error
        return self._index

    def remove_retired(self) -> None:
        """Remove the packs from which nothing is read any more, unless somebody reads now: who read while they were
        retired removes them. None if the index was made anew since it was opened here: by that they may be read. Raises
        OSError, sqlite3.Error.
        """
        retired = self._index.retired() if self._index is not None else []
        if not retired:
            return
        assert self._index is not None
        with self.folder.removing() as may:
            for name in retired if may and self._index.is_current else ():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.folder.pack(name))
                self._index.removed(name)
                reached(WriteStep.REMOVED)

    def retired_bytes(self) -> int:
        """What the packs take that `remove_retired` has left. Raises OSError, sqlite3.Error."""
        total = 0
        for name in self._index.retired() if self._index is not None else ():
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(self.folder.pack(name)).st_size
        return total

    @contextlib.contextmanager
    def told(self, tried: str) -> Iterator[None]:
        """What the machine says in the `with` block becomes Failed, in words. `tried`: an infinitive."""
        with failures.told(tried, Path(self.folder.index)):
            try:
                yield
            except OSError as error:  # of whichever file: the index tells its own in the words of SQLite
                raise failures.refused(tried, f"store {self.folder.folder}", error) from error


def open_store(path: str, secret: bytes = b"") -> Store:
    """Raises OSError (FileNotFoundError: there is none), StoreDamaged, HostLacks if it needs another secret."""
    folder = StoreFolder(path)
    try:
        config = read_config(folder.config)
    except FileNotFoundError as error:
        if has_content(folder):
            raise StoreDamaged("open", folder.config, "the store has content, but not this file", PUT_BACK) from error
        raise
    folder.complete()
    return Store(folder, config, unlock(config, secret))


def make_store(path: str, secret: bytes = b"", *, passphrase: bool = False) -> Store:
    """Make a store in a folder that is empty or missing, and open it; encrypted, with `secret`. Raises OSError."""
    folder, config = StoreFolder(path), new_config(secret, passphrase=passphrase)
    folder.make(config)
    return Store(folder, config, unlock(config, secret))
