"""A store of format 1 is read by every later version, and by whoever has docs/format.md and nothing of Waypoint."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.store.content.by_the_page import Page
from tests.store.content.stores import SECRET
from waypoint.linux.storage.descriptors import open_folder
from waypoint.store.content.checking import check_packs
from waypoint.store.content.opened import open_store
from waypoint.store.trees.bringing import Bringing

KEPT = Path(__file__).parent.parent / "kept"
STORES = {"store-1": b"", "store-1-encrypted": SECRET}
MANY = b"".join(b"%d\n" % number for number in range(60000))
FIRST: dict[str, Any] = {
    "fifo": 5,
    "folder": "0o755",
    "folder/text": b"what was kept in November 2026\n",
    "link": "folder/text",
    "linked": b"what was kept in November 2026\n",
    "many": MANY,
    "sparse": bytes(1 << 20) + b"end",
}
SECOND = FIRST | {"many": MANY.replace(b"777\n", b"changed\n")}


@pytest.mark.parametrize("name", STORES)
def test_the_page_tells_how_a_store_is_read(name: str) -> None:
    page = Page(KEPT / name, STORES[name])
    ((manifest, about),) = page.images.values()
    first, second = json.loads(manifest)["roots"]
    assert about == b"kept"
    assert page.tree(first) == FIRST
    assert page.tree(second) == SECOND
    assert page.linked(second) == [[b"folder/text", b"linked"]]


@pytest.mark.parametrize("name", STORES)
def test_this_version_reads_it(name: str, tmp_path: Path) -> None:
    shutil.copytree(KEPT / name, tmp_path / "store")
    with contextlib.closing(open_store(str(tmp_path / "store"), STORES[name])) as store:
        assert list(check_packs(store, read_data=True)) == []
        (image,) = store.images.list()
        for number, root in enumerate(json.loads(store.images.read(image).manifest)["roots"]):
            folder = tmp_path / str(number)
            folder.mkdir()
            with store.reading() as reader, open_folder(folder) as fd:
                Bringing(reader, bytes.fromhex(root)).to(fd)
            wanted = (FIRST, SECOND)[number]
            assert (folder / "many").read_bytes() == wanted["many"]
            assert (folder / "sparse").read_bytes() == wanted["sparse"]
            assert (folder / "folder/text").stat().st_ino == (folder / "linked").stat().st_ino
            assert (folder / "folder/text").stat().st_mode & 0o7777 == 0o640
            assert (folder / "link").readlink() == Path("folder/text")
            assert (folder / "fifo").is_fifo()
            assert (folder / "many").stat().st_mtime_ns == 10**18
