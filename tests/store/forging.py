"""Archives with any content, also content that Waypoint would never write."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.store.test_hostile import entry
from waypoint.model.records import Capture, Setting, User
from waypoint.store import entries, manifest
from waypoint.store.archives import archive
from waypoint.store.archives.layout import Descriptor, LayoutWriter
from waypoint.store.entries import Root, TreeEntry
from waypoint.store.manifest import ImageLayer
from waypoint.store.objects import Codec, Kind, address_of, digest_of
from waypoint.store.packs import PackRow, PackWriter

ROOT = User(name="root", uid=0, gid=0, groups=[0], home="/root", shell="/bin/sh")
SETTING: dict[str, Any] = msgspec.to_builtins(
    Setting(base="/", binds=[], net="private", user=ROOT, cwd="/", env={}, command=[])
)
FACTS: dict[str, Any] = {"tier": "files", "setting": SETTING, "degraded": [], "folder": "/", "exit": None}


def record(number: int = 1, parents: tuple[int, ...] = (), **changed: Any) -> dict[str, Any]:
    found = Capture(
        id=f"{number:032x}",
        branch="main",
        parents=[f"{parent:032x}" for parent in parents],
        created=1.0,
        tier="files",
        layers={"files": {"tree": ""}},
        setting=msgspec.convert(SETTING, Setting),
        reason="checkpoint",
    )
    return dict(msgspec.to_builtins(found)) | changed


class Forge:
    """Collects objects and layers, and writes them as an archive to `path`. Fields may be changed before `write`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[tuple[PackRow, bytes]] = []
        self.facts = dict(FACTS)
        self.layers: dict[str, ImageLayer] = {}
        self.records: list[dict[str, Any]] | None = None
        self.layers["files"] = ImageLayer(roots={"tree": self.tree(self.file(b"file", b"content"))})

    def put(self, kind: Kind, content: bytes, length: int | None = None) -> bytes:
        digest = digest_of(kind, content)
        row = PackRow(address_of(digest, archive.KEY), kind, Codec.RAW, len(content), length or len(content))
        self.rows.append((row, content))
        return digest

    def file(self, name: bytes, content: bytes, **fields: Any) -> TreeEntry:
        return entry(name, entries.FILE, rows=[(self.put(Kind.DATA, content), len(content))], **fields)

    def folder(self, name: bytes, *inside: TreeEntry) -> TreeEntry:
        content = sorted(inside, key=lambda one: one.name)
        rows = [(self.put(Kind.TREE, entries.encode(content)), len(content))] if content else []
        return entry(name, rows=rows)

    def root(self, *inside: TreeEntry) -> str:
        return self.put(Kind.ROOT, entries.encode(Root(self.folder(b"", *inside), []))).hex()

    def tree(self, *inside: TreeEntry) -> str:
        """The root of the layer `files`, whose upper directory of `/` has these entries."""
        return self.root(self.folder(b"m0", self.folder(b"upper", *inside), self.folder(b"work")))

    def write(self, name: str = "forged", sign: Callable[[bytes], bytes] | None = None) -> None:
        image = manifest.encode(manifest.new([], self.layers, {}, self.facts))
        told = self.records or [{"image": manifest.id_of(image), "capture": record(), "name": name}]
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            layout = LayoutWriter(fd)
            content = archive.Content(
                name=name,
                images=[image],
                records=msgspec.json.encode([{"image": manifest.id_of(image), "name": name} | one for one in told]),
                layers=[],
                packs=[self._pack(layout)],
                created="1970-01-01T00:00:00.000Z",
                architecture="amd64",
            )
            archive.finish(layout, content, sign)
        finally:
            os.close(fd)

    def _pack(self, layout: LayoutWriter) -> Descriptor:
        path = f"{self.path}.pack"
        pack = PackWriter(path)
        seen = set()
        for row, content in self.rows:
            if row.address not in seen:
                pack.add(row, content)
            seen.add(row.address)
        pack.finish()
        content = Path(path).read_bytes()
        os.unlink(path)
        return layout.add(archive.PACK_TYPE, content)
