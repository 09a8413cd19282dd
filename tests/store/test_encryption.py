"""An encrypted store shows nothing of its content, and refuses what was not written with its key."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from blake3 import blake3

from tests.store.stores import add_image, get_all, put_all, put_folder, take_out
from tests.store.test_archives import add_capture, export, inspect, take_in
from tests.upper.pictures import picture
from waypoint.model.errors import StateConflict, StoreDamaged
from waypoint.store import config, encryption, locking
from waypoint.store.config import Scrypt
from waypoint.store.encryption import MasterKey, Secret
from waypoint.store.objects import Kind, address_of, digest_of
from waypoint.store.packs import PackWriter
from waypoint.store.scan import ScanOptions
from waypoint.store.store import Store, make_store
from waypoint.store.upkeep import gc, verify

KEY_FILE = Secret("key-file", b"the content of a key file")
TEXT = b"a text that nobody may read " * 100
RANDOM = os.urandom(30_000)  # stored as it is in a plain store


class Sealed(NamedTuple):
    store: Store
    origin: Path
    root: bytes
    image: str


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "random").write_bytes(RANDOM)
    store = opened(tmp_path / "store")
    before = put_folder(store, origin)
    (origin / "random").write_bytes(RANDOM + b"more, so that it becomes a DELTA")
    (origin / "name-of-a-file").write_bytes(TEXT)
    root = put_folder(store, origin, ScanOptions(earlier=before))
    return Sealed(store, origin, root, add_image(store, root))


def opened(path: Path, secret: Secret = KEY_FILE) -> Store:
    return Store(str(path), locking.make_encrypted(str(path), secret))


def files_of(store: Store) -> Iterator[Path]:
    for folder, _, names in os.walk(store.path):
        yield from (Path(folder, name) for name in names)


def content_of(store: Store) -> dict[Path, bytes]:
    """Without the log of SQLite, which every reader writes."""
    return {path: path.read_bytes() for path in files_of(store) if not path.name.startswith("index.db")}


def test_content_comes_back_after_everything_that_moves_it(sealed: Sealed, tmp_path: Path) -> None:
    store = Store(sealed.store.path, locking.unlock(sealed.store.path, KEY_FILE.value + b"\n"))
    assert verify(store, read_data=True) == []
    images = [sealed.image]
    for number in range(8):  # small packs, which a gc merges
        (sealed.origin / "number").write_text(f"{number}" * 1000)
        root = put_folder(store, sealed.origin)
        images.append(add_image(store, root))
    gc(store, images)
    assert len(store.pack_names()) == 1
    Path(store.path, "index.db").unlink()
    assert verify(store, read_data=True) == []
    assert picture(take_out(store, root, tmp_path / "copy")) == picture(sealed.origin)


def test_nothing_in_the_folder_tells_the_content(sealed: Sealed) -> None:
    digest = digest_of(Kind.DATA, TEXT)
    secrets = [TEXT[:28], RANDOM[:16], RANDOM[-16:], b"name-of-a-file", sealed.root.hex().encode(), sealed.root]
    secrets += [digest, digest.hex().encode(), sealed.store.key, sealed.store.key.hex().encode()]
    assert sealed.store.master is not None
    secrets += [sealed.store.master.secret, sealed.store.master.secret.hex().encode()]
    for path in files_of(sealed.store):
        content = path.read_bytes()
        assert [secret for secret in secrets if secret in content] == [], path
    with sealed.store.reading() as reader:  # the same content has another address in each store
        assert reader.has(digest)
        assert reader.find(address_of(digest, bytes(32))) is None


def test_without_the_right_key_nothing_is_read_or_changed(sealed: Sealed) -> None:
    before = content_of(sealed.store)
    with pytest.raises(StateConflict) as locked:
        Store(sealed.store.path)
    with pytest.raises(StateConflict) as wrong:
        Store(sealed.store.path, os.urandom(32))
    with pytest.raises(StateConflict) as wrong_file:
        locking.unlock(sealed.store.path, b"another key file")
    with pytest.raises(StateConflict) as again:
        locking.make_encrypted(sealed.store.path, Secret("passphrase", b"x"))
    codes = [one.value.code for one in (locked, wrong, wrong_file, again)]
    assert codes == ["store-locked", "wrong-key", "wrong-key", "wrong-key"]
    assert content_of(sealed.store) == before


def test_a_passphrase_locks_the_key_and_hostile_parameters_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "store")
    monkeypatch.setattr(encryption, "_SCRYPT", Scrypt(n=2, r=8, p=1))
    master = locking.make_encrypted(path, Secret("passphrase", "caf\u00e9".encode()))
    assert locking.unlock(path, " caf\u00e9\n".encode()) == master
    with pytest.raises(StateConflict) as wrong:
        locking.unlock(path, b"cafe")
    assert wrong.value.code == "wrong-key"
    found = config.read(path)
    assert found.encryption is not None
    for parameters in (Scrypt(n=1 << 24, r=8, p=1), Scrypt(n=1000, r=8, p=1), None):
        locked = msgspec.structs.replace(found.encryption, scrypt=parameters)
        config.publish(path, msgspec.structs.replace(found, encryption=locked))
        with pytest.raises((StoreDamaged, StateConflict)):
            locking.unlock(path, "caf\u00e9".encode())


def test_a_store_with_content_is_not_encrypted_and_an_empty_one_is(tmp_path: Path) -> None:
    store = make_store(str(tmp_path / "store"))
    digests = put_all(store, b"content")
    with pytest.raises(StateConflict) as refused:
        locking.make_encrypted(store.path, KEY_FILE)
    assert refused.value.code == "store-not-empty"
    assert get_all(Store(store.path), digests) == [b"content"]
    gc(store, [])
    assert get_all(opened(tmp_path / "store"), put_all(opened(tmp_path / "store"), b"content")) == [b"content"]


# --- somebody who can write to the disk, but lacks the key


def rewritten(store: Store, content: bytes) -> None:
    """Replace the newest pack by one with this content and a fitting digest."""
    os.unlink(store.pack(store.pack_names()[0]))
    content = content[:-32] + blake3(content[:-32]).digest()
    Path(store.pack(content[-32:].hex())).write_bytes(content)
    Path(store.path, "index.db").unlink()


def refused(store: Store, digest: bytes) -> str:
    """The problems that `verify` reports; reading the object fails, too."""
    with pytest.raises(StoreDamaged), store.reading() as reader:
        reader.get(Kind.DATA, digest)
    return " ".join(one.said for one in verify(store, read_data=True))


@pytest.mark.parametrize("how", ["swapped", "directory", "salt", "bit", "truncated", "plain", "plain-header"])
def test_forged_packs_are_refused(tmp_path: Path, how: str) -> None:
    store = opened(tmp_path / "store")
    first, _ = put_all(store, b"1" * 50, b"2" * 50)
    pack = store.read_directory(store.pack_names()[0])
    rows, (one, two) = pack.rows, [offset for _, offset in pack.placed()]
    content = bytearray(Path(store.pack(store.pack_names()[0])).read_bytes())
    size = two - one
    match how:
        case "swapped":
            content[one : one + size], content[two : two + size] = content[two : two + size], content[one : one + size]
        case "directory":
            at, other = content.index(rows[0].address), content.index(rows[1].address)
            content[at : at + 32], content[other : other + 32] = rows[1].address, rows[0].address
        case "salt":
            content[20] ^= 1
        case "bit":
            content[one] ^= 1
        case "truncated":
            del content[two + 5 :]
        case "plain":  # with content of the attacker under an address that is known from the directory
            made = PackWriter(str(tmp_path / "plain"))
            made.add(rows[0], b"3" * 50)
            made.finish()
            content = bytearray((tmp_path / "plain").read_bytes())
        case _:
            content[7] = 0
    rewritten(store, bytes(content))
    assert refused(store, first) != ""


def test_a_plain_pack_of_which_the_index_knows_is_refused(sealed: Sealed, tmp_path: Path) -> None:
    (name, *_) = sealed.store.pack_names()
    made = PackWriter(str(tmp_path / "plain"))
    made.add(sealed.store.read_directory(name).rows[0], TEXT)
    made.finish()
    shutil.move(tmp_path / "plain", sealed.store.pack(name))
    with pytest.raises(StoreDamaged, match="not encrypted"):
        take_out(sealed.store, sealed.root, tmp_path / "copy")
    assert "not encrypted" in verify(sealed.store, read_data=False)[0].said


def test_a_store_that_was_replaced_by_a_plain_one_is_refused(sealed: Sealed) -> None:
    assert sealed.store.master is not None
    key = os.urandom(32)
    config.publish(sealed.store.path, config.StoreConfig(format=1, id=config.id_of(key), key=key.hex()))
    with pytest.raises(StoreDamaged) as refused:
        Store(sealed.store.path, sealed.store.master.secret)
    assert refused.value.code == "not-encrypted"
    with pytest.raises(StoreDamaged) as refused:
        locking.unlock(sealed.store.path, KEY_FILE.value)
    assert refused.value.code == "not-encrypted"


def test_a_manifest_is_accepted_only_as_it_was_sealed_for_its_image(sealed: Sealed) -> None:
    store, path = sealed.store, Path(sealed.store.path, "images", sealed.image)
    other, content, sound = add_image(store), store.read_manifest(sealed.image), path.read_bytes()
    flipped = sound[:-1] + bytes([sound[-1] ^ 1])
    for bad in (content, flipped, sound[:20], Path(store.path, "images", other).read_bytes()):
        path.write_bytes(bad)
        with pytest.raises(StoreDamaged):
            store.read_image(sealed.image)
        assert [one.images for one in verify(store, read_data=False)] == [[sealed.image]]
        with pytest.raises(StoreDamaged, match="waypoint rm"):
            gc(store, [sealed.image])  # which would remove what it needs
    path.write_bytes(sound)
    assert verify(store, read_data=True) == []


def test_sealed_parts_open_only_with_their_key_at_their_place() -> None:
    master = MasterKey(bytes(32))
    seal = master.new_seal()
    sealed = seal.seal(b"content", 40, b"about")
    assert master.seal(seal.salt).open(sealed, 40, b"about") == b"content"
    assert master.new_seal().salt != seal.salt
    for other, place, about in (
        (seal, 41, b"about"),
        (seal, 40, b"other"),
        (master.new_seal(), 40, b"about"),
        (MasterKey(os.urandom(32)).seal(seal.salt), 40, b"about"),
    ):
        with pytest.raises(encryption.CannotOpen):
            other.open(sealed, place, about)


@pytest.mark.privileged
def test_archives_are_plain_and_are_sealed_by_an_import(sealed: Sealed, tmp_path: Path) -> None:
    image = add_capture(sealed.store, tmp_path)
    export(sealed.store, tmp_path / "archive", [image])
    other = opened(tmp_path / "other", Secret("key-file", b"another key"))
    take_in(other, tmp_path / "archive", inspect(other, tmp_path / "archive").digest)
    assert other.image_ids() == [image]
    assert verify(other, read_data=True) == []
    (root,) = other.read_image(image).roots()
    assert picture(take_out(other, root, tmp_path / "copy")) == picture(take_out(sealed.store, root, tmp_path / "out"))
