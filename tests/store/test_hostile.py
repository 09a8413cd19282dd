"""Objects, packs and manifests that somebody has forged are refused, before anything is written outside."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rfc8785
import zstandard
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from tests.collecting import collecting
from tests.store.stores import examples, put_all
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import StoreDamaged
from waypoint.store import entries, manifest, trees
from waypoint.store.entries import BadTree, Root, Row, TreeEntry
from waypoint.store.extract import extract
from waypoint.store.objects import CannotDecode, Codec, Kind, decode
from waypoint.store.packs import BadPack, PackRow, PackWriter, read_directory
from waypoint.store.store import Store


def entry(name: bytes = b"", type: int = entries.FOLDER, **fields: Any) -> TreeEntry:
    return TreeEntry(name, type, **{"mode": 0o700, "uid": 0, "gid": 0, "mtime": 0, "xattrs": [], "rows": []} | fields)


def put_forged(store: Store, inside: list[TreeEntry], links: list[list[bytes]] | None = None) -> bytes:
    with store.writing() as writer:
        rows: list[Row] = [(writer.put(Kind.TREE, entries.encode(inside)), len(inside))]
        groups = entries.encode_links(links or [])
        linked: list[Row] = [(writer.put(Kind.DATA, groups), len(groups))] if links else []
        root = writer.put(Kind.ROOT, entries.encode(Root(entry(rows=rows), linked)))
        writer.commit()
        return root


def refused(store: Store, root: bytes, folder: Path) -> str:
    folder.mkdir()
    with pytest.raises(StoreDamaged) as error, store.reading() as reader, open_folder(folder) as fd:
        extract(reader, root, fd)
    return error.value.said


def test_forged_folders_are_refused(store: Store, tmp_path: Path) -> None:
    (digest,) = put_all(store, b"content")
    rows: list[Row] = [(digest, 7)]
    file = entries.FILE
    forged: dict[str, list[TreeEntry]] = {
        "up": [entry(b"..", file)],
        "absolute": [entry(b"/etc/passwd", file)],
        "slash": [entry(b"a/b", file)],
        "dot": [entry(b".")],
        "empty": [entry(b"")],
        "nul": [entry(b"a\0b", file)],
        "long": [entry(b"x" * 256, file)],
        "twice": [entry(b"a", file), entry(b"a", file)],
        "not in order": [entry(b"b", file), entry(b"a", file)],
        "type": [entry(b"a", 9)],
        "mode": [entry(b"a", file, mode=0o100644)],
        "owner": [entry(b"a", file, uid=(1 << 32) - 1)],
        "link to nothing": [entry(b"a", entries.SYMLINK)],
        "link with NUL": [entry(b"a", entries.SYMLINK, text=b"x\0")],
        "device number": [entry(b"a", entries.CHARACTER, text=b"1")],
        "content of a link": [entry(b"a", entries.SYMLINK, text=b"x", rows=rows)],
        "negative": [entry(b"a", file, rows=[(digest, -7)])],
        "too long": [entry(b"a", file, rows=[(None, 1 << 62)] * 3)],
        "short digest": [entry(b"a", file, rows=[(b"x", 7)])],
        "another length": [entry(b"a", file, rows=[(digest, 8)])],
        "missing": [entry(b"a", file, rows=[(b"\1" * 32, 8)])],
        "data as a folder": [entry(b"a", rows=[(digest, 1)])],
        "a folder with a hole": [entry(b"a", rows=[(None, 1)])],
        "attribute": [entry(b"a", file, xattrs=[(b"", b"")])],
        "device": [entry(b"a", entries.BLOCK, text=b"\0\0\0\1\0\0\0\0")],
    }
    with collecting() as row:
        for number, (name, inside) in enumerate(forged.items()):
            with row(name):
                assert refused(store, put_forged(store, inside), tmp_path / f"out-{number}"), name
                assert not any(one.is_file() and one.stat().st_size for one in (tmp_path / f"out-{number}").rglob("*"))


def test_hard_links_stay_in_the_folder(store: Store, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("outside")
    inside = [entry(b"a", entries.FILE), entry(b"d"), entry(b"l", entries.SYMLINK, text=str(tmp_path).encode())]
    groups = [[b"a", b"../x"], [b"a", b"/x"], [b"l/outside", b"m"], [b"a", b"l/x"], [b"d", b"e"], [b"x", b"y"]]
    with collecting() as row:
        for number, group in enumerate([*groups, [b"a", b"a"], [b"a", b"d"], [b"a"]]):
            with row(group):
                assert refused(store, put_forged(store, inside, [group]), tmp_path / f"out-{number}")
    assert not (tmp_path / "x").exists()
    assert (tmp_path / "outside").stat().st_nlink == 1


def test_a_folder_within_itself_ends_as_damage(store: Store, tmp_path: Path) -> None:
    """An object cannot have its own digest in it, unless the digest is not checked; so a reader is given one."""
    (digest,) = put_all(store, b"x")
    with store.reading() as reader:
        content = entries.encode([entry(b"a", rows=[(digest, 1)])])
        root = entries.encode(Root(entry(rows=[(digest, 1)]), []))
        reader.get = lambda kind, one: root if kind == Kind.ROOT else content  # type: ignore[method-assign]
        seen: set[bytes] = set()
        assert len(list(trees.reachable(reader, [b"r" * 32], seen))) == 2


@pytest.mark.parametrize(
    ("payload", "length"),
    [
        (zstandard.ZstdCompressor().compress(bytes(64 << 20)), 1000),  # claims more than is on record
        (zstandard.ZstdCompressor().compress(bytes(64 << 20)), 64 << 20),
        (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000)), 1000),
        (zstandard.ZstdCompressor().compress(bytes(1000)) + b"more", 1000),
        (zstandard.ZstdCompressor().compress(bytes(1000))[:-2], 1000),
        (b"not zstd", 8),
    ],
)
def test_a_bomb_or_a_torn_payload_is_refused(payload: bytes, length: int) -> None:
    with pytest.raises(CannotDecode):
        decode(Codec.ZSTD, payload, length)


@examples(300)
@given(content=st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(content: bytes) -> None:
    for parse in (entries.decode_tree, entries.decode_list, entries.decode_root, entries.decode_links):
        try:
            parse(content)
        except BadTree:
            continue


@examples(200)
@given(data=st.data())
def test_a_changed_manifest_is_refused(data: st.DataObject) -> None:
    layer = manifest.ImageLayer(roots={"m0": "ab" * 32}, facts={"size_bytes": 3})
    content = manifest.encode(manifest.new(["cd" * 32], {"files": layer}, {}, {"tier": "live"}))
    image_id = manifest.id_of(content)
    assert manifest.decode(image_id, content).parents == ["cd" * 32]
    place = data.draw(st.integers(0, len(content) - 1))
    changed = content[:place] + data.draw(st.binary(max_size=3)) + content[place + 1 :]
    if changed != content:
        with pytest.raises(StoreDamaged):
            manifest.decode(image_id, changed)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one | {"format": 2},
        lambda one: one | {"more": 1},
        lambda one: one | {"parents": ["x"]},
        lambda one: one | {"layers": {"files": {"roots": {"m0": "../../etc"}}}},
        lambda one: [one],
    ],
)
def test_a_manifest_that_is_none_is_refused(change: Callable[[dict[str, Any]], Any]) -> None:
    content = rfc8785.dumps(change(msgspec.to_builtins(manifest.new([], {}, {}, {}))))
    with pytest.raises(StoreDamaged):
        manifest.decode(manifest.id_of(content), content)
    pretty = b" " + manifest.encode(manifest.new([], {}, {}, {}))
    with pytest.raises(StoreDamaged, match="canonical"):
        manifest.decode(manifest.id_of(pretty), pretty)


def test_a_pack_with_false_claims_is_refused(tmp_path: Path) -> None:
    address = b"a" * 32
    rows = {
        "kind": PackRow(address, 9, 0, 4, 4),
        "codec": PackRow(address, 0, 9, 4, 4),
        "too long": PackRow(address, 0, 1, 4, 1 << 40),
        "longer than its content": PackRow(address, 0, 0, 4, 3),
        "base": PackRow(address, 0, 0, 4, 4, address),
        "no base": PackRow(address, 0, 2, 4, 4),
        "short": PackRow(address, 0, 0, 3, 4),
        "address": PackRow(b"a", 0, 0, 4, 4),
    }
    with collecting() as check:
        for name, row in rows.items():
            path = str(tmp_path / name)
            writer = PackWriter(path)
            writer.add(row, b"1234")
            writer.finish()
            with check(name), pytest.raises(BadPack):
                read_directory(path, is_sealed=False)
            content = bytearray(Path(path).read_bytes())
            for size in range(0, len(content), 7):
                Path(path).write_bytes(content[:size])
                with check(f"{name} {size}"), pytest.raises(BadPack):
                    read_directory(path, is_sealed=False)


def test_an_object_that_is_another_one_is_damage(store: Store) -> None:
    """As from a pack whose writer gave content the address of other content."""
    with store.writing() as writer:
        digest = blake3(b"another", derive_key_context="waypoint/store/1/data").digest()
        writer.copy(PackRow(writer.address(digest), 0, 0, 7, 7), b"content")
        base = PackRow(writer.address(b"b" * 32), 0, 2, 7, 7, writer.address(b"c" * 32))
        writer.copy(base, b"content")
        writer.copy(PackRow(writer.address(b"c" * 32), 0, 2, 7, 7, base.address), b"content")
        writer.commit()
    with store.reading() as reader:
        for one, said in ((digest, "another digest"), (b"b" * 32, "base"), (b"c" * 32, "base")):
            with pytest.raises(StoreDamaged, match=said):
                reader.get(Kind.DATA, one)
    assert os.listdir(store.path)
