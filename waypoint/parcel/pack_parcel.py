"""Making a parcel of a file or a folder, whose content somebody else may change meanwhile.

Each name is opened from the descriptor of its folder, and no link is followed. What is neither a file nor a folder nor
a link is left out, and so is what cannot be read: the parcel says so. Owners, modes, times, hard links, holes, access
control lists and the attributes that users give are told.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from typing import NamedTuple

from waypoint.parcel.acl_ids import ACLS, with_ids
from waypoint.parcel.ends import Pickup
from waypoint.parcel.parcel_records import (
    MOST_DEEP,
    MOST_NUMBERED,
    MOST_TOLD,
    MOST_XATTR_BYTES,
    PIECE_BYTES,
    Content,
    FileEnd,
    FolderEnd,
    Inode,
    Omitted,
    Packed,
    ParcelEnd,
    ParcelItem,
    encode,
    spelt_bytes,
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}
_USERS = b"user."  # these attributes, and ACLs, are anybody's to set and to read
_GATHERED_BYTES = 1 << 17


class _Entered(NamedTuple):
    """A folder that is being read. `entries`: an iterator that holds a descriptor of its own."""

    fd: int
    entries: "os._ScandirIterator[str]"
    name: str


class Packing:
    """One parcel. An iterator of its bytes, which takes as much memory as one piece, and a number for each of the first
    MOST_NUMBERED files with several names; further ones are left out. Each step opens and reads with the rights that
    the calling thread has then. `close` it.
    """

    def __init__(
        self,
        origin: Pickup,
        views: Collection[int] = (),
        inside: Callable[[int], int] = int,
        homes: Collection[Inode] = (),
    ) -> None:
        """`origin`: what is packed; its descriptor stays the caller's. `views`: devices (st_dev) that are a kernel's
        view of something, and no files. `inside`: from the id of an owner that is found to that in the parcel. `homes`:
        folders of Waypoint, which are left out: what is sent may go into one of them.
        `left_out`: what the parcel says was left out. `records`: what the parcel consists of, for who wants no bytes.
        """
        self.left_out: list[Omitted] = []
        self._views = views
        self._inside = inside
        self._homes = homes
        self._above: list[_Entered] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self.records = self._made(origin)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Raises OSError if not even the first can be read; BadParcel if what is there cannot be in one."""
        return encode(next(self.records))

    def close(self) -> None:
        """Close what is open. May be called again."""
        self.records.close()
        while self._above:
            self._leave()

    def _made(self, origin: Pickup) -> Generator[Packed, None, None]:
        yield from self._one(origin.folder, origin.name, origin.called, must=True)
        while self._above:
            top = self._above[-1]
            entry = next(top.entries, None)
            if entry is None:
                self._leave()
                yield FolderEnd()
            else:
                yield from self._one(top.fd, entry.name, entry.name)
        yield ParcelEnd()

    def _one(self, folder: int, name: str, called: str, *, must: bool = False) -> Iterator[Packed]:
        """The records of one name; of a folder the first: it is the last of `_above` then."""
        try:
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False) if name else os.fstat(folder)
            kind = stat.S_IFMT(facts.st_mode)
            if facts.st_dev in self._views:
                yield self._left(called, "it is a view of the kernel's")
            elif (facts.st_dev, facts.st_ino) in self._homes:
                yield self._left(called, "it is a home of Waypoint", is_idle=True)
            elif kind == stat.S_IFDIR:
                yield self._enter(folder, name, called)
            elif kind == stat.S_IFLNK:
                target = os.readlink(name, dir_fd=folder)
                yield ParcelItem(called, "link", *self._common(facts), target=target)
            elif kind == stat.S_IFREG:
                yield from self._file(folder, name, called)
            else:
                yield self._left(called, f"it is {_KINDS.get(kind, 'of no known kind')}", is_idle=True)
        except OSError as error:
            if must:
                raise
            yield self._left(called, error.strerror or str(error))

    def _left(self, name: str, why: str, *, is_idle: bool = False) -> Omitted:
        path = "/".join([*(one.name for one in self._above), name])
        left = Omitted(path.encode(errors="backslashreplace").decode(), why, is_idle)
        if len(self.left_out) < MOST_TOLD:
            self.left_out.append(left)
        return left

    def _enter(self, folder: int, name: str, called: str) -> Packed:
        if len(self._above) >= MOST_DEEP:
            return self._left(called, f"more than {MOST_DEEP} folders lie in each other")
        fd = os.open(name or ".", _FOLDER, dir_fd=folder)
        try:
            facts = os.fstat(fd)
            entry = ParcelItem(called, "folder", *self._common(facts), xattrs=self._xattrs(fd))
            self._above.append(_Entered(fd, os.scandir(fd), called))
        except BaseException:
            os.close(fd)
            raise
        return entry

    def _leave(self) -> None:
        top = self._above.pop()
        top.entries.close()
        os.close(top.fd)

    def _file(self, folder: int, name: str, called: str) -> Iterator[Packed]:
        fd = os.open(name, _FILE, dir_fd=folder) if name else os.dup(folder)
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):  # something else has taken its name
                yield self._left(called, "it has just become something else")
                return
            number, is_known = self._number(facts)
            if is_known:
                yield ParcelItem(called, "again", number=number)
                return
            yield ParcelItem(called, "file", *self._common(facts), xattrs=self._xattrs(fd), number=number)
            size = yield from _content(fd, facts.st_size)
            yield FileEnd(size)
        finally:
            os.close(fd)

    def _common(self, facts: os.stat_result) -> tuple[int, int, int, int]:
        owner, group = self._inside(facts.st_uid), self._inside(facts.st_gid)
        return stat.S_IMODE(facts.st_mode), owner, group, facts.st_mtime_ns

    def _xattrs(self, fd: int) -> tuple[tuple[bytes, bytes], ...]:
        """The attributes that users give, and ACLs. None where the file system has none. Raises OSError if they are
        more than a record takes; no more of them is read then.
        """
        found, rest = [], MOST_XATTR_BYTES
        with contextlib.suppress(OSError):
            for name in map(os.fsencode, os.listxattr(fd)):
                if name in ACLS:
                    found.append((name, with_ids(os.getxattr(fd, name), self._inside)))
                elif name.startswith(_USERS):
                    found.append((name, os.getxattr(fd, name)))
                else:
                    continue
                rest -= sum(map(spelt_bytes, found[-1]))
                if rest < 0:
                    break
        if rest < 0:
            raise OSError(errno.E2BIG, "it has more extended attributes than a record of a parcel takes")
        return tuple(found)

    def _number(self, facts: os.stat_result) -> tuple[int, bool]:
        """Its number, 0: it has one name; whether it was in the parcel. Raises OSError."""
        if facts.st_nlink < 2:
            return 0, False
        which = (facts.st_dev, facts.st_ino)
        is_known = which in self._numbers
        if not is_known and len(self._numbers) >= MOST_NUMBERED:
            raise OSError(errno.E2BIG, f"{MOST_NUMBERED} files with several names come before it, which is the most")
        return self._numbers.setdefault(which, len(self._numbers) + 1), is_known


