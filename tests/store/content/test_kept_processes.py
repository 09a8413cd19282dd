"""A live capture as the first version has put it into a store, and exported it, is read by every later one, byte for
byte: what CRIU wrote is what a restore gets.
"""

import contextlib
import hashlib
import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.content.by_the_page import Objects, Page, PageOfExport
from tests.store.content.stores import new_store
from waypoint.capture.storing.importing import inspect, take_in
from waypoint.capture.storing.orders import Inspect, Recall, TakeExport, Verify
from waypoint.capture.storing.recalling import recall
from waypoint.capture.storing.store_care import verify
from waypoint.store.content.opened import Store, open_store
from waypoint.store.exports.signatures import public_key

KEPT = Path(__file__).parent.parent / "kept"
WANTED: dict[str, object] = json.loads((KEPT / "store-1-processes.json").read_text())
"""By part and path: of a file the SHA-256 of its content, of a folder its mode, of a FIFO 5."""
PASSPHRASE = "a passphrase for tests"
SIGNER = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAQeROevE/OFxh4hPDVaNx2OJ4K7RJ6s5EfwafOgiZzOw=
-----END PUBLIC KEY-----
"""
FILES = {"export-1": ("", ""), "export-1-sealed": (PASSPHRASE, SIGNER)}
PLACES = {"files": "tree", "processes": "hot/images", "rest": "hot", "attached/trace": "hot/attached/trace"}
ADDED = {"images", "attached", "base-files"}
"""In the folder of the rest: what is brought there besides."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    shutil.copytree(KEPT / "store-1-processes", tmp_path / "store")
    with contextlib.closing(open_store(str(tmp_path / "store"))) as opened:
        yield opened


def pictured(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        what: object = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else oct(mode & 0o7777)
        found[str(path.relative_to(folder))] = 5 if stat.S_ISFIFO(mode) else what
    return found


def check_recalled(store: Store, place: Path) -> None:
    (image,) = store.images.list()
    assert verify(store, Verify(store="", images=[image], read_data=True)).problems == []
    (place / "tree").mkdir()
    recall(store, Recall(store="", image=image, tree=str(place / "tree"), hot=str(place / "hot")))
    found = {}
    for part, where in PLACES.items():
        for path, what in pictured(place / where).items():
            if part != "rest" or path.split("/")[0] not in ADDED:
                found[f"{part}/{path}"] = what
    assert found == WANTED


@pytest.mark.privileged
def test_this_version_brings_the_processes_back_from_the_store(store: Store, tmp_path: Path) -> None:
    check_recalled(store, tmp_path)


@pytest.mark.privileged
@pytest.mark.parametrize("name", FILES)
def test_this_version_takes_the_export_in(store: Store, tmp_path: Path, name: str) -> None:
    passphrase, signer = FILES[name]
    content = (KEPT / name).read_bytes()
    with (KEPT / name).open("rb") as file:
        fd = file.fileno()
        found = inspect(Inspect(store="", fd=fd, passphrase=passphrase, signer=signer, most_bytes=1 << 30))
        assert (found.name, bool(found.signer), [one.image for one in found.images]) == (
            "warm",
            bool(signer),
            store.images.list(),
        )
        assert found.images[0].capture.tier == "live"
        with contextlib.closing(new_store(tmp_path / "other", encrypted=True)) as other:
            take_in(other, TakeExport(store="", fd=fd, passphrase=passphrase, digest=found.digest))
            check_recalled(other, tmp_path)
    assert (b"what an agent did" in content) == (not passphrase)


def pages() -> Iterator[Objects]:
    yield Page(KEPT / "store-1-processes")
    for name, (passphrase, signer) in FILES.items():
        yield (page := PageOfExport((KEPT / name).read_bytes(), passphrase.encode()))
        assert page.name == "warm"
        assert page.signer == (public_key(signer.encode()) if signer else b"")


def test_the_page_tells_how_the_processes_are_read() -> None:
    """From the store, and from its exports."""
    for page in pages():
        ((manifest, _),) = page.images.values()
        found = {}
        for part, of in json.loads(manifest)["parts"].items():
            for path, what in page.tree(of["root"]).items():
                found[f"{part}/{path}"] = hashlib.sha256(what).hexdigest() if isinstance(what, bytes) else what
        assert found == WANTED
