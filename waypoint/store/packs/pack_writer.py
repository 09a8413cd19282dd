"""Writing one pack: a file without meaning until it is whole, on disk, and in its place."""

import contextlib
import os

from blake3 import blake3

from waypoint.linux.storage.files import write_all
from waypoint.store.packs import pack_format
from waypoint.store.packs.ciphers import cipher_for, new_salt
from waypoint.store.packs.pack_format import HEADER_BYTES, PackRow
from waypoint.store.packs.pack_index import Found

_BUFFER_BYTES = 1 << 20


class PackWriter:
    """Writes a pack to a file of its own, which nobody else knows. To be ended by `finish` or `abandon`.

    `size`: bytes so far, those in the buffer too.
    """

    def __init__(self, path: str, cipher: int, key: bytes) -> None:
        """Raises OSError."""
        salt = new_salt()
        self.path = path
        self.rows: list[PackRow] = []
        self.size = HEADER_BYTES
        self._cipher = cipher_for(cipher, key, salt)
        self._hasher = blake3()
        self._buffer = bytearray(pack_format.header(cipher, salt))
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def add(self, row: PackRow, payload: bytes) -> Found:
        """Append an object; returns where it is, in a pack without a name yet. `row.stored` does not matter.

        Raises OSError; then only `abandon` may follow.
        """
        sealed = self._cipher.seal(len(self.rows), payload, row.about)
        found = Found(row.kind, row.codec, "", len(self.rows), self.size, len(sealed), row.length, row.base)
        self.rows.append(PackRow(row.address, row.kind, row.codec, len(sealed), row.length, row.base))
        self._append(sealed)
        return found

    def finish(self) -> str:
        """Write the rest, and have all of it on disk. Returns the pack's name. The file stays where it is: the caller
        moves it to its place. Raises OSError; then `abandon`.
        """
        directory = pack_format.seal_directory(self.rows, self._cipher)
        self._append(directory)
        self._append(pack_format.trailer(len(directory), len(self.rows)))
        self._flush()
        digest = self._hasher.digest()
        write_all(self._fd, digest)
        self.size += len(digest)
        os.fsync(self._fd)
        os.close(self._fd)
        self._fd = -1
        return digest.hex()

    def abandon(self) -> None:
        """Remove the file. Does nothing after `finish`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def read(self, found: Found, about: bytes) -> bytes:
        """The payload of an object that `add` has appended. Raises OSError, WrongBytes."""
        self._flush()
        return self._cipher.open(found.slot, os.pread(self._fd, found.stored, found.offset), about)

    def _append(self, content: bytes) -> None:
        self._buffer += content
        self.size += len(content)
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._buffer:
            self._hasher.update(self._buffer)
            write_all(self._fd, self._buffer)
            self._buffer.clear()
