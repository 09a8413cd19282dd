"""Exports for tests: sound ones, as a store writes them, and forged ones, piece by piece."""

import contextlib
import io
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.store.content.stores import new_store
from tests.upper.pictures import picture
from waypoint.capture.storing.image_manifest import StoredPart, manifest_of
from waypoint.capture.storing.importing import inspect
from waypoint.capture.storing.orders import Inspect, Inspected
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, FilesLayer, Layers, Setting, User
from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.opened import Store
from waypoint.store.exports.export_format import OBJECT_HEAD, PieceKind, PieceReader, PieceWriter, new_header
from waypoint.store.exports.export_writing import Consignment, size_of, write_export
from waypoint.store.packs.codecs import encode
from waypoint.store.packs.digests import Kind, digest_of
from waypoint.store.trees import entries
from waypoint.store.trees.entries import Piece, Root, TreeEntry
from waypoint.store.trees.gathering import gather

ROOM = 1 << 40
Parts = list[tuple[PieceKind, bytes]]


def capture(**changes: Any) -> Capture:
    user = User(uid=0, gid=0, groups=[0], name="root", home="/root", shell="/bin/bash")
    setting = Setting(base="/", binds=[], net="private", user=user, cwd="/", env={}, command=[])
    made = Capture(
        id=new_id(),
        branch="main",
        parents=[],
        created=1.8e9,
        tier="files",
        layers=Layers(files=FilesLayer(tree=new_id())),
        setting=setting,
        reason="exited",
    )
    return msgspec.structs.replace(made, **changes)


def image_of(root: bytes, of: Capture | None = None, parents: Sequence[str] = (), part: str = "files") -> ImageFile:
    """An image whose files are those of the ROOT; `part`: in which it has these, besides."""
    of = of or capture()
    parts = {name: StoredPart(root=root.hex()) for name in {"files", part}}
    return ImageFile(manifest_of(of, list(parents), parts), msgspec.json.encode(of))


class Sound(NamedTuple):
    content: bytes
    folder: Path
    images: list[ImageFile]


def fill(folder: Path) -> None:
    (folder / "below/deep").mkdir(parents=True)
    (folder / "text").write_bytes(b"content\n" * 2000)
    (folder / "below/random").write_bytes(os.urandom(700_000))
    (folder / "below/deep/empty").write_bytes(b"")
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "below/fifo")
    (folder / "linked").hardlink_to(folder / "text")


def sound(
    place: Path, *, encrypted: bool = False, key: Ed25519PrivateKey | None = None, passphrase: bytes = b""
) -> Sound:
    """An export of two images, the second goes on from the first, from a store in a new folder in `place`."""
    folder = Path(tempfile.mkdtemp(dir=place))
    with stored(folder, encrypted=encrypted) as (store, images, roots):
        content = exported(store, Consignment("warm", images, roots, 0, key, passphrase))
    return Sound(content, folder / "files", images)


@contextlib.contextmanager
def stored(folder: Path, *, encrypted: bool = False) -> Iterator[tuple[Store, list[ImageFile], list[bytes]]]:
    """A store in `folder` with what can be exported: two images, the second goes on from the first; and their roots."""
    with contextlib.closing(new_store(folder / "store", encrypted=encrypted)) as store:
        (folder / "files").mkdir()
        fill(folder / "files")
        with store.writing("test") as writer:
            roots = [_gathered(writer, folder / "files")]
            (folder / "files/text").write_bytes(b"content\n" * 1999 + b"changed\n")
            roots.append(_gathered(writer, folder / "files", roots[0]))
            writer.commit()
        first = image_of(roots[0])
        yield store, [first, image_of(roots[1], parents=[digest_of(Kind.MANIFEST, first.manifest).hex()])], roots


def exported(store: Store, consignment: Consignment) -> bytes:
    out = io.BytesIO()
    assert size_of(store, consignment) > 0
    write_export(store, consignment, lambda part: _kept(out, part))
    return out.getvalue()


def _kept(out: io.BytesIO, part: bytes) -> None:
    out.write(part)


def _gathered(writer: Any, folder: Path, earlier: bytes = b"") -> bytes:
    with open_folder(folder) as fd:
        return gather(writer, fd, earlier=earlier)


def look(content: bytes, *, passphrase: str = "", signer: str = "", most_bytes: int = ROOM) -> Inspected:
    """What `import` makes of it."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        order = Inspect(store="", fd=file.fileno(), passphrase=passphrase, signer=signer, most_bytes=most_bytes)
        return inspect(order)


def parts_of(content: bytes) -> Parts:
    return list(PieceReader(io.BytesIO(content), b"").pieces())


def forged(parts: Iterable[tuple[PieceKind, bytes]]) -> bytes:
    """An export of these pieces, the END of which is right."""
    out = io.BytesIO()
    writer = PieceWriter(lambda part: _kept(out, part), new_header(encrypted=False, signed=False), b"")
    for kind, content in parts:
        if kind == PieceKind.END:
            content = msgspec.msgpack.encode([writer.digest(), b"", b""])
        writer.put(kind, content)
    return out.getvalue()


class Forge:
    """Makes an export of one image, object by object."""

    def __init__(self) -> None:
        self.objects: Parts = []

    def put(self, kind: Kind, content: bytes) -> bytes:
        digest, encoded = digest_of(kind, content), encode(content)
        head = OBJECT_HEAD.pack(kind, encoded.codec, len(content), digest)
        self.objects.append((PieceKind.OBJECT, head + encoded.payload))
        return digest

    def tree(self, *inside: TreeEntry) -> tuple[bytes, int]:
        content = msgspec.msgpack.encode(list(inside))
        return self.put(Kind.TREE, content), len(inside)

    def root(self, *rows: Piece, links: Sequence[Piece] = ()) -> bytes:
        return self.put(Kind.ROOT, entries.encode_root(Root(entry(b"", entries.FOLDER, rows=list(rows)), list(links))))

    def export(self, root: bytes, image: ImageFile | None = None) -> bytes:
        parts: Parts = [(PieceKind.HEAD, msgspec.msgpack.encode(["", 1, 0])), *self.objects]
        parts.append((PieceKind.IMAGE, msgspec.msgpack.encode(image or image_of(root))))
        return forged([*parts, (PieceKind.END, b"")])


def entry(name: bytes, kind: int = entries.REGULAR, **more: Any) -> TreeEntry:
    fields: dict[str, Any] = {"mode": 0o755, "uid": 0, "gid": 0, "mtime": 0, "xattrs": [], "rows": []}
    return TreeEntry(name=name, kind=kind, **{**fields, **more})


def hostile(*inside: TreeEntry, part: str = "files") -> bytes:
    """An export with these names in its files, and in `part`."""
    forge = Forge()
    root = forge.root(forge.tree(*inside))
    return forge.export(root, image_of(root, part=part))


@contextlib.contextmanager
def nothing_written(folder: Path) -> Iterator[None]:
    """In the `with` block nothing below the folder gets another content, name, mode, owner, time, or is linked to."""
    before = _seen(folder)
    yield
    assert _seen(folder) == before


def _seen(folder: Path) -> tuple[object, ...]:
    return picture(folder), [(path, path.lstat().st_nlink, path.lstat().st_ino) for path in sorted(folder.rglob("*"))]
