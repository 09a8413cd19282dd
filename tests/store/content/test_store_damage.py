"""A bit that is another one is found, wherever it is, and never becomes content."""

import contextlib
import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.content.stores import SECRET, add_image, contents, get_all, new_store, opened_again, put_all
from waypoint.model.errors import StoreDamaged, WaypointError
from waypoint.store.content.checking import check_packs, read_doubted
from waypoint.store.content.compaction import compact, mend
from waypoint.store.content.image_files import ImageFile, Images
from waypoint.store.content.opened import Store, open_store
from waypoint.store.packs.ciphers import PLAIN
from waypoint.store.packs.codecs import Codec
from waypoint.store.packs.digests import Kind, address_of
from waypoint.store.packs.pack_format import PackRow
from waypoint.store.packs.pack_writer import PackWriter

PATIENT = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
Damage = Callable[[bytes], bytes]


def flip(share: float, bit: int) -> Damage:
    """Changes one bit of a file, at this share of its length."""

    def damage(content: bytes) -> bytes:
        place = min(int(share * len(content)), len(content) - 1)
        return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]

    return damage


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "encrypted"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """The folder of a store without damage, and the digests of what is in it; some are told from others."""
    folder = tmp_path_factory.mktemp("sound") / "store"
    store = new_store(folder, encrypted=request.param)
    digests = put_all(store, contents(1, 20, 400))
    with store.writing("test") as writer:
        for content, before in zip(contents(1, 20, 400), digests.copy(), strict=True):
            digests.append(writer.put(Kind.DATA, content + b"a little more", before))
        writer.commit()
    add_image(store, b'{"layers": {}}')
    store.close()
    return folder, digests


@contextlib.contextmanager
def damaged(sound: Path, where: str, damage: Damage, tmp_path: Path) -> Iterator[Store]:
    """A copy of the store, with a damaged file in the folder `where`."""
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(sound, copy)
    path = sorted((copy / where).iterdir())[0]
    path.write_bytes(damage(path.read_bytes()))
    with contextlib.closing(open_store(str(copy), SECRET)) as store:
        yield store


def said_of(store: Store, digest: bytes) -> str:
    try:
        get_all(store, [digest])
    except StoreDamaged as error:
        return error.said
    return ""


