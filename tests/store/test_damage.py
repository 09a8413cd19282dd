"""Damage is found wherever it is, never becomes content, and is attributed to the images that have it."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.stores import add_image, examples, put_folder, take_out
from tests.upper.pictures import picture
from waypoint.capture.storing import work
from waypoint.linux.storage.deep import remove_path
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import StateConflict, StoreDamaged, WaypointError
from waypoint.store import config, locking, trees
from waypoint.store.encryption import Secret
from waypoint.store.objects import Kind
from waypoint.store.scan import ScanOptions, store_folder
from waypoint.store.store import Store, make_store
from waypoint.store.upkeep import gc, verify

SECRET = Secret("key-file", b"the content of a key file")


@pytest.fixture(scope="module", params=["plain", "encrypted"])
def sound(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, bytes]:
    """The folder of an undamaged store with one image, and the root of this; beside it the stored folder."""
    top = tmp_path_factory.mktemp("sound")
    (top / "origin").mkdir()
    (top / "origin/file").write_bytes(os.urandom(20_000))
    path = str(top / "store")
    store = make_store(path) if request.param == "plain" else Store(path, locking.make_encrypted(path, SECRET))
    root = put_folder(store, top / "origin")
    for name, content in (("text", b"a text that repeats" * 1000), ("small", b"x")):
        (top / "origin" / name).write_bytes(content)
    with (top / "origin/file").open("ab") as file:
        file.write(b"more, so that it becomes a DELTA")
    root = put_folder(store, top / "origin", ScanOptions(earlier=root))
    add_image(store, root)
    return top, root


@examples(60)
@given(
    where=st.sampled_from(["packs", "packs", "packs", "images", "config"]), share=st.floats(0, 1), bit=st.integers(0, 7)
)
def test_any_flipped_bit_is_found_and_never_becomes_content(
    sound: tuple[Path, bytes], tmp_path: Path, where: str, share: float, bit: int
) -> None:
    top, root = sound
    for name in ("store", "copy"):
        remove_path(str(tmp_path / name))
    shutil.copytree(top / "store", tmp_path / "store")
    folder = tmp_path / "store"
    path = (
        folder / "config.json" if where == "config" else sorted((folder / where).iterdir())[int(share * 1000) % 2 - 1]
    )
    content = bytearray(path.read_bytes())
    content[min(int(share * len(content)), len(content) - 1)] ^= 1 << bit
    path.write_bytes(content)
    if where == "config" and b"".join(content.split()) == b"".join((top / "store/config.json").read_bytes().split()):
        return  # white space
    try:
        is_plain = config.read(str(folder)).encryption is None
        store = Store(str(folder), None if is_plain else locking.unlock(str(folder), SECRET.value))
    except (StoreDamaged, StateConflict):
        return
    assert verify(store, read_data=True) != []
    try:
        copy = take_out(store, root, tmp_path / "copy")
    except StoreDamaged:
        return
    assert picture(copy) == picture(top / "origin")  # the damage is elsewhere


def test_the_images_concerned_are_named_and_can_be_stored_again(store: Store, tmp_path: Path) -> None:
    roots, images = [], []
    for name in ("common", "own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(os.urandom(50_000))
        roots.append(put_folder(store, tmp_path / name))
    images = [add_image(store, roots[0]), add_image(store, *roots), add_image(store, roots[1])]
    with store.reading() as reader:
        entry = reader.get(Kind.ROOT, roots[0])
    assert entry
    damage(store, (tmp_path / "common/file").read_bytes())
    assert verify(store, read_data=False) == []  # which does not read data
    found = verify(store, read_data=True)
    assert {one for row in found for one in row.images} == {images[0], images[1]}
    assert (take_out(store, roots[1], tmp_path / "out") / "file").read_bytes() == (tmp_path / "own/file").read_bytes()
    with pytest.raises(StoreDamaged):
        take_out(store, roots[0], tmp_path / "damaged")
    gc(store, images)  # keeps what can be read
    assert put_folder(store, tmp_path / "common") == roots[0]
    assert verify(store, read_data=True) == []
    assert (take_out(store, roots[0], tmp_path / "again") / "file").read_bytes() != b""


def test_a_folder_is_stored_again_where_the_store_is_damaged(store: Store, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("damaged", "sound"):
        (tmp_path / "folder" / name).write_bytes(os.urandom(50_000))
    root = put_folder(store, tmp_path / "folder")
    image = add_image(store, root)
    with store.reading() as reader:
        contents = [reader.get(Kind.ROOT, root), (tmp_path / "folder/damaged").read_bytes()]
    for content in contents:
        damage(store, content)
    with store.writing() as writer, open_folder(tmp_path / "folder") as fd:
        writer.rereads = True
        assert store_folder(writer, fd) == root
        writer.commit()
        assert 50_000 < writer.new_bytes < 60_000, "only what was damaged"
    assert picture(take_out(store, root, tmp_path / "copy")) == picture(tmp_path / "folder")
    assert [one.images for one in verify(store, read_data=True)] == [[]], "the old pack"
    assert verify(store, read_data=True) == []
    assert gc(store, [image]).images == 0


def test_a_torn_pack_is_removed_when_no_image_needs_it(store: Store, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(os.urandom(5000))
    image = add_image(store, put_folder(store, tmp_path / "folder"))
    (name,) = store.pack_names()
    shutil.copy(store.pack(name), store.pack("torn"))
    os.truncate(store.pack("torn"), 3000)
    assert verify(store, read_data=True) != []
    gc(store, [image])
    assert store.pack_names() == [name]
    assert verify(store, read_data=True) == []
    os.truncate(store.pack(name), 3000)
    with pytest.raises(StoreDamaged):
        gc(store, [image])
    assert store.pack_names() == [name]


def test_a_gc_refuses_while_nobody_knows_what_an_image_needs(store: Store, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(os.urandom(5000))
    root = put_folder(store, tmp_path / "folder")
    image = add_image(store, root)
    (name,) = store.pack_names()
    with store.reading() as reader:
        content = reader.get(Kind.ROOT, root)
    damage(store, content)
    with pytest.raises(StoreDamaged):
        gc(store, [image])
    assert store.pack_names() == [name]
    gc(store, [])
    assert store.pack_names() == []


def damage(store: Store, content: bytes) -> None:
    """Change the packed bytes of content that cannot be compressed."""
    for name in store.pack_names():
        packed = Path(store.pack(name)).read_bytes()
        if content in packed:
            Path(store.pack(name)).write_bytes(packed.replace(content, content[:-1] + bytes([content[-1] ^ 1])))
            return
    raise WaypointError("find", "the content", "it is in no pack")


def test_a_store_that_has_lost_its_key_is_not_given_another_one(sound: tuple[Path, bytes], tmp_path: Path) -> None:
    shutil.copytree(sound[0] / "store", tmp_path / "store")
    (tmp_path / "store/config.json").unlink()
    with pytest.raises(StoreDamaged, match=r"config\.json is missing"):
        Store(str(tmp_path / "store"))


def test_checks_look_once_at_what_images_have_in_common_and_again_after_damage(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(os.urandom(5000))
    root = put_folder(store, tmp_path / "folder")
    images = [add_image(store, root) for _ in range(2)]
    assert work._problems(store, images[0]) == []
    with monkeypatch.context() as patch:
        patch.setattr(trees, "references", lambda *_: pytest.fail("looks again"))
        assert work._problems(store, images[1]) == []
    with store.reading() as reader:
        content = reader.get(Kind.ROOT, root)
    damage(store, content)
    assert work._problems(store, images[1]) != []
