"""Copies of objects that could not be read are noted, so that nobody takes content for stored that is not.

A copy is an object in one pack. A note is a doubt: who would rely on such a copy reads it first, and puts the content
again if it cannot be read. It is noted by address and pack, as long as the pack is there: whichever way the index is
made again, what can be read elsewhere is never read from there.
"""

import contextlib
import os
from collections.abc import Collection, Iterator

from waypoint.linux.storage import files
from waypoint.store.content.store_folder import StoreFolder
from waypoint.store.packs.pack_index import Copy

_LOCK = "damaged"


def known(folder: StoreFolder) -> frozenset[Copy]:
    """The copies that are noted. An earlier version has noted no pack: "". Raises OSError."""
    try:
        noted = files.read_own(folder.damaged)
    except FileNotFoundError:
        return frozenset()
    return frozenset(_understood(noted))


def note(folder: StoreFolder, unreadable: Collection[Copy], readable: Collection[Copy] = ()) -> None:
    """Note copies that could not be read, and forget those that could, or whose pack is gone. Durable on return. Any
    process may do it. Raises OSError.
    """
    with files.locked(f"{folder.locks}/{_LOCK}"):
        before = known(folder)
        noted = (before | {*unreadable}) - {*readable}
        gone = {one for one in noted if one[1] and not os.path.exists(folder.pack(one[1]))}
        if gone:
            folder.sync(folder.packs)  # else a power loss could bring the pack back, and nobody would doubt it
            noted -= gone
        if noted and noted != before:
            lines = (f"{address.hex()} {pack}".rstrip() + "\n" for address, pack in sorted(noted))
            files.publish(folder.damaged, "".join(lines).encode())
        elif not noted:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(folder.damaged)


def _understood(noted: bytes) -> Iterator[Copy]:
    for line in noted.decode("ascii", "replace").splitlines():
        address, _, pack = line.partition(" ")
        with contextlib.suppress(ValueError):  # a line that says nothing: it is but a doubt
            yield bytes.fromhex(address), pack
