"""A disk that fails at any call, and a writer that is killed at any moment, cost nothing that was acknowledged."""

import contextlib
import errno
import functools
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.store.content.stores import get_all, new_store, opened_again, put_all
from tests.store.content.test_store_crashes import assert_whole, ingest, manifests
from tests.store.content.test_store_damage import damage_first, said_of
from tests.store.exports.forging import fill as fill_tree
from tests.store.exports.forging import image_of
from tests.upper.pictures import picture
from waypoint.capture.storing.orders import Recall
from waypoint.capture.storing.recalling import recall
from waypoint.linux.storage.deep import remove_path
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import Failed, WaypointError
from waypoint.store.content import compaction, object_writer
from waypoint.store.content.checking import check_packs
from waypoint.store.content.compaction import compact, mend
from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.opened import open_store
from waypoint.store.packs.digests import Kind, address_of
from waypoint.store.trees.gathering import gather

_USUAL = "200" if os.environ.get("WAYPOINT_REQUIRE_ALL") else "20"  # in CI more: it takes 15 s
KILLS = int(os.environ.get("WAYPOINT_TEST_STORE_KILLS", _USUAL))
SEED = int(os.environ.get("WAYPOINT_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
CALLS = ("write", "fsync", "rename", "unlink")
"""Of `os`: what a writer does to files."""
BRINGING = ("write", "mkdir", "symlink", "link", "mkfifo", "truncate", "chown", "chmod", "setxattr", "utime")
"""What who brings a folder back does."""
MOST_IMAGES = 4


@pytest.fixture(autouse=True)
def _small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_writer, "PACK_BYTES", 20_000)


@contextlib.contextmanager
def failing(at: int, act: Callable[[], None], calls: Sequence[str] = CALLS) -> Iterator[list[int]]:
    """In the `with` block the call number `at` of `calls` writes a part of what it should, and then does `act`. Gives
    how many calls there were, in a list.
    """
    count = [0]

    def wrapped(name: str, real: Any) -> Any:
        def call(*words: Any, **more: Any) -> Any:
            count[0] += 1
            if count[0] == at:
                if name == "write":
                    real(words[0], bytes(words[1])[: len(words[1]) // 2])
                act()
            return real(*words, **more)

        return call

    real = {name: getattr(os, name) for name in calls}
    for name, function in real.items():
        setattr(os, name, wrapped(name, function))
    try:
        yield count
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(params=[errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def error(request: pytest.FixtureRequest) -> OSError:
    return OSError(request.param, os.strerror(request.param))


class Failing:
    """Does things once for each call that fails in it with `error`: the first time at the first call."""

    def __init__(self, error: OSError, calls: Sequence[str]) -> None:
        self.at = 0
        self._error, self._calls, self._count = error, calls, 0

    def goes_on(self) -> bool:
        """Whether there was such a call the last time."""
        self.at += 1
        return self._count >= self.at - 1

    def is_told(self, work: Callable[[], object]) -> bool:
        """Whether the work has failed, in these words. It has if the call was made, and only then."""
        told = False

        def fail() -> None:
            raise OSError(*self._error.args)

        with failing(self.at, fail, self._calls) as count:
            try:
                work()
            except (Failed, OSError) as error:
                told = str(self._error.strerror) in str(error)
        self._count = count[0]
        assert told == (self._count >= self.at), f"call {self.at}"
        return told


def test_a_disk_that_fails_at_any_call_harms_nothing(tmp_path: Path, error: OSError) -> None:
    """Then what was there is whole, an image that was not acknowledged is there whole or not at all, and the next one
    is taken.
    """
    each = Failing(error, CALLS)
    while each.goes_on():
        with contextlib.closing(new_store(tmp_path / f"store-{each.at}")) as store:
            ingest(store, 1)
            is_told = each.is_told(functools.partial(ingest, store, 2))
            again = opened_again(store)
            assert_whole(again)
            assert len(manifests(again)) in ((1, 2) if is_told else (2,))
            ingest(again, 2)
            assert len(manifests(again)) == 2
            assert_whole(again)
            again.close()
    assert each.at > 10


def test_a_disk_that_fails_at_any_call_of_a_compaction_harms_nothing(tmp_path: Path, error: OSError) -> None:
    """Then all that is needed is there, and the next one does what this one has left."""
    each = Failing(error, CALLS)
    while each.goes_on():
        with contextlib.closing(new_store(tmp_path / f"store-{each.at}")) as store:
            ingest(store, 1)
            (digests,) = manifests(store)
            with store.writing("image"):
                store.images.remove(*store.images.list())
                store.images.add(ImageFile(b"".join(digests[::4]), b""))
            needed = {address_of(one, store.keys.hash) for one in digests[::4]}
            each.is_told(functools.partial(compact, store, needed))
            again = opened_again(store)
            assert_whole(again)
            compact(again, needed)
            assert_whole(again)
            there = {address for pack in again.index().packs() for address, _ in again.index().objects(pack)}
            assert needed <= there
            assert len(there) < len(digests)
            assert sorted(path.stem for path in Path(again.folder.packs).iterdir()) == sorted(again.index().packs())
            again.close()
    assert each.at > 5


@pytest.mark.privileged
def test_a_disk_that_fails_at_any_call_of_a_recall_is_told(tmp_path: Path, error: OSError) -> None:
    """And the next one brings all of it back."""
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        origin = tmp_path / "origin"
        fill_tree(origin / "m0/upper")
        (origin / "m0/upper/below").chmod(0o2755)
        os.setxattr(origin / "m0/upper/text", "user.note", b"x")
        with store.writing("put") as writer, open_folder(origin) as fd:
            root = gather(writer, fd)
            writer.commit()
            image = store.images.add(image_of(root))
        each = Failing(error, BRINGING)
        while each.goes_on():
            for name in ("tree", "again"):
                remove_path(tmp_path / name)
                (tmp_path / name).mkdir()
                order = Recall(store="", image=image, tree=str(tmp_path / name), hot=str(tmp_path / "hot"))
                bring = functools.partial(recall, store, order)
                bring() if name == "again" else each.is_told(bring)
            assert picture(tmp_path / "again") == picture(origin)
        assert list(check_packs(store, read_data=True)) == []
    assert each.at > 20


def killed_at_random(folder: str, pick: random.Random) -> list[tuple[str, str]]:
    """Use the store in a process until it is killed, in the midst of a call. Returns what it has acknowledged: `added`
    and the id of an image, `removing` and that of one which may be gone.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        write = os.write  # what is told is no step

        def tell(verb: str, image: str) -> None:
            write(theirs, f"{verb} {image}\n".encode())

        with contextlib.suppress(BaseException), failing(pick.randrange(1, 120), _die):
            while True:
                _use(folder, pick, tell)
        os._exit(1)
    os.close(theirs)
    with open(ours, "rb") as said:
        lines = said.read().decode().splitlines()
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), lines
    return [(verb, image) for verb, image in map(str.split, lines)]


def _use(folder: str, pick: random.Random, tell: Callable[[str, str], None]) -> None:
    with contextlib.closing(open_store(folder)) as store:
        images = store.images.list()
        if len(images) >= MOST_IMAGES:
            gone = pick.sample(images, 2)
            for image in gone:
                tell("removing", image)
            with store.writing("remove"):
                for image in gone:
                    store.images.remove(image)
            compact(store, {address_of(one, store.keys.hash) for digests in manifests(store) for one in digests})
        before = set(store.images.list())
        ingest(store, pick.randrange(50))
        for image in set(store.images.list()) - before:
            tell("added", image)


@pytest.mark.timeout(600)
def test_a_soak_of_kills(tmp_path: Path) -> None:
    print(f"WAYPOINT_TEST_SEED={SEED}")
    pick = random.Random(SEED)
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        folder = store.folder.folder
    sure: set[str] = set()
    for _ in range(KILLS):
        for verb, image in killed_at_random(folder, random.Random(pick.random())):
            sure = sure | {image} if verb == "added" else sure - {image}
        with contextlib.closing(open_store(folder)) as again:
            assert sure <= set(again.images.list())
            assert_whole(again)
    with contextlib.closing(open_store(folder)) as last:
        ingest(last, 99)
        assert_whole(last)
        assert get_all(last, manifests(last)[-1])


def test_what_can_be_read_again_is_doubted_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what it is told from was put again, and nobody has to verify the store for that."""
    base, other, pread = random.Random(1).randbytes(3000), random.Random(2).randbytes(3000), os.pread

    def refuse(fd: int, size: int, place: int) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with contextlib.closing(new_store(tmp_path / "store")) as store:
        digests = put_all(store, [base, other])
        told = [base + b"one", base + b"another"]
        for content in told:
            with store.writing("test") as writer:
                digests.append(writer.put(Kind.DATA, content, digests[0]))
                writer.commit()
        damage_first(store, of=3)
        assert [said_of(store, digest) == "" for digest in digests[1:]] == [True, False, False]
        put_all(store, [base])
        assert set(store.index().doubted) == {address_of(digests[number], store.keys.hash) for number in (0, 2, 3)}
        mend(store)
        assert (store.index().doubted, Path(store.folder.damaged).exists()) == ({}, False)
        monkeypatch.setattr(os, "pread", refuse)
        with contextlib.suppress(WaypointError):  # what happens once, such as too many open files
            get_all(store, digests[1:2])
        monkeypatch.setattr(os, "pread", pread)
        address = address_of(digests[2], store.keys.hash).hex()
        with Path(store.folder.damaged).open("a") as file:  # it is noted, and so has an earlier version
            file.write(f"{address}\n")
        assert len(store.index().doubted) == 2
        mend(store)
        assert not Path(store.folder.damaged).exists()
        assert get_all(store, digests) == [base, other, *told]


def test_a_pack_is_written_anew_when_all_that_is_doubted_there_lies_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [random.Random(seed).randbytes(3000) for seed in range(3)]
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        digests = put_all(store, many)
        (path,) = Path(store.folder.packs).iterdir()
        damage_first(store)
        content = path.read_bytes()
        path.write_bytes(content[:4000] + bytes([content[4000] ^ 1]) + content[4001:])
        assert [said_of(store, digest) == "" for digest in digests] == [False, False, True]
        put_all(store, many[:1])
        with monkeypatch.context() as patch:
            patch.setattr(compaction, "_rewrite", lambda *words: pytest.fail("in vain: one of it cannot be read"))
            mend(store)
        put_all(store, many[1:2])
        mend(store)
        assert (path.exists(), Path(store.folder.damaged).exists()) == (False, False)
        assert get_all(store, digests) == many


def test_what_others_are_told_from_is_put_again_as_a_whole_if_its_pack_has_vanished(tmp_path: Path) -> None:
    """Else it would be there, and they could not be read."""
    base = random.Random(1).randbytes(3000)
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        (near,) = put_all(store, [base])
        (gone,) = Path(store.folder.packs).iterdir()
        with store.writing("test") as writer:
            digest = writer.put(Kind.DATA, base + b"more", near)
            alike = writer.put(Kind.DATA, base + b"alike")
            writer.commit()
        gone.unlink()
        with store.writing("test") as writer:
            writer.put(Kind.DATA, base, alike)
            writer.commit()
        assert get_all(store, [digest, near]) == [base + b"more", base]
