"""Upkeep of a store: looking for damage, and giving back the space of what no image needs."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from waypoint.linux.storage import files
from waypoint.model.errors import StoreDamaged, UnknownName, WaypointError
from waypoint.store import trees
from waypoint.store.index import Location
from waypoint.store.objects import Kind
from waypoint.store.packs import BadPack, compute_digest
from waypoint.store.store import PACK_BYTES, Reader, Store, Writer

_KEPT_SHARE = 0.75
"""A pack of which a larger share is needed is not rewritten."""
_SMALL_BYTES = PACK_BYTES // 4
_MANY_SMALL = 8
"""So many small packs are merged."""

_REMOVE = "remove what 'waypoint verify' lists as damaged: waypoint rm NAME"


class Damage(NamedTuple):
    """Something that is not as it was written. `images`: the ids of the images that cannot be restored completely."""

    said: str
    images: list[str]


def _ignore(_: int) -> None:
    pass


def verify(store: Store, *, read_data: bool, on_progress: Callable[[int], None] = _ignore) -> list[Damage]:
    """Look for damage. Without `read_data`: each pack's size and directory, all manifests, trees and lists, and whether
    all objects that they need exist. With it: every byte of every pack.

    With `read_data`, the index is rebuilt, and objects that cannot be read are removed from it: so the next checkpoint
    that has them stores them again. The other objects of a damaged pack are moved to a new one. `on_progress`: gets
    the bytes of the packs that were looked at.
    """
    found: list[Damage] = []
    done = 0
    with store.writing() as writer:
        said = [f"{store.pack(name)}: {why}" for name, why in store.catch_up(writer.index, rebuild=read_data).items()]
        bad, damaged = set[bytes](), list[str]()
        for name, size in writer.index.packs().items():
            problems = list(_pack_problems(store, name, size, read_data=read_data))
            said += problems
            if problems and read_data:
                damaged.append(name)
            for address, _ in writer.index.objects(name) if read_data else ():
                try:
                    writer.check(address)
                except StoreDamaged as error:
                    bad.add(address)
                    said.append(_words(error))
            done += size
            on_progress(done)
        writer.index.forget_objects(bad)
        for name in damaged:
            _rewrite(writer, [_Pack(name, 0, [address for address, _ in writer.index.objects(name)])])
        seen: set[bytes] = set()
        for image_id in store.image_ids():
            problems = list(image_problems(writer, image_id, seen))
            found += [Damage(f"image {image_id[:12]}: {one}", [image_id]) for one in problems]
    return [Damage(one, []) for one in said] + found


def _pack_problems(store: Store, name: str, size: int, *, read_data: bool) -> Iterator[str]:
    path = store.pack(name)
    try:
        directory = store.read_directory(name)
        if directory.size != size or directory.digest.hex() != name:
            yield f"{path}: its size or its digest is another one than was written"
        elif read_data and compute_digest(path) != directory.digest:
            yield f"{path}: its bytes are not those that were written"
    except (BadPack, OSError) as error:
        yield f"{path}: {error}"


def image_problems(reader: Reader, image_id: str, seen: set[bytes]) -> Iterator[str]:
    """Why an image cannot be restored completely. `seen`: objects that need not be looked at; it gets those of images
    that can be restored.
    """
    try:
        manifest = reader.store.read_image(image_id)
    except (StoreDamaged, UnknownName) as error:
        yield error.said
        return
    problems: list[StoreDamaged] = []
    added = list(trees.reachable(reader, manifest.roots(), seen, problems.append))
    # An object of another kind was read above.
    missing = [digest.hex()[:16] for kind, digest in added if kind == Kind.DATA and not reader.has(digest)]
    if problems or missing:
        seen.difference_update(digest for _, digest in added)
    yield from sorted({*map(_words, problems)})
    if missing:
        yield f"{len(missing)} parts of files are missing; the first: {missing[0]}"


def _words(error: WaypointError) -> str:
    return f"{error.on}: {error.said}"


class Freed(NamedTuple):
    """`bytes`: by how much the packs have become smaller. `images`: how many were removed."""

    bytes: int
    images: int


class _Pack(NamedTuple):
    """A pack, and the addresses of those of its objects that are needed."""

    name: str
    size: int
    needed: list[bytes]


def sizes(reader: Reader, images: Sequence[str]) -> list[int]:
    """By how many bytes each of these images makes the store larger than the images before it in the list do. What
    cannot be read counts as nothing: `verify` reports it.
    """
    seen, counted, found = set[bytes](), set[bytes](), list[int]()
    for image_id in images:
        roots = list[bytes]()
        with contextlib.suppress(StoreDamaged, UnknownName):
            roots = reader.store.read_image(image_id).roots()
        needed = [reader.address(digest) for _, digest in trees.reachable(reader, roots, seen, lambda _: None)]
        needed += reader.index.bases(needed)
        added = {one: at.stored for one, at in reader.find_each(needed).items() if one not in counted}
        counted |= added.keys()
        found.append(sum(added.values()))
    return found


def gc(store: Store, keep: Collection[str], on_progress: Callable[[int], None] = _ignore) -> Freed:
    """Remove all images but `keep`, and the objects that only they need. Waits for a running writer.

    Also removes packs whose directory cannot be read, if no image to keep lacks an object. Takes at most the space of
    one more pack meanwhile. Raises StoreDamaged if a tree of an image to keep cannot be read: then nothing is removed,
    since nobody knows what the image needs. `on_progress`: gets the bytes of the packs that were replaced.
    """
    with store.writing() as writer:
        gone = set(store.image_ids()) - set(keep)
        try:
            needed = _mark(writer, [one for one in store.image_ids() if one not in gone])
        except StoreDamaged as error:  # choosing another capture, as for a restore, would not help
            raise StoreDamaged("read", error.on, error.said, _REMOVE, code=error.code) from error
        for name in os.listdir(f"{store.path}/images"):
            if name not in keep:  # also what a killed writer has left there
                os.unlink(f"{store.path}/images/{name}")
        files.sync_folder(f"{store.path}/images")
        before = sum(writer.index.packs().values())
        done = 0
        for group in _groups(sorted(_sparse(writer, needed), key=lambda pack: len(pack.needed))):
            _rewrite(writer, group)
            done += sum(pack.size for pack in group)
            on_progress(done)
        if all(map(writer.index.has, needed)):
            for name in set(store.pack_names()) - writer.index.packs().keys():
                os.unlink(store.pack(name))
        writer.index.shrink()
        return Freed(max(0, before - sum(writer.index.packs().values())), len(gone))


def _mark(writer: Writer, images: list[str]) -> set[bytes]:
    """The addresses of all objects that these images need."""
    seen: set[bytes] = set()
    roots = [root for one in images for root in writer.store.read_image(one).roots()]
    needed = {writer.address(digest) for _, digest in trees.reachable(writer, roots, seen)}
    return needed | writer.index.bases(needed)


def _sparse(writer: Writer, needed: set[bytes]) -> Iterator[_Pack]:
    """The packs to be rewritten or removed."""
    small: list[_Pack] = []
    for name, size in writer.index.packs().items():
        objects = writer.index.objects(name)
        kept = [(address, found) for address, found in objects if address in needed]
        pack = _Pack(name, size, [address for address, _ in kept])
        if not kept or _stored(kept) < _KEPT_SHARE * _stored(objects):
            yield pack
        elif size < _SMALL_BYTES:
            small.append(pack)
    if len(small) >= _MANY_SMALL:
        yield from small


def _stored(objects: list[tuple[bytes, Location]]) -> int:
    return sum(found.stored for _, found in objects)


def _groups(packs: list[_Pack]) -> Iterator[list[_Pack]]:
    """Packs whose needed objects fit into one pack. Those without any come first."""
    group: list[_Pack] = []
    size = 0
    for pack in packs:
        adds = pack.size if pack.needed else 0
        if group and size + adds > PACK_BYTES:
            yield group
            group, size = [], 0
        group.append(pack)
        size += adds
    if group:
        yield group


def _rewrite(writer: Writer, packs: list[_Pack]) -> None:
    """Write the needed objects of these packs to one new pack, and remove these packs. A pack with a needed object that
    cannot be read stays as it is.
    """
    replaced: list[str] = []
    for pack in packs:
        with contextlib.suppress(StoreDamaged):  # `verify` reports it
            for address in pack.needed:
                writer.copy(*writer.payload(address))
            replaced.append(pack.name)
    new = writer.end_pack(replaced)
    for name in replaced:
        if name != new:
            os.unlink(writer.store.pack(name))
