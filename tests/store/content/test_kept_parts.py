"""Two images as the first version has put them into a store that a passphrase opens, the second goes on from the first:
with a file so long that it has lists, with files of the base, of the shared memory, and inode numbers. Every later
version reads them, and so does whoever has docs/format.md.
"""

import base64
import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.store.content.by_the_page import Page
from tests.store.exports.forging import capture
from waypoint.capture.base_files import base_listing
from waypoint.capture.base_files.mentioned import BaseFile
from waypoint.capture.storing.image_manifest import StoredPart, manifest_of
from waypoint.capture.storing.orders import Recall, Verify
from waypoint.capture.storing.recalling import recall
from waypoint.capture.storing.store_care import verify
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import HostLacks
from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.opened import Store, make_store, open_store
from waypoint.store.packs.digests import Kind, digest_of
from waypoint.store.trees.gathering import gather

KEPT = Path(__file__).parent.parent / "kept/store-1-parts"
PASSPHRASE = b"a passphrase for tests"
PIECES, GAP = 100, 1 << 16
LONG = b"".join((b"%d " % number * 2000)[:4096] + bytes(GAP - 4096) for number in range(PIECES)) + b"end"
LIBRARY, SHARED, INVENTORY = b"of the base\n" * 300, b"in memory\n", b"what CRIU wrote\n"
DATABASE = "m0/upper/srv/database"
LEFT_OUT = ["/usr/lib/changed: it may have changed since"]
FIRST = {
    "files": {"m0": "0o755", "m0/upper": "0o755", "m0/upper/long": LONG},
    "rest": {},
}
SECOND = {
    "files": FIRST["files"] | {"m0/upper/srv": "0o755", DATABASE: b"rows\n"},
    "processes": {"inventory.img": INVENTORY},
    "memory": {"shared": SHARED},
    "base": {"m0": "0o755", "m0/usr": "0o755", "m0/usr/lib": "0o755", "m0/usr/lib/libx.so": LIBRARY},
    "rest": {},
}
IMAGES = [FIRST, SECOND]
IDS = [
    "c20ed8c027f09976f688cb12a81b9bbd27afa42f93e2908f9a436d5d9ae3ee54",
    "dd5bfb49db54bf912996c988f5c59be0f2fcc95e9004a670627e528ae52d02ea",
]


def put_into(store: Store, place: Path) -> list[str]:
    """Put the images into the store, from folders that are made at `place`. Returns their ids."""
    made: list[str] = []
    for number, parts in enumerate(IMAGES):
        stored = {name: StoredPart(root=_put(store, place / f"{number}-{name}", tree)) for name, tree in parts.items()}
        inodes = [(DATABASE.encode(), 257)] if number else None
        manifest = manifest_of(capture(id="c0" * 16), made[-1:], stored, LEFT_OUT if number else None, inodes)
        with store.writing("test"):
            made.append(store.images.add(ImageFile(manifest, b"kept")))
    return made


def _put(store: Store, folder: Path, tree: dict[str, Any]) -> str:
    for path, what in {"": "0o755", **tree}.items():
        if isinstance(what, bytes):
            _write(folder / path, what)
        else:
            (folder / path).mkdir(parents=True)
    for path in sorted([folder, *folder.rglob("*")], reverse=True):
        path.chmod(0o644 if path.is_file() else 0o755)
        os.utime(path, ns=(0, 0))
    with store.writing("test") as writer, open_folder(folder) as fd:
        digest = gather(writer, fd)
        writer.commit()
        return digest.hex()


def _write(path: Path, content: bytes) -> None:
    """With holes where there is nothing."""
    with path.open("wb") as file:
        for place in range(0, len(content), 4096):
            if any(piece := content[place : place + 4096]):
                file.seek(place)
                file.write(piece)


def check_page(page: Page, ids: list[str]) -> None:
    assert set(page.images) == set(ids)
    assert any(digest == digest_of(Kind.LIST, content) for digest, content in page.objects.items()), "a file has lists"
    for number, (ident, parts) in enumerate(zip(ids, IMAGES, strict=True)):
        manifest = json.loads(page.images[ident][0])
        assert manifest["parents"] == ids[:number]
        assert {name: page.tree(part["root"]) for name, part in manifest["parts"].items()} == parts
        told = [[base64.b64encode(DATABASE.encode()).decode(), 257]], LEFT_OUT
        assert (manifest.get("inodes"), manifest.get("base_left_out")) == (told if number else (None, None))


def check_recalled(store: Store, ids: list[str], place: Path) -> None:
    done = verify(store, Verify(store="", images=ids, read_data=True))
    assert (done.problems, done.lacking, done.missing) == ([], {}, [])
    for number, (ident, parts) in enumerate(zip(ids, IMAGES, strict=True)):
        tree, hot = place / f"tree-{number}", place / f"hot-{number}"
        tree.mkdir()
        recall(store, Recall(store="", image=ident, tree=str(tree), hot=str(hot)))
        for part, where in {"files": tree, "processes": hot / "images", "memory": hot / "shm"}.items():
            found = {str(path.relative_to(where)): path for path in where.rglob("*")}
            assert found.keys() == parts.get(part, {}).keys()
            for path, what in parts.get(part, {}).items():
                assert (
                    found[path].read_bytes() if isinstance(what, bytes) else oct(found[path].stat().st_mode & 0o7777)
                ) == what
        listing = base_listing.load(str(hot))
        rows = [(row.file, row.size) for row in listing.rows]
        assert (rows, listing.left_out) == (
            ([(BaseFile("/", b"usr/lib/libx.so"), len(LIBRARY))], LEFT_OUT) if number else ([], [])
        )
    assert (place / "tree-1/m0/upper/long").stat().st_blocks * 512 < len(LONG) // 2, "its holes are holes"


def test_the_page_tells_how_they_are_read() -> None:
    check_page(Page(KEPT, PASSPHRASE), IDS)


def test_this_version_brings_them_back(tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "store")
    with contextlib.closing(open_store(str(tmp_path / "store"), PASSPHRASE)) as store:
        check_recalled(store, IDS, tmp_path)
    for wrong in (b"", PASSPHRASE[:-1]):
        with pytest.raises(HostLacks):
            open_store(str(tmp_path / "store"), wrong)


def test_so_it_is_with_those_that_are_made_now(tmp_path: Path) -> None:
    with contextlib.closing(make_store(str(tmp_path / "store"), PASSPHRASE, passphrase=True)) as store:
        ids = put_into(store, tmp_path)
        check_recalled(store, ids, tmp_path)
    check_page(Page(tmp_path / "store", PASSPHRASE), ids)
