"""Making files and folders of a parcel, in a folder whose content somebody else may change meanwhile.

Each name is made in the descriptor of its folder, and no link is followed. A file has no name until it is whole, so
nothing is left of one whose writer is killed; where the file system has no such files (O_TMPFILE), it has another name
beside its own. What had the name before is replaced, unless it is a folder. A folder that is there already stays as it
is, and what comes is added to it.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from waypoint.parcel.acl_ids import ACLS, with_ids
from waypoint.parcel.ends import Landing
from waypoint.parcel.parcel_records import (
    MOST_DEEP,
    MOST_TOLD,
    BadParcel,
    Content,
    FileEnd,
    FolderEnd,
    Omitted,
    Packed,
    ParcelEnd,
    ParcelItem,
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMELESS = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
_DESCRIPTORS = "/dev/fd"  # their names: a file without a name gets one by that
BESIDE = ".waypoint-cp-"
"""How the name begins of what is not whole yet."""
MOST_SIZE = (1 << 63) - 1
ENTRY_BYTES = 4096
"""What an entry counts besides its content, where room is counted: about what it takes of a disk."""
MOST_KEPT_BYTES = 48 << 20
"""So much memory is taken, about, to find files again that get one more name."""
_KEPT_BYTES = 256  # besides the name, of each file and folder that is kept for that
_ACL_BYTES = 1 << 16  # the kernel takes no longer one


class Owners(NamedTuple):
    """Who becomes the owner of what is unpacked. `gives`: whom the parcel tells; else whoever unpacks. `of`: from an id
    that the parcel tells to the one here, in access control lists, too. `set_ids`: whether a program keeps its
    set-user-id and set-group-id bits.
    """

    gives: bool
    of: Callable[[int], int] = int
    set_ids: bool = False


class _MadeAt:
    """Where a file or folder was made: its name in the one `above`, None: where the parcel goes. `is_kept`: whether it
    was counted as what is kept to the end of the parcel.
    """

    __slots__ = ("above", "is_kept", "name")

    def __init__(self, above: "_MadeAt | None", name: str) -> None:
        self.above = above
        self.name = name
        self.is_kept = False

    def upwards(self) -> "Iterator[_MadeAt]":
        """This one, and those that it is in, up to the first."""
        at: _MadeAt | None = self
        while at is not None:
            yield at
            at = at.above


class _Linked:
    """The files that may get one more name, by their numbers."""

    def __init__(self) -> None:
        self.places: dict[int, _MadeAt] = {}
        self._kept_bytes = 0

    def keep(self, number: int, place: _MadeAt) -> None:
        """Raises BadParcel if that is too much."""
        for one in place.upwards():
            if one.is_kept:
                break
            one.is_kept = True
            self._kept_bytes += _KEPT_BYTES + len(one.name)
        self.places[number] = place
        if self._kept_bytes > MOST_KEPT_BYTES:
            raise BadParcel(f"too many files with several names: {len(self.places)} so far")


class _Filling(NamedTuple):
    """A folder that is being filled. `made`: its entry, if it was made for this, without what it has already."""

    fd: int
    place: _MadeAt
    made: ParcelItem | None


class _Rising(NamedTuple):
    """A file that is being written. `beside`: the name that it has till then; "": none."""

    fd: int
    folder: int
    beside: str
    entry: ParcelItem


class Unpacking:
    """Unpacks the records of one parcel. Each step works with the rights that the calling thread has then. `close` it:
    what is not whole then is removed. What was made so far: `entries`, of which `folders` are such, `size_bytes`
    without holes. `left_out`: what the sender said.

    What it takes of memory is bounded, whatever comes: MOST_KEPT_BYTES, and for each open folder its ACLs.
    """

    def __init__(self, lands: Callable[[ParcelItem], Landing], owners: Owners, told: int = MOST_TOLD) -> None:
        """`lands`: finds the place of the first entry. `told`: so much is kept of what the sender left out."""
        self.entries = self.folders = 0
        self.size_bytes = 0
        self.left_out: list[Omitted] = []
        self.is_whole = False
        self._lands = lands
        self._owners = owners
        self._landing: Landing | None = None
        self._open: list[_Filling] = []
        self._rising: _Rising | None = None
        self._told = told
        self._linked = _Linked()

    def take(self, record: Packed) -> None:
        """Carry out one record. Raises OSError, BadParcel."""
        if self.is_whole:
            raise BadParcel("something behind its end")
        match record:
            case ParcelItem():
                self._begin(record)
            case Content():
                self._write(record)
            case FileEnd():
                self._finish(record.size)
            case FolderEnd():
                self._leave()
            case Omitted():
                self._abandon()
                if len(self.left_out) < self._told:
                    self.left_out.append(record)
            case ParcelEnd():
                if self._open or self._rising is not None:
                    raise BadParcel("an end in the midst of it")
                self.is_whole = True

    def close(self) -> None:
        """Close what is open, and remove the file that is not whole. May be called again."""
        self._abandon()
        while self._open:
            os.close(self._open.pop().fd)
        if self._landing is not None:
            os.close(self._landing.folder)
            self._landing = None

    def _begin(self, entry: ParcelItem) -> None:
        if self._rising is not None:
            raise BadParcel("an entry in the midst of a file")
        folder, name = self._place(entry)
        match entry.kind:
            case "folder":
                self._enter(folder, name, entry)
            case "file":
                self._rising = _rise(folder, entry._replace(name=name))
            case "link":
                with _beside(folder, name) as beside:
                    os.symlink(entry.target, beside, dir_fd=folder)
                    self._own(entry, beside, folder)
                    os.utime(beside, ns=(entry.mtime, entry.mtime), dir_fd=folder, follow_symlinks=False)
            case _:
                self._link_again(folder, name, entry.number)
        self.entries += 1

    def _place(self, entry: ParcelItem) -> tuple[int, str]:
        """The folder of the entry, and its name there."""
        if self._open:
            if not entry.name:
                raise BadParcel("an entry without a name")
            return self._open[-1].fd, entry.name
        if self._landing is not None:
            raise BadParcel("a second thing")
        self._landing = self._lands(entry)
        return self._landing

    def _enter(self, folder: int, name: str, entry: ParcelItem) -> None:
        if len(self._open) >= MOST_DEEP:
            raise BadParcel(f"more than {MOST_DEEP} folders within each other")
        self.folders += 1
        is_made = True
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            is_made = False
        fd = os.open(name, _FOLDER, dir_fd=folder)
        self._open.append(_Filling(fd, _within(self._open, name), _to_dress(entry) if is_made else None))
        if is_made:
            _adorn(fd, entry)

    def _leave(self) -> None:
        if not self._open or self._rising is not None:
            raise BadParcel("the end of a folder that has none")
        top = self._open.pop()
        try:
            if top.made is not None:
                self._dress(top.fd, top.made)
        finally:
            os.close(top.fd)

    def _write(self, piece: Content) -> None:
        if self._rising is None or piece.offset + len(piece.content) > MOST_SIZE:
            raise BadParcel("content of no file")
        rest, at = memoryview(piece.content), piece.offset
        while rest:
            done = os.pwrite(self._rising.fd, rest, at)
            rest, at = rest[done:], at + done
        self.size_bytes += len(piece.content)

    def _finish(self, size: int) -> None:
        rising = self._rising
        if rising is None or size > MOST_SIZE:
            raise BadParcel("the end of a file that has none")
        os.ftruncate(rising.fd, size)
        self._dress(rising.fd, rising.entry)
        _name(rising)
        self._rising = None
        os.close(rising.fd)
        if rising.entry.number:
            self._linked.keep(rising.entry.number, _within(self._open, rising.entry.name))

    def _dress(self, fd: int, entry: ParcelItem) -> None:
        """Give the file or folder its owner, ACLs, attributes, mode and time, in this order: each takes away from
        others. It loses the ACLs that it has from the folder that it was made in.
        """
        if self._owners.gives:
            os.fchown(fd, self._owners.of(entry.uid), self._owners.of(entry.gid))
        for name in ACLS:
            with contextlib.suppress(OSError):  # there is none
                os.removexattr(fd, name)
        for name, value in entry.xattrs:
            if name in ACLS:
                with contextlib.suppress(OSError):  # a file system without them, or with room for less
                    os.setxattr(fd, name, with_ids(value, self._owners.of))
        _adorn(fd, entry)
        os.fchmod(fd, entry.mode if self._owners.set_ids else entry.mode & 0o1777)
        os.utime(fd, ns=(entry.mtime, entry.mtime))

    def _own(self, entry: ParcelItem, name: str, folder: int) -> None:
        if self._owners.gives:
            owner, group = self._owners.of(entry.uid), self._owners.of(entry.gid)
            os.chown(name, owner, group, dir_fd=folder, follow_symlinks=False)

    def _link_again(self, folder: int, name: str, number: int) -> None:
        """Give a file that was made before one more name. Its folder is looked for anew, name by name."""
        place = self._linked.places.get(number)
        if place is None or self._landing is None:
            raise BadParcel("one more name of a file that was not in it")
        with contextlib.ExitStack() as held:
            above = self._landing.folder
            for one in [*place.upwards()][:0:-1]:
                above = os.open(one.name, _FOLDER, dir_fd=above)
                held.callback(os.close, above)
            with _beside(folder, name) as beside:
                os.link(place.name, beside, src_dir_fd=above, dst_dir_fd=folder, follow_symlinks=False)

    def _abandon(self) -> None:
        """Remove the file that is being written."""
        rising, self._rising = self._rising, None
        if rising is not None:
            os.close(rising.fd)
            if rising.beside:
                with contextlib.suppress(OSError):  # somebody has removed it
                    os.unlink(rising.beside, dir_fd=rising.folder)


def _within(filling: Sequence[_Filling], name: str) -> _MadeAt:
    """The place of `name` in the last of the folders."""
    return _MadeAt(filling[-1].place if filling else None, name)


def _adorn(fd: int, entry: ParcelItem) -> None:
    """Give the file or folder the attributes of users."""
    for name, value in entry.xattrs:
        if name.startswith(b"user."):
            with contextlib.suppress(OSError):  # a file system without them, or with room for less
                os.setxattr(fd, name, value)


def _to_dress(entry: ParcelItem) -> ParcelItem:
    """What is still to be done to a folder when it is full. Its attributes are not: they may be long, and folders that
    are not full many.
    """
    acls = {name: value for name, value in entry.xattrs if name in ACLS and len(value) <= _ACL_BYTES}
    return ParcelItem("", entry.kind, entry.mode, entry.uid, entry.gid, entry.mtime, tuple(acls.items()))


def _rise(folder: int, entry: ParcelItem) -> _Rising:
    """A file for `entry` in the folder, empty, to be called `entry.name`. Raises OSError."""
    if os.path.isdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):  # told with its name below
            return _Rising(os.open(".", _NAMELESS, 0o600, dir_fd=folder), folder, "", entry)
    beside = f"{BESIDE}{os.urandom(6).hex()}"
    return _Rising(os.open(beside, _NEW, 0o600, dir_fd=folder), folder, beside, entry)


def _name(rising: _Rising) -> None:
    """Give the file its name, in place of what has it. Raises OSError."""
    folder, name = rising.folder, rising.entry.name
    if rising.beside:
        os.rename(rising.beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    itself = f"{_DESCRIPTORS}/{rising.fd}"
    try:
        os.link(itself, name, dst_dir_fd=folder, follow_symlinks=True)
    except FileExistsError:
        with _beside(folder, name) as beside:
            os.link(itself, beside, dst_dir_fd=folder, follow_symlinks=True)


@contextlib.contextmanager
def _beside(folder: int, name: str) -> Iterator[str]:
    """A name for the `with` block to make something under, which gets the name `name` then."""
    beside = f"{BESIDE}{os.urandom(6).hex()}"
    try:
        yield beside
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=folder)


def unpack(
    records: Iterator[Packed],
    lands: Callable[[ParcelItem], Landing],
    owners: Owners,
    spend: Callable[[int], None] = lambda size: None,
) -> Unpacking:
    """Unpack the next parcel of `records`, and return what tells of it. `lands`: as of Unpacking. `spend`: told of each
    piece of the disk before it is taken, in bytes; raises if that is too much. Raises OSError, BadParcel, what `spend`
    and the records raise; what was made until then stays, but no file that is not whole.
    """
    with contextlib.closing(Unpacking(lands, owners)) as unpacking:
        for record in records:
            spend(_cost(record))
            unpacking.take(record)
            if unpacking.is_whole:
                return unpacking
    raise BadParcel("it has no end")


def _cost(record: Packed) -> int:
    match record:
        case ParcelItem():
            return ENTRY_BYTES + sum(len(value) for _, value in record.xattrs)
        case Content():
            return len(record.content)
        case _:
            return 0


def pour(records: Iterator[Packed], fd: int) -> None:
    """Write the content of the file that is the next parcel of `records` to `fd`, which need not be a file; holes are
    zeros. Raises BadParcel also for a folder, OSError.
    """
    first, done, is_over = next(records, None), 0, False
    if not isinstance(first, ParcelItem) or first.kind != "file":
        raise BadParcel("it is no file")

    def write(end: int, content: bytes) -> int:
        if end - len(content) < done:
            raise BadParcel("a piece lies before another")
        at = done
        while at < end - len(content):
            at += os.write(fd, bytes(min(end - len(content) - at, 1 << 16)))
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        return end

    for record in records:
        match record:
            case Content():
                done = write(record.offset + len(record.content), record.content)
            case FileEnd():
                done, is_over = write(record.size, b""), True
            case ParcelEnd() if is_over:
                return
            case _:
                raise BadParcel("it is more than a file")
    raise BadParcel("it has no end")
