"""The files of a container image as tools save it: in a folder, or in a tar archive, which may be compressed.

All of it may be hostile. A folder is read without following links; of an archive only the members' places are used.
"""

import contextlib
import gzip
import io
import os
import posixpath
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, Protocol, Self, cast

import zstandard

from waypoint.linux.storage import beneath, files
from waypoint.store.archives.layout import BadLayout

_MAX_MEMBERS = 1 << 16
_MAX_LINKS = 8
_MAX_HEADER = 1 << 20
"""Bytes of one extended header of tar: names and attributes."""
PIECE = 1 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_EXTENDED = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)

AsUser = Callable[[], AbstractContextManager[None]]


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class Part(io.RawIOBase):
    """`size` bytes of the file `fd`, from `place` on. Closes its own duplicate of `fd`."""

    def __init__(self, fd: int, place: int, size: int) -> None:
        self.fd = os.dup(fd)
        self.size = size
        self._place = place
        self._left = size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece = os.pread(self.fd, self._left if size < 0 else min(size, self._left), self._place)
        if not piece and self._left and size:
            raise BadLayout("it is not complete")
        self._place += len(piece)
        self._left -= len(piece)
        return piece

    def close(self) -> None:
        if not self.closed:
            os.close(self.fd)
        super().close()


class FolderFiles:
    """The files of the open folder `fd`, which are opened with the rights of `as_user`."""

    def __init__(self, fd: int, as_user: AsUser) -> None:
        self._fd = fd
        self._as_user = as_user

    def __contains__(self, name: str) -> bool:
        try:
            self.open(name).close()
        except BadLayout:
            return False
        return True

    def open(self, name: str) -> Part:
        try:
            with self._as_user():
                fd = beneath.open_beneath(self._fd, name, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise BadLayout(f"{name[:120]} cannot be read: {error.strerror}") from error
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise BadLayout(f"{name[:120]} is no regular file")
            return Part(fd, 0, facts.st_size)
        finally:
            os.close(fd)


class _Place(NamedTuple):
    """Of a member of an archive. `link`: the member that has the content instead."""

    start: int
    size: int
    link: str = ""


class TarFiles:
    """The files of the tar archive `fd`, a regular file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._places: dict[str, _Place] = {}
        os.lseek(fd, 0, os.SEEK_SET)  # duplicates share the place
        with (
            refusing_tar(),
            open(os.dup(fd), "rb") as file,
            tarfile.open(fileobj=file, mode="r:", tarinfo=Header) as tar,
        ):
            while (info := tar.next()) is not None:
                forget_members(tar)
                name = info.name.removeprefix("./")
                if info.issym() or info.islnk():  # of `docker save`: a layer that the archive has already
                    link = posixpath.join(posixpath.dirname(name), info.linkname) if info.issym() else info.linkname
                    self._places[name] = _Place(0, 0, posixpath.normpath(link))
                elif info.isreg() and not info.issparse():
                    self._places[name] = _Place(info.offset_data, info.size)
                if len(self._places) > _MAX_MEMBERS:
                    raise BadLayout("it has too many members")

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def open(self, name: str) -> Part:
        found = self._places.get(name)
        for _ in range(_MAX_LINKS):
            if found is None or not found.link:
                break
            found = self._places.get(found.link)
        if found is None or found.link:
            raise BadLayout(f"{name[:120]} is missing")
        return Part(self._fd, found.start, found.size)


Files = FolderFiles | TarFiles


@contextlib.contextmanager
def opened_files(fd: int, as_user: AsUser, scratch: str, max_bytes: int) -> Iterator[Files]:
    """The files of the open folder or archive. A compressed archive is first written to a nameless file in the folder
    `scratch`, with at most `max_bytes`.
    """
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        yield FolderFiles(fd, as_user)
        return
    with contextlib.ExitStack() as held:
        part = held.enter_context(Part(fd, 0, os.fstat(fd).st_size))
        if is_compressed(fd):
            plain = files.open_nameless(scratch, 0o600)
            if plain is None:
                raise BadLayout("it is compressed; decompress it first")
            held.callback(os.close, plain)
            _copy(held.enter_context(decompressed(part)), plain, max_bytes)
            fd = plain
        yield TarFiles(fd)


def is_compressed(fd: int) -> bool:
    return os.pread(fd, 4, 0).startswith((_GZIP, _ZSTD))


@contextlib.contextmanager
def decompressed(part: Readable) -> Iterator[Readable]:
    """The content of a file that may be compressed, by the file's first bytes: media types are often wrong."""
    head = part.read(4)
    whole = cast(BinaryIO, _Rejoined(head, part))
    if head.startswith(_GZIP):
        with gzip.GzipFile(fileobj=whole, mode="rb") as file:
            yield file
    elif head == _ZSTD:
        with zstandard.ZstdDecompressor().stream_reader(whole, read_across_frames=True, closefd=False) as reader:
            yield reader
    else:
        yield whole


def _copy(source: Readable, target: int, max_bytes: int) -> None:
    done = 0
    with refusing_tar():
        while piece := source.read(PIECE):
            done += len(piece)
            if done > max_bytes:
                raise too_large(max_bytes)
            files.write_all(target, piece)


def too_large(max_bytes: int) -> BadLayout:
    return BadLayout(f"it has more than the {max_bytes} bytes that may be used")


class Header(tarfile.TarInfo):
    """A member's header. tarfile reads extended headers whole, so long ones are refused."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _EXTENDED and not 0 <= info.size <= _MAX_HEADER:
            raise BadLayout("a member has a name or attributes that are too long")
        if info.size < 0:
            raise BadLayout("a member has an impossible size")
        return info


def forget_members(tar: tarfile.TarFile) -> None:
    """Release the members that were read so far: there may be millions."""
    tar.members.clear()  # type: ignore[attr-defined]


@contextlib.contextmanager
def refusing_tar() -> Iterator[None]:
    """Raise BadLayout for everything that the decoders raise for damaged or hostile input."""
    try:
        yield
    except tarfile.TarError as error:
        raise BadLayout(f"it is no tar archive, or a damaged one: {error}") from error
    except (zlib.error, gzip.BadGzipFile, EOFError, zstandard.ZstdError) as error:
        raise BadLayout(f"it cannot be decompressed: {error}") from error
    except (ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise BadLayout(f"it has an impossible header: {error}") from error


class _Rejoined(io.RawIOBase):
    """A file whose first bytes have been read already."""

    def __init__(self, head: bytes, rest: Readable) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._head:
            return self._rest.read(size)
        found, self._head = (self._head, b"") if size < 0 else (self._head[:size], self._head[size:])
        return found + self._rest.read() if size < 0 else found
