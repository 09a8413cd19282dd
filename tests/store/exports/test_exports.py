"""An export is what a store has, for another store, and whoever has docs/format.md can read it."""

import contextlib
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.fuzzing import bounded
from tests.store.content.by_the_page import PageOfExport
from tests.store.content.stores import new_store
from tests.store.exports.forging import Sound, exported, forged, look, parts_of, sound, stored
from tests.upper.pictures import picture
from waypoint.capture.storing.importing import take_in
from waypoint.capture.storing.orders import TakeExport
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import HostLacks, StoreDamaged, UsageProblem, WaypointError
from waypoint.store.content.checking import check_packs
from waypoint.store.exports import export_format
from waypoint.store.exports.export_format import MOST_PIECE, PieceKind
from waypoint.store.exports.export_writing import Consignment
from waypoint.store.exports.signatures import private_key, public_key
from waypoint.store.trees.bringing import Bringing

PEM, RAW = serialization.Encoding.PEM, serialization.NoEncryption()
PKCS8, SPKI = serialization.PrivateFormat.PKCS8, serialization.PublicFormat.SubjectPublicKeyInfo
OPENSSH = serialization.PrivateFormat.OpenSSH
MOST_MEMORY = 40 << 20


def public_pem(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(PEM, SPKI).decode()


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "from-encrypted"])
@pytest.mark.parametrize("passphrase", ["", "open sesame"], ids=["open", "passphrase"])
def test_another_store_has_the_same_afterwards(tmp_path: Path, passphrase: str, *, encrypted: bool) -> None:
    made = sound(tmp_path, encrypted=encrypted, passphrase=passphrase.encode())
    found = look(made.content, passphrase=passphrase)
    assert (found.name, found.signer, len(found.images)) == ("warm", "", 2)
    assert found.images[1].parents == [found.images[0].image]
    (tmp_path / "file").write_bytes(made.content)
    (tmp_path / "back").mkdir()
    with contextlib.closing(new_store(tmp_path / "other")) as store, (tmp_path / "file").open("rb") as file:
        order = TakeExport(store="", fd=file.fileno(), passphrase=passphrase, digest=found.digest)
        assert take_in(store, order).image == found.images[1].image
        assert set(store.images.list()) == {one.image for one in found.images}
        assert list(check_packs(store, read_data=True)) == []
        root = msgspec.json.decode(made.images[1].manifest)["parts"]["files"]["root"]
        with store.reading() as reader, open_folder(tmp_path / "back") as fd:
            Bringing(reader, bytes.fromhex(root)).to(fd)
        assert picture(tmp_path / "back") == picture(made.folder)
        assert take_in(store, order).added_bytes == 0


@pytest.mark.parametrize(
    ("limit", "of_it", "said"),
    [("MOST_OBJECTS", "objects", "it has more than"), ("MOST_IMAGE_BYTES", "about", "it has more images than")],
)
def test_what_nobody_could_take_in_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, of_it: str, said: str
) -> None:
    with stored(tmp_path) as (store, images, roots):
        made = Consignment("warm", images, roots, 0, None, b"")
        content = exported(store, made)
        has = {"objects": look(content).objects, "about": sum(len(part) for image in images for part in image)}
        monkeypatch.setattr(export_format, limit, has[of_it] - 1)
        with pytest.raises(StoreDamaged, match=said):
            look(content)
        with pytest.raises(UsageProblem) as caught:
            exported(store, made)
        assert caught.value.next_step == "leave out what it goes on from: --alone"
        monkeypatch.setattr(export_format, limit, has[of_it])
        assert look(exported(store, made)).objects == look(content).objects


def test_what_is_in_an_encrypted_export_cannot_be_read(tmp_path: Path) -> None:
    made, plain = sound(tmp_path, passphrase=b"open sesame"), sound(tmp_path)
    for export in (made, plain):  # what cannot be compressed is in a plain one as it is
        noise = (export.folder / "below/random").read_bytes()[100:164]
        assert (noise in export.content) == (export is plain)
    with pytest.raises(HostLacks, match="it is encrypted, and there is no passphrase"):
        look(made.content)
    with pytest.raises(HostLacks, match="the passphrase is another one"):
        look(made.content, passphrase="open barley")


