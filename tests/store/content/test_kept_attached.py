"""An image with attached layers, as the first version has put it into a store, is read by every later one; and by
whoever has docs/format.md.
"""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.store.content.by_the_page import Page
from tests.store.test_names_store import SETTING
from waypoint.capture.storing.image_manifest import read_manifest
from waypoint.capture.storing.ingestion import ingest
from waypoint.capture.storing.orders import Recall, Source
from waypoint.capture.storing.recalling import recall
from waypoint.model.details.attached_records import AttachedLayer
from waypoint.model.errors import UsageProblem
from waypoint.model.records import Capture, FilesLayer, Layers
from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.opened import Store, make_store, open_store

KEPT = Path(__file__).parent.parent / "kept/store-1-attached"
IMAGE = "73fe2fee4611a44330157d63044f2c7afcf65102da461400ab0bb6ec53397530"
TRACE, CACHE = b"what the agent did\n", b"what it knows\n"
LAYERS = {
    "trace": AttachedLayer(size_bytes=len(TRACE), files=1, is_folder=False, stamp="of one machine"),
    "org.example_v2": AttachedLayer(size_bytes=len(CACHE), files=1, is_folder=True),
}
RECORDS = {
    "trace": {"size_bytes": 19, "files": 1, "is_folder": False},
    "org.example_v2": {"size_bytes": 14, "files": 1, "is_folder": True},
}


def put_into(store: Store, place: Path) -> str:
    """Put the image into the store, from folders that are made at `place`. Returns its id."""
    (place / "tree/m0").mkdir(parents=True)
    (place / "hot/attached/trace").mkdir(parents=True)
    (place / "hot/attached/trace/content").write_bytes(TRACE)
    (place / "hot/attached/org.example_v2/content/sub").mkdir(parents=True)
    (place / "hot/attached/org.example_v2/content/sub/k").write_bytes(CACHE)
    capture = Capture(
        id="c0" * 16,
        branch="main",
        parents=[],
        created=1.0,
        tier="files",
        layers=Layers(files=FilesLayer(tree="t"), attached=LAYERS),
        setting=SETTING,
        reason="checkpoint",
    )
    hot = str(place / "hot")
    source = Source(capture=capture, tree=str(place / "tree"), hot=hot, images=f"{hot}/images", parents=[])
    return ingest(store, source).image


def check_recalled(store: Store, image: str, place: Path) -> None:
    (place / "back").mkdir()
    recall(store, Recall(store="", image=image, tree=str(place / "back"), hot=str(place / "hot-back")))
    attached = place / "hot-back/attached"
    assert (attached / "trace/content").read_bytes() == TRACE
    assert (attached / "org.example_v2/content/sub/k").read_bytes() == CACHE
    assert (attached / "trace").stat().st_mode & 0o7777 != 0


def check_page(manifest: dict[str, Any], page: Page) -> None:
    assert manifest["layers"]["attached"] == RECORDS
    parts = {name: page.tree(part["root"]) for name, part in manifest["parts"].items()}
    assert set(parts) == {"files", "rest", "attached/trace", "attached/org.example_v2"}
    assert parts["attached/trace"] == {"content": TRACE}
    assert parts["attached/org.example_v2"]["content/sub/k"] == CACHE
    assert parts["rest"] == {}


def test_the_page_tells_how_what_is_attached_is_read() -> None:
    page = Page(KEPT)
    ((image, (manifest, _)),) = page.images.items()
    assert image == IMAGE
    check_page(json.loads(manifest), page)


def test_this_version_brings_it_back(tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "store")
    with contextlib.closing(open_store(str(tmp_path / "store"))) as store:
        check_recalled(store, IMAGE, tmp_path)


def test_so_it_is_with_one_that_is_made_now(tmp_path: Path) -> None:
    with contextlib.closing(make_store(str(tmp_path / "store"))) as store:
        image = put_into(store, tmp_path)
        check_recalled(store, image, tmp_path)
        manifest = store.images.read(image).manifest
        assert b"of one machine" not in manifest
    check_page(json.loads(manifest), Page(tmp_path / "store"))


def test_a_part_that_this_version_does_not_know_stays_and_harms_nothing(tmp_path: Path) -> None:
    """But one whose name leads out of its place is refused."""
    with contextlib.closing(make_store(str(tmp_path / "store"))) as store:
        manifest = json.loads(store.images.read(put_into(store, tmp_path)).manifest)
        root = manifest["parts"]["attached/trace"]
        newer = json.dumps(manifest | {"more": 1, "parts": {**manifest["parts"], "newer": root}}).encode()
        with store.writing("test"):
            image = store.images.add(ImageFile(newer, b""))
        assert "newer" in read_manifest(image, store.images.read(image).manifest).parts
        check_recalled(store, image, tmp_path)
        evil = json.dumps(manifest | {"parts": {"attached/../../out": root}}).encode()
        with store.writing("test"):
            image = store.images.add(ImageFile(evil, b""))
        (tmp_path / "tree-2").mkdir()
        order = Recall(store="", image=image, tree=str(tmp_path / "tree-2"), hot=str(tmp_path / "hot-2"))
        with pytest.raises(UsageProblem):
            recall(store, order)
        assert not (tmp_path / "out").exists()