def test_a_sound_store_has_nothing_wrong(sound: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    with damaged(sound[0], "packs", lambda content: content, tmp_path) as store:
        assert list(check_packs(store, read_data=True)) == []
        assert list(check_packs(store, read_data=False)) == []


@PATIENT
@given(share=st.floats(0, 1), bit=st.integers(0, 7), index=st.sampled_from(["kept", "lost"]))
def test_any_flipped_bit_of_a_pack_is_found(
    sound: tuple[Path, list[bytes]], tmp_path: Path, share: float, bit: int, index: str
) -> None:
    folder, digests = sound
    expected = {one: content for one, content in zip(digests, contents(1, 20, 400), strict=False)}
    with damaged(folder, "packs", flip(share, bit), tmp_path) as store:
        if index == "lost":
            store.close()
            Path(store.folder.index).unlink()
        wrong = []
        try:
            wrong = list(check_packs(store, read_data=True))
        except StoreDamaged as error:
            wrong = [error.said]
        assert wrong != []
        for digest, content in expected.items():  # what can be read is what was written
            with contextlib.suppress(WaypointError):
                assert get_all(store, [digest]) == [content]


@PATIENT
@given(share=st.floats(0, 1), bit=st.integers(0, 7))
def test_any_flipped_bit_of_an_image_is_found(
    sound: tuple[Path, list[bytes]], tmp_path: Path, share: float, bit: int
) -> None:
    with damaged(sound[0], "images", flip(share, bit), tmp_path) as store:
        (ident,) = store.images.list()
        with pytest.raises(StoreDamaged):
            store.images.read(ident)


@PATIENT
@given(share=st.floats(0, 1))
def test_a_pack_that_was_cut_off_is_found(sound: tuple[Path, list[bytes]], tmp_path: Path, share: float) -> None:
    folder, digests = sound
    with damaged(folder, "packs", lambda content: content[: int(share * (len(content) - 1))], tmp_path) as store:
        assert list(check_packs(store, read_data=False)) != []
        store.close()
        Path(store.folder.index).unlink()
        assert list(check_packs(store, read_data=False)) != []
        said = {said_of(store, digest) for digest in digests} - {""}
        assert said <= {"it is not there", "what it was made from is not there"}
        assert said != set()


def test_a_pack_in_the_place_of_another_is_found(sound: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    folder, digests = sound
    with damaged(folder, "packs", lambda content: content, tmp_path) as store:
        one, other = sorted(Path(store.folder.packs).iterdir())
        one.write_bytes(other.read_bytes())
        assert any("another pack" in said for said in check_packs(store, read_data=False))
        assert any(said_of(store, digest) for digest in digests)


def test_payloads_that_have_changed_places_are_found(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store", encrypted=True)
    digests = put_all(store, [random.Random(1).randbytes(1000), random.Random(2).randbytes(1000)])
    (path,) = Path(store.folder.packs).iterdir()
    content = path.read_bytes()
    size = 1000 + 16
    path.write_bytes(
        content[:40] + content[40 + size : 40 + 2 * size] + content[40 : 40 + size] + content[40 + 2 * size :]
    )
    assert all(said_of(store, digest) for digest in digests)
    store.close()


def test_what_cannot_be_read_is_no_reason_not_to_put_more(tmp_path: Path) -> None:
    """A difference from it would be shorter, and as damaged."""
    first, second = contents(1, 2)
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        near, other = put_all(store, [second, first])
        with damaged(tmp_path / "store", "packs", flip(0.25, 1), tmp_path) as copy:
            assert said_of(copy, near)
            with copy.writing("test") as writer:
                digest = writer.put(Kind.DATA, second + b"more", near)
                writer.commit()
            assert get_all(copy, [digest, other]) == [second + b"more", first]


def damage_first(store: Store, of: int = 1) -> None:
    """Change a byte of the first object of the store's largest pack, of which it has so many."""
    paths = sorted(Path(store.folder.packs).iterdir(), key=lambda pack: pack.stat().st_size)
    assert len(paths) == of
    path = paths[-1]
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("way", ["read", "verified", "of an earlier version"])
def test_what_is_damaged_is_put_again_and_all_that_needs_it_can_be_read(tmp_path: Path, way: str) -> None:
    """Also by an index that is made anew, whichever of the two packs it finds first."""
    first, second = (random.Random(seed).randbytes(3000) for seed in (1, 2))
    for number in range(4):  # in half of them the new pack is found after the damaged one
        store = new_store(tmp_path / f"{number}", encrypted=number % 2 == 1)
        with store.writing("test") as writer:
            digests = [writer.put(Kind.DATA, first), writer.put(Kind.DATA, second)]
            digests.append(writer.put(Kind.DATA, first + b"more", digests[0]))  # is told from the damaged one
            alike = writer.put(Kind.DATA, first + b"alike")
            writer.commit()
        add_image(store, b"manifest")
        damage_first(store)
        if way == "read":
            assert said_of(store, digests[2])  # alone: what it is told from is noted, too
        else:
            assert len(list(check_packs(store, read_data=True))) == 3
        noted = Path(store.folder.damaged).read_text().split()
        assert address_of(digests[0], store.keys.hash).hex() in noted
        if way == "of an earlier version":
            Path(store.folder.damaged).write_text("".join(f"{one}\n" for one in noted[::2]))
        with store.reading() as reader:
            assert [reader.has(digest) for digest in digests] == [False, True, False]
        with store.writing("test") as writer:  # not as a difference: what is told from it could not be read
            assert writer.put(Kind.DATA, first, alike) == digests[0]
            writer.commit()
        for _again in range(2):
            assert get_all(store, digests) == [first, second, first + b"more"]
            store.close()
            Path(store.folder.index).unlink()
            store = opened_again(store)
        assert len(list(Path(store.folder.packs).iterdir())) == 2
        mend(store)
        assert list(check_packs(store, read_data=True)) == []
        assert get_all(store, digests) == [first, second, first + b"more"]
        assert not Path(store.folder.damaged).exists()
        store.close()


def test_what_is_told_from_what_is_gone_is_put_again(tmp_path: Path) -> None:
    """Nor is it said to be there meanwhile."""
    base, other = random.Random(1).randbytes(3000), random.Random(2).randbytes(3000)
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        (near,) = put_all(store, [base])
        (gone,) = Path(store.folder.packs).iterdir()
        with store.writing("test") as writer:
            digest = writer.put(Kind.DATA, base + b"more", near)
            writer.put(Kind.DATA, other)
            writer.commit()
        for content in (gone.read_bytes(), b""):
            gone.unlink()
            with store.reading() as reader:
                assert not reader.has(digest)
                assert reader.index.vanished == {gone.stem}
            read_doubted(store)
            assert Path(store.folder.damaged).exists()
            if content:
                gone.write_bytes(content)
                read_doubted(store)
                assert not Path(store.folder.damaged).exists()
                assert store.index().vanished == set()
        put_all(store, [base + b"more"])
        assert get_all(store, [digest]) == [base + b"more"]
        mend(store)
        assert get_all(store, [digest]) == [base + b"more"]
        assert list(check_packs(store, read_data=True)) == []


def test_room_is_given_back_by_all_packs_but_the_damaged_one(tmp_path: Path) -> None:
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        kept = []
        for seed in range(1, 4):
            digests = put_all(store, [random.Random(10 * seed + number).randbytes(3000) for number in range(5)])
            kept += digests[:1]
            if seed == 1:
                damage_first(store)
                (damaged,) = Path(store.folder.packs).iterdir()
        with pytest.raises(StoreDamaged, match="its content is another one"):
            compact(store, [address_of(digest, store.keys.hash) for digest in kept])
        sizes = {path.stat().st_size < 5000 for path in set(Path(store.folder.packs).iterdir()) - {damaged}}
        assert (damaged.exists(), sizes) == (True, {True})
        assert [said_of(store, digest) == "" for digest in kept] == [False, True, True]
        put_all(store, [random.Random(10).randbytes(3000)])
        assert compact(store, [address_of(digest, store.keys.hash) for digest in kept]).freed_bytes > 10_000
        assert not damaged.exists()
        assert list(check_packs(store, read_data=True)) == []


def test_a_part_of_the_disk_that_cannot_be_read_is_damage_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [random.Random(seed).randbytes(3000) for seed in range(3)]
    pread = os.pread

    def refuse(fd: int, size: int, place: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}") == str(bad) and place <= 4000 < place + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, place)

    with contextlib.closing(new_store(tmp_path / "store")) as store:
        digests = put_all(store, many)
        (bad,) = Path(store.folder.packs).iterdir()
        monkeypatch.setattr(os, "pread", refuse)
        address = address_of(digests[1], store.keys.hash).hex()
        said = "Input/output error"
        expected = [f"{bad}: [Errno 5] {said}", f"cannot read the object {address[:16]} of the store: {said}"]
        assert list(check_packs(store, read_data=True)) == expected
        assert Path(store.folder.damaged).read_text() == f"{address} {bad.stem}\n"
        with store.writing("test") as writer:  # what may be told from it needs nothing of it
            told = writer.put(Kind.DATA, many[1] + b"more", digests[1])
            writer.commit()
        assert put_all(store, many) == digests
        assert get_all(store, [*digests, told]) == [*many, many[1] + b"more"]
        mend(store)
        assert get_all(store, digests) == many
        assert list(check_packs(store, read_data=True)) == []
        image = Path(store.folder.images, add_image(store, b"manifest"))
        before = image.stat().st_ino
        monkeypatch.setattr(Images, "read", lambda images, ident: os.close(-1))  # raises OSError
        add_image(store, b"manifest")
        assert image.stat().st_ino != before, "it is put again"


def test_a_copy_that_is_put_back_is_no_longer_noted(tmp_path: Path) -> None:
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        digests = put_all(store, [random.Random(1).randbytes(3000)])
        ident = add_image(store, b"manifest")
        (path,) = Path(store.folder.packs).iterdir()
        image = Path(store.folder.images, ident)
        backup = path.read_bytes()
        damage_first(store)
        image.write_bytes(flip(0.5, 1)(image.read_bytes()))
        assert list(check_packs(store, read_data=True))
        mend(store)  # of which nothing lies elsewhere
        read_doubted(store)
        assert Path(store.folder.damaged).exists()
        path.write_bytes(backup)
        with store.reading() as reader:
            assert reader.has(digests[0])
        assert list(check_packs(store, read_data=True)) == []
        assert not Path(store.folder.damaged).exists()
        assert add_image(store, b"manifest") == ident  # in the place of the damaged one
        assert store.images.read(ident) == (b"manifest", b"about it")


def test_config_that_is_damaged_says_so(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    store.close()
    config = Path(store.folder.config)
    backup = config.read_bytes()
    put_all(opened_again(store), contents(1, 1))
    config.unlink()
    with pytest.raises(StoreDamaged, match="has content, but not this file") as missing:
        open_store(store.folder.folder)
    assert missing.value.next_step == "put config.json back from a backup: nothing else has the keys"
    for wrong in (b"", b"{}", b"["):
        config.write_bytes(wrong)
        with pytest.raises(StoreDamaged) as caught:
            open_store(store.folder.folder)
        assert caught.value.next_step == "put config.json back from a backup: nothing else has the keys"
    config.write_bytes(backup.replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(StoreDamaged, match="format 2"):
        open_store(store.folder.folder)
    config.write_bytes(backup)
    open_store(store.folder.folder).close()


def test_an_encrypted_store_takes_nothing_that_is_not_encrypted(tmp_path: Path) -> None:
    """Else whoever may write there, and has no key, could give it content."""
    with closing(new_store(tmp_path / "store", encrypted=True)) as store:
        (digest,) = put_all(store, [b"ours" * 1000])
        ident = add_image(store, b"manifest")
        open_keys = store.keys._replace(seal=b"")
        image = Path(store.folder.images, ident)
        Images(store.folder, open_keys, PLAIN)._write(
            str(tmp_path / "plain"), ident, ImageFile(b"manifest", b"another")
        )
        image.write_bytes((tmp_path / "plain").read_bytes())
        with pytest.raises(StoreDamaged, match="it is not encrypted, and all of this store is"):
            store.images.read(ident)
        new = PackWriter(f"{store.folder.tmp}/planted", PLAIN, b"")
        with store.reading() as reader:
            address = address_of(digest, store.keys.hash)
            assert reader.get(Kind.DATA, digest) == b"ours" * 1000
        new.add(PackRow(address=address, kind=Kind.DATA, codec=Codec.RAW, stored=6, length=6), b"theirs")
        name = new.finish()
        for pack in Path(store.folder.packs).iterdir():
            pack.unlink()
        Path(new.path).rename(store.folder.pack(name))
        Path(store.folder.index).unlink()
        again = opened_again(store)
        with closing(again), pytest.raises(StoreDamaged):
            get_all(again, [digest])
        assert "it is not encrypted" in " ".join(again.unread)
