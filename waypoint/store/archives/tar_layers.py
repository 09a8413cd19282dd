"""Folders of the store as OCI layers, for other tools: tar in pax format, compressed with zstd.

A layer has all that tar can describe: names of any bytes, times in nanoseconds, attributes (`SCHILY.xattr.`), hard
links, holes (GNU's sparse format 1.0), and whiteouts as `.wh.` names. Overlayfs's redirects and sockets cannot be
described and are left out.
"""

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

import zstandard

from waypoint.store import entries, trees
from waypoint.store.entries import Row, TreeEntry
from waypoint.store.store import Reader

_TYPES = {
    entries.FILE: tarfile.REGTYPE,
    entries.FOLDER: tarfile.DIRTYPE,
    entries.SYMLINK: tarfile.SYMTYPE,
    entries.CHARACTER: tarfile.CHRTYPE,
    entries.BLOCK: tarfile.BLKTYPE,
    entries.FIFO: tarfile.FIFOTYPE,
}
_OPAQUE = (b"trusted.overlay.opaque", b"user.overlay.opaque")
_OWN_ATTRIBUTES = tuple(f"{one}.{whose}.".encode() for one in ("trusted", "user") for whose in ("overlay", "waypoint"))
_WHITEOUT = bytes(8)
_NANO = 10**9


class LayerWriter:
    """Writes one layer to `write`. `close` ends it, and returns the SHA-256 of the layer without compression."""

    def __init__(self, reader: Reader, write: Callable[[bytes], object]) -> None:
        self._reader = reader
        self._zstd = zstandard.ZstdCompressor(level=3).stream_writer(cast(BinaryIO, _Sink(write)), closefd=False)
        self._hasher = hashlib.sha256()
        plain = _Sink(self._zstd.write, self._hasher.update)
        self._tar = tarfile.open(  # noqa: SIM115
            mode="w|", fileobj=plain, format=tarfile.PAX_FORMAT, errors="surrogateescape"
        )
        self._tar.copybufsize = 1 << 20  # type: ignore[attr-defined]  # 16 KiB otherwise

    def close(self) -> str:
        self._tar.close()
        self._zstd.flush(zstandard.FLUSH_FRAME)
        return self._hasher.hexdigest()

    def add(self, folder: TreeEntry, links: list[list[bytes]], within: bytes, target: bytes) -> None:
        """Add the content of a folder. `links`: as `read_links`; the paths of files in this folder begin with `within`.
        `target`: the path in the layer.
        """
        groups = {path: number for number, group in enumerate(links) for path in group}
        first: dict[int, str] = {}
        waiting = [(folder, within, target)]
        while waiting:
            above, origin, place = waiting.pop()
            for entry in trees.read_entries(self._reader, above):
                path = origin + entry.name
                name = os.fsdecode(place + entry.name)
                group = groups.get(path)
                if group is not None and group in first:
                    info = self._info(entry, name)
                    info.type, info.linkname = tarfile.LNKTYPE, first[group]
                    self._tar.addfile(info)
                    continue
                self._add_one(entry, place, name)
                if group is not None:
                    first[group] = name
                if entry.type == entries.FOLDER:
                    waiting.append((entry, path + b"/", place + entry.name + b"/"))

    def _add_one(self, entry: TreeEntry, place: bytes, name: str) -> None:
        if entry.type == entries.SOCKET:
            return
        if entry.type == entries.CHARACTER and entry.text == _WHITEOUT:
            self._tar.addfile(tarfile.TarInfo(os.fsdecode(place + b".wh." + entry.name)))
            return
        info = self._info(entry, name)
        if entry.type == entries.FILE:
            self._add_file(entry, info)
            return
        self._tar.addfile(info)
        if any((name, b"y") in entry.xattrs for name in _OPAQUE):
            self._tar.addfile(tarfile.TarInfo(f"{name}/.wh..wh..opq"))

    def _add_file(self, entry: TreeEntry, info: tarfile.TarInfo) -> None:
        rows, head = trees.read_rows(self._reader, entry), b""
        if any(digest is None for digest, _ in rows):
            head = _sparse_map(rows)
            folder, _, last = info.name.rpartition("/")
            info.pax_headers = {
                **info.pax_headers,
                "GNU.sparse.major": "1",
                "GNU.sparse.minor": "0",
                "GNU.sparse.name": info.name,
                "GNU.sparse.realsize": str(entry.size),
            }
            info.name = f"{folder}/GNUSparseFile.0/{last}".lstrip("/")
        info.size = len(head) + sum(length for digest, length in rows if digest is not None)
        content = (trees.read_part(self._reader, row) for row in rows if row[0] is not None)
        self._tar.addfile(info, _Pieces(head, content))

    def _info(self, entry: TreeEntry, name: str) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.uid, info.gid = _TYPES[entry.type], entry.mode, entry.uid, entry.gid
        info.mtime = max(0, entry.mtime // _NANO)
        info.pax_headers = {
            f"SCHILY.xattr.{os.fsdecode(key)}": os.fsdecode(value)
            for key, value in entry.xattrs
            if not key.startswith(_OWN_ATTRIBUTES) and b"=" not in key
        }
        if entry.mtime % _NANO or entry.mtime < 0:
            seconds, nanoseconds = divmod(abs(entry.mtime), _NANO)
            info.pax_headers["mtime"] = f"{'-' if entry.mtime < 0 else ''}{seconds}.{nanoseconds:09}"
        if entry.type == entries.SYMLINK:
            info.linkname = os.fsdecode(entry.text)
        elif entry.text:
            info.devmajor, info.devminor = (int.from_bytes(part, "big") for part in (entry.text[:4], entry.text[4:]))
        return info


def _sparse_map(rows: list[Row]) -> bytes:
    parts, place = [], 0
    for digest, length in rows:
        if digest is not None:
            parts.append(f"{place}\n{length}\n")
        place += length
    if rows and rows[-1][0] is None:
        parts.append(f"{place}\n0\n")
    content = f"{len(parts)}\n{''.join(parts)}".encode()
    return content + bytes(-len(content) % tarfile.BLOCKSIZE)


class _Sink(io.RawIOBase):
    """A file that passes written bytes on to a function."""

    def __init__(self, *writes: Callable[[bytes], object]) -> None:
        self._writes = writes

    def writable(self) -> bool:
        return True

    def write(self, piece: bytes) -> int:  # type: ignore[override]  # only bytes are written
        for write in self._writes:
            write(piece)
        return len(piece)


class _Pieces(io.RawIOBase):
    """A file that has these pieces."""

    def __init__(self, head: bytes, pieces: Iterator[bytes]) -> None:
        self._present = io.BytesIO(head)
        self._pieces = pieces

    def read(self, size: int = -1) -> bytes:
        found = self._present.read(size)
        while len(found) < size and (piece := next(self._pieces, None)) is not None:
            self._present = io.BytesIO(piece)
            found += self._present.read(size - len(found))
        return found