def _content(fd: int, size: int) -> Generator[Packed, None, int]:
    """The pieces of a file, without its holes. Returns its size: less than `size` if it was cut meanwhile."""
    at = 0
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
            end = min(size, os.lseek(fd, at, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                break
            end = size  # a file system without holes
        while at < end:
            content = os.pread(fd, min(PIECE_BYTES, end - at), at)
            if not content:
                return at
            yield Content(at, content)
            at += len(content)
    return size


def whole(
    origin: Pickup,
    views: Collection[int] = (),
    inside: Callable[[int], int] = int,
    homes: Collection[Inode] = (),
) -> Generator[Packed, None, None]:
    """The records of a parcel that has all of what is packed, but for what has no content of its own (sockets, FIFOs,
    devices) and `homes`, which it says are left out. The parameters are those of Packing. Raises OSError if something
    else would be left out.
    """
    with contextlib.closing(Packing(origin, views, inside, homes)) as packing:
        for record in packing.records:
            if isinstance(record, Omitted):
                record = record._replace(path=record.path.lstrip("/"))
                if not record.is_idle:
                    raise OSError(errno.EINVAL, record.why, record.path)
            yield record


def gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of which each is worth to be sent."""
    found = bytearray()
    for piece in pieces:
        found += piece
        if len(found) >= _GATHERED_BYTES:
            yield bytes(found)
            found.clear()
    if found:
        yield bytes(found)
