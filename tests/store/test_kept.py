"""A store of each format is kept for ever, and every later version reads it."""

import os
import shutil
from pathlib import Path

import pytest

from tests.store.stores import take_out
from waypoint.store import locking
from waypoint.store.store import Store
from waypoint.store.upkeep import verify

KEPT = Path(__file__).parent / "kept"
IMAGE = "d7fdcfab6748e5a13e7ba95d31d227e766be900616e99d87319b49d3cc40a60a"


PASSPHRASE = "kept for ever \u00e9".encode()


def kept_store(name: str, path: Path) -> Store:
    shutil.copytree(KEPT / name.removesuffix("-passphrase"), path)
    (path / "tmp").mkdir()
    if name == "format-1":
        return Store(str(path))
    secret = (KEPT / "encrypted-1.key").read_bytes()
    if name.endswith("passphrase"):
        shutil.copy(KEPT / "encrypted-1-passphrase.json", path / "config.json")
        secret = PASSPHRASE
    return Store(str(path), locking.unlock(str(path), secret))


@pytest.mark.privileged
@pytest.mark.parametrize("name", ["format-1", "format-1-encrypted", "format-1-encrypted-passphrase"])
def test_a_store_of_format_1_is_read(tmp_path: Path, name: str) -> None:
    store = kept_store(name, tmp_path / "store")
    assert verify(store, read_data=True) == []
    manifest = store.read_image(IMAGE)
    assert manifest.parents == [one for one in store.image_ids() if one != IMAGE]
    copy = take_out(store, *manifest.roots(), tmp_path / "copy") / "m0/upper"
    assert (copy / "text").read_text() == "a text that repeats\n" * 200
    assert (copy / "text").samefile(copy / "deep/link")
    assert os.getxattr(copy / "text", "user.note") == b"\x00\xff"
    assert os.getxattr(copy / "deep", "trusted.overlay.opaque") == b"y"
    assert (copy / "parts").read_bytes() == bytes(range(1, 101))
    assert (copy / "raw").stat().st_size == 3004
    assert (copy / "sparse").read_bytes() == bytes(1 << 20) + b"end"
    assert (copy / "gone").lstat().st_rdev == 0
    assert os.readlink(copy / "symlink") == "nowhere\n"
    assert len(os.listdir(copy / "deep")) == 151
    assert (copy / "deep").stat().st_mtime_ns == 1_700_000_000_123_456_789
