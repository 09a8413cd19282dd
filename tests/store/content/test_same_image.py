"""The id of an image tells what it has and where it comes from, and nothing of where and when it was made."""

import contextlib
import itertools
import os
import shutil
from pathlib import Path

import pytest

from tests.store.test_names_store import capture_of, row_of
from waypoint.capture.storing.ingestion import ingest
from waypoint.capture.storing.orders import Source
from waypoint.store.content.opened import make_store

PARENT = "ab" * 32
_places = itertools.count()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of files, larger and smaller than what a folder's object takes in."""
    tree = tmp_path / "tree"
    (tree / "m0/sub").mkdir(parents=True)
    (tree / "m0/sub/large").write_bytes(os.urandom(300_000))
    (tree / "m0/small").write_bytes(b"a word\n")
    return tree


def image_of(tree: Path, *parents: str, secret: bytes = b"") -> str:
    """The id that a capture of the tree gets in a new home: by copies at other paths, of another branch, later."""
    place = tree.parent / f"home-{next(_places)}"
    shutil.copytree(tree, place / "tree")
    (place / "hot").mkdir()
    hot, capture = str(place / "hot"), capture_of(row_of(place.name))
    source = Source(capture=capture, tree=str(place / "tree"), hot=hot, images=f"{hot}/images", parents=[*parents])
    with contextlib.closing(make_store(str(place / "store"), secret)) as store:
        return ingest(store, source).image


def test_same_content_and_parents_have_the_same_id_wherever_it_is_computed(tree: Path) -> None:
    assert image_of(tree) == image_of(tree) == image_of(tree, secret=b"a secret")
    assert image_of(tree, PARENT) == image_of(tree, PARENT)


def test_other_parents_or_another_byte_give_another_id(tree: Path) -> None:
    seen = {image_of(tree), image_of(tree, PARENT), image_of(tree, PARENT, PARENT)}
    large, small = tree / "m0/sub/large", tree / "m0/small"
    times = large.stat().st_mtime_ns
    with large.open("r+b") as file:
        file.seek(200_000)
        byte = file.read(1)[0]
        file.seek(200_000)
        file.write(bytes([byte ^ 1]))
    os.utime(large, ns=(times, times))
    seen.add(image_of(tree))
    small.chmod(0o755)
    seen.add(image_of(tree))
    os.utime(small, ns=(times, times + 1))
    seen.add(image_of(tree))
    assert len(seen) == 6
