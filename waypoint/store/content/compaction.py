"""Giving back the room of objects that nothing refers to any more.

A pack is never changed. One without an object that is needed is removed; what is needed of one that is mostly not, and
of small ones, is written to a new pack first. The old files go when nobody reads; the index leads to them no more.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from waypoint.model.errors import StoreDamaged, WaypointError
from waypoint.model.ids import new_id
from waypoint.store.content import damage
from waypoint.store.content.checking import read_doubted
from waypoint.store.content.object_reader import ObjectReader
from waypoint.store.content.object_writer import PACK_BYTES, PACK_OBJECTS
from waypoint.store.content.opened import Store
from waypoint.store.content.write_steps import WriteStep, reached
from waypoint.store.packs.pack_index import Found, PackIndex
from waypoint.store.packs.pack_writer import PackWriter

_KEPT_SHARE = 0.75
"""A pack of which more is needed stays as it is."""
_SMALL_BYTES = PACK_BYTES // 4
_MANY_SMALL = 16
"""So many small packs are made one: each costs a file, and a name to look at whenever the store is opened."""

Placed = tuple[bytes, Found]


class Compacted(NamedTuple):
    """`freed_bytes`: what packs take less of the disk than before. `waiting_bytes`: what goes when nobody reads."""

    freed_bytes: int
    waiting_bytes: int


class _Sparse(NamedTuple):
    """A pack that is to go, with those of its objects that are needed."""

    name: str
    size: int
    live: list[Placed]


def compact(store: Store, live: Iterable[bytes], make_room: Callable[[], None] = lambda: None) -> Compacted:
    """Remove all objects but those at the addresses `live`, and those that these are told from.

    Takes at most the room of one pack for a while. `make_room`: called first; has a little room free on the disk, which
    the index takes even if packs are only removed. Raises StateConflict if somebody writes, Failed (a disk without any
    room: what needs none is removed by then), StoreDamaged if a needed object cannot be read: its pack alone stays.
    """
    make_room()
    with store.told("compact"), store.folder.writing("gc"):
        with store.folder.reading():  # nobody removes packs that an index which is made anew finds
            index = store.index()
        needed = set(live)
        needed |= index.bases(needed)
        before = sum(index.packs().values()) + store.retired_bytes()
        sparse = sorted(_sparse(index, needed), key=lambda pack: len(pack.live))
        empty = [pack.name for pack in sparse if not pack.live]
        index.replace([], empty)
        store.remove_retired()
        damaged: list[StoreDamaged] = []
        for pieces in _groups([pack for pack in sparse if pack.live]):
            damaged += _rewrite_readable(store, index, pieces)
            store.remove_retired()
        if damaged:
            raise damaged[0]
        waiting = store.retired_bytes()
        return Compacted(max(0, before - sum(index.packs().values()) - waiting), waiting)


def mend(store: Store) -> None:
    """Write packs anew, without their damage, in which there is no other than of what lies elsewhere by now: so the
    damaged files go. What can be read again is noted no more: as what it is told from was put again, or the disk or the
    machine has refused it only then. Does not raise: a pack that has more damage stays, and all if somebody writes, or
    the disk is full.
    """
    with contextlib.suppress(WaypointError), store.told("mend"):
        read_doubted(store)
        with store.folder.writing("mend"):
            with store.folder.reading():  # as in `compact`
                index = store.index()
            for name in sorted(_superseded(index)):
                with contextlib.suppress(StoreDamaged):
                    _rewrite(store, index, [_Sparse(name, index.packs()[name], index.objects(name))])
            store.remove_retired()
        damage.note(store.folder, ())


def _superseded(index: PackIndex) -> set[str]:
    """The packs with copies that are doubted, of objects that are read from others; not if one is read from there yet,
    as it can be written nowhere.
    """
    there, superseded, needed = index.packs().keys(), set[str](), set[str]()
    for address, packs in index.doubted.items():
        found = index.find(address)
        if found is not None:
            superseded |= (packs & there) - {found.pack}
            needed |= packs & {found.pack}
    return superseded - needed


def _sparse(index: PackIndex, needed: set[bytes]) -> Iterator[_Sparse]:
    small: list[_Sparse] = []
    for name, size in index.packs().items():
        there = list(index.objects(name))
        pack = _Sparse(name, size, [(address, found) for address, found in there if address in needed])
        if not pack.live or _stored(pack.live) < _KEPT_SHARE * _stored(there):
            yield pack
        elif size < _SMALL_BYTES:
            small.append(pack)
    if len(small) >= _MANY_SMALL:
        yield from small


def _stored(objects: list[Placed]) -> int:
    return sum(found.stored for _, found in objects)


def _groups(packs: list[_Sparse]) -> Iterator[list[_Sparse]]:
    """Packs whose needed objects fit into one."""
    group: list[_Sparse] = []
    size = count = 0
    for pack in packs:
        adds = _stored(pack.live)
        if group and (size + adds > PACK_BYTES or count + len(pack.live) > PACK_OBJECTS):
            yield group
            group, size, count = [], 0, 0
        group.append(pack)
        size += adds
        count += len(pack.live)
    if group:
        yield group


def _rewrite_readable(store: Store, index: PackIndex, packs: list[_Sparse]) -> list[StoreDamaged]:
    """As `_rewrite`, without those packs of which something cannot be read. Returns why, for each of them."""
    try:
        _rewrite(store, index, packs)
    except StoreDamaged as error:
        if len(packs) == 1:
            return [error]
        return [one for pack in packs for one in _rewrite_readable(store, index, [pack])]
    return []


def _rewrite(store: Store, index: PackIndex, packs: list[_Sparse]) -> None:
    """Write the needed objects of these packs to a new one, which replaces them."""
    reader = ObjectReader(store.folder, index, store.keys)
    new = PackWriter(f"{store.folder.tmp}/{new_id()}", store.cipher, store.keys.seal)
    try:
        for pack in packs:
            for address, found in pack.live:
                row, payload = reader.payload(address, found)
                new.add(row, payload)
        made = new.finish()
    finally:
        new.abandon()
        reader.close()
    store.folder.publish(new.path, store.folder.pack(made))
    store.folder.sync(store.folder.packs)
    reached(WriteStep.COPIED)
    index.replace([(made, new.size, new.rows)], [pack.name for pack in packs])
    reached(WriteStep.RETIRED)
