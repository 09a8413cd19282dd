"""What is to be known of the files of the base, without the store, to see whether the machine still has them."""

import contextlib
import os
import stat
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from waypoint.capture.base_files.mentioned import BaseFile
from waypoint.linux.storage import beneath, files, filesystem
from waypoint.linux.storage.descriptors import open_folder
from waypoint.upper import layout

LISTING = "base-files"
"""The file in the capture's hot folder; missing as long as the capture is not in the store."""
BROUGHT = "base"
"""The folder there with files of the base that the machine did not have when the capture was brought back."""


_KEPT = (b"security.capability", b"system.posix_acl_access")


class BaseRow(msgspec.Struct, frozen=True):
    """`mtime`: in nanoseconds."""

    file: BaseFile
    size: int
    mtime: int


_MOST_BYTES = 32 << 20


class BaseListing(msgspec.Struct, frozen=True):
    """`rows`: the files that the image has. `left_out`: in words, which it has not, and why."""

    rows: list[BaseRow] = []
    left_out: list[str] = []


def save(hot: str, listing: BaseListing) -> None:
    """Write the listing into the capture's hot folder. It may be lost by a power loss. Raises OSError."""
    files.publish(f"{hot}/{LISTING}", msgspec.msgpack.encode(listing), durable=False)


def load(hot: str) -> BaseListing:
    """The listing; an empty one if there is none, or it is torn: then no more is known than CRIU will find out."""
    try:
        return msgspec.msgpack.decode(files.read_small(f"{hot}/{LISTING}", _MOST_BYTES), type=BaseListing)
    except (OSError, msgspec.MsgspecError):
        return BaseListing()


class CapturedBase(NamedTuple):
    """The files of the base of one capture. `hot`: the capture's hot folder. `base`: the path of its session's base."""

    hot: str
    base: str

    @property
    def left_out(self) -> list[str]:
        """In words, which files the image does not have; none as long as there is no image."""
        return load(self.hot).left_out

    def differing(self) -> list[BaseFile]:
        """The files that the base lacks now, or has with another size or another time; none as long as there is no
        image. Looks at each.
        """
        return [row.file for row in load(self.hot).rows if self._now(row) != row]

    def note_same(self, files: Collection[BaseFile]) -> None:
        """These, which differ, have just been seen to have the same content as before: the listing gets the time that
        they have now, so that they need not be read again. Raises OSError.
        """
        listing = load(self.hot)
        rows = [(row.file in files and self._now(row)) or row for row in listing.rows]
        save(self.hot, msgspec.structs.replace(listing, rows=rows))

    @property
    def brought(self) -> str:
        """The folder for what was brought from the store, in the form of an upper tree that has nothing else."""
        return f"{self.hot}/{BROUGHT}"

    def not_brought(self, files: Collection[BaseFile]) -> list[BaseFile]:
        """Those of the files that are not there, as a whole. Looks at each."""
        rows = [row for row in load(self.hot).rows if row.file in files]
        return [row.file for row in rows if self._now(row, self._place(row.file)) != row]

    def give(self, tree: str) -> None:
        """Copy all that was brought into the upper tree at the path `tree`. Raises OSError, CalledProcessError."""
        for mount in os.listdir(self.brought):
            target = layout.target_of(mount)
            filesystem.copy_tree_over(layout.base_of(self.brought, target), layout.base_of(tree, target))

    def _place(self, file: BaseFile) -> str:
        return f"{layout.base_of(self.brought, file.target)}/{file.path}"

    def _now(self, row: BaseRow, place: str = "") -> BaseRow | None:
        """What the base, or else `place`, has of the file. A link on the way is followed, as CRIU will do."""
        with contextlib.suppress(OSError):
            facts = os.stat(place or f"{lower_of(self.base, row.file.target)}/{row.file.path}", follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode):
                return BaseRow(row.file, facts.st_size, facts.st_mtime_ns)
        return None


@contextlib.contextmanager
def opened_in_base(base: str, file: BaseFile) -> Iterator[int]:
    """A descriptor (O_PATH) of what the base at the path `base` has in the place of the file, as an overlay shows it:
    nothing that is mounted there, or behind a link. Raises OSError.
    """
    with open_folder(lower_of(base, file.target)) as root, beneath.opened(root, file.path, across=False) as fd:
        yield fd


def kept_xattrs(path: str) -> list[tuple[bytes, bytes]]:
    """The extended attributes of the file that an image keeps: ACL, capabilities, and those of its user's choice."""
    names = sorted(name for name in os.listxattr(path) if is_kept(os.fsencode(name)))
    return [(os.fsencode(name), os.getxattr(path, name)) for name in names]


def is_kept(name: bytes) -> bool:
    """Whether a file of the base has the attribute in an image. Others have a meaning on its machine alone (a label of
    SELinux, marks of overlayfs), and one of a hostile image could be any.
    """
    return name in _KEPT or (name.startswith(b"user.") and not name.startswith(b"user.overlay."))


def lower_of(base: str, target: str) -> str:
    """The machine's folder that the session's mount at `target` lies over."""
    return f"{base.rstrip('/')}{target}"