def test_a_signature_is_of_this_image_and_of_this_file(tmp_path: Path) -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    made = sound(tmp_path, key=key)
    raw = key.public_key().public_bytes_raw()
    assert look(made.content, signer=public_pem(key)).signer == raw.hex()
    assert look(made.content).signer == raw.hex()
    with pytest.raises(StoreDamaged, match="it was signed with another key"):
        look(made.content, signer=public_pem(other))
    plain = sound(tmp_path)
    with pytest.raises(StoreDamaged, match="it has no signature"):
        look(plain.content, signer=public_pem(key))
    signed = dict(parts_of(made.content))[PieceKind.END]
    digest, signer, signature = msgspec.msgpack.decode(signed)
    altered = bytearray(signature)
    altered[5] ^= 1
    changed = msgspec.msgpack.encode([digest, signer, bytes(altered)])
    with pytest.raises(StoreDamaged, match="it was altered after it was signed"):
        look(made.content.replace(signed, changed))
    moved = made.content.replace(signed, msgspec.msgpack.encode([digest, b"\1" * 32, signature]))
    with pytest.raises(StoreDamaged):
        look(moved)
    without = bytearray(made.content)
    without[8] = 0
    for content in (bytes(without), forged(parts_of(made.content))):
        with pytest.raises(StoreDamaged):
            look(content, signer=public_pem(key))


def test_keys_are_those_that_openssl_and_ssh_keygen_make() -> None:
    key = Ed25519PrivateKey.generate()
    raw = key.public_key().public_bytes_raw()
    for form in (PKCS8, OPENSSH):
        assert private_key(key.private_bytes(PEM, form, RAW)).public_key().public_bytes_raw() == raw
    ssh = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert public_key(ssh + b" me@here\n") == public_key(public_pem(key).encode()) == raw
    sealed = key.private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"x"))
    rsa = generate_private_key(65537, 2048)
    wrong = {sealed: "sealed", b"": "no private key", rsa.private_bytes(PEM, PKCS8, RAW): "no Ed25519"}
    for content, said in wrong.items():
        with pytest.raises(UsageProblem, match=said) as caught:
            private_key(content)
        assert caught.value.next_step == "make one: openssl genpkey -algorithm ed25519 -out FILE"
    for content in (b"", b"ssh-ed25519 AAAA", rsa.public_key().public_bytes(PEM, SPKI)):
        with pytest.raises(UsageProblem) as caught:
            public_key(content)
        assert "openssl pkey -in KEYFILE -pubout" in caught.value.next_step


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return sound(tmp_path_factory.mktemp("made"))


def places_of_lengths(content: bytes) -> Iterator[int]:
    """Where each piece has its length."""
    place = 53
    while place < len(content):
        yield place
        place += 4 + int.from_bytes(content[place : place + 4], "little")


@bounded(30)
@given(
    share=st.floats(0, 1),
    behind=st.sampled_from([0, 7]),  # of the piece; of an object's content
    size=st.sampled_from([0, 1, MOST_PIECE, MOST_PIECE + 1, (1 << 31) - 1, (1 << 32) - 1]) | st.integers(0, 1 << 26),
    kept=st.floats(0, 2),
)
def test_little_memory_is_taken_whatever_comes(made: Sound, share: float, behind: int, size: int, kept: float) -> None:
    """Whatever length a piece tells, or the object in it, wherever the file ends."""
    places, content = list(places_of_lengths(made.content)), bytearray(made.content)
    place = places[min(int(share * len(places)), len(places) - 1)] + behind
    content[place : place + 4] = size.to_bytes(4, "little")
    assume(content != made.content)
    tracemalloc.start()
    try:
        with pytest.raises(WaypointError):
            look(bytes(content[: int(kept * len(content))]))
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


def test_the_page_tells_how_an_export_is_read(tmp_path: Path) -> None:
    """By docs/format.md alone."""
    key = Ed25519PrivateKey.generate()
    for made in (sound(tmp_path), sound(tmp_path, key=key, passphrase=b"open sesame")):
        page = PageOfExport(made.content, b"open sesame")
        assert page.name == "warm"
        assert list(page.images.values()) == [tuple(image) for image in made.images]
        root = json.loads(made.images[1].manifest)["parts"]["files"]["root"]
        text = (made.folder / "text").read_bytes()
        assert page.tree(root) == {
            "below": oct((made.folder / "below").stat().st_mode & 0o7777),
            "below/deep": oct((made.folder / "below/deep").stat().st_mode & 0o7777),
            "below/deep/empty": b"",
            "below/fifo": 5,
            "below/random": (made.folder / "below/random").read_bytes(),
            "link": "/etc/passwd",
            "linked": text,
            "text": text,
        }
        assert page.linked(root) == [[b"linked", b"text"]]
    assert page.signer == key.public_key().public_bytes_raw()
