"""Whoever opens the store at any step of a compaction finds all of it, and leaves all of it."""

import contextlib
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.store.content.stores import contents, get_all, new_store, put_all
from waypoint.store.content import write_steps
from waypoint.store.content.checking import check_packs
from waypoint.store.content.compaction import compact, mend
from waypoint.store.content.opened import open_store
from waypoint.store.content.write_steps import WriteStep
from waypoint.store.packs.digests import Kind, address_of
from waypoint.store.packs.pack_index import Copy, PackIndex


@pytest.mark.parametrize("step", [WriteStep.COPIED, WriteStep.RETIRED])
def test_who_opens_the_store_during_a_compaction_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: WriteStep
) -> None:
    folder, many = tmp_path / "store", contents(1, 30)
    seen: list[list[bytes]] = []
    with contextlib.closing(new_store(folder)) as store:
        kept = put_all(store, many)[::5]

        def listen(reached: WriteStep) -> None:
            if reached == step:
                with contextlib.closing(open_store(str(folder))) as reader:
                    seen.append(get_all(reader, kept))

        monkeypatch.setattr(write_steps, "listener", listen)
        for _again in range(2):  # the second time removes packs in which the index has nothing
            compact(store, [address_of(digest, store.keys.hash) for digest in kept])
        assert seen == [many[::5]]
        assert get_all(store, kept) == many[::5]
    with contextlib.closing(open_store(str(folder))) as later:
        assert get_all(later, kept) == many[::5]
        assert list(check_packs(later, read_data=True)) == []
        assert len(list(Path(later.folder.packs).iterdir())) == 1


def test_an_index_that_is_made_anew_keeps_what_an_earlier_one_has_retired(tmp_path: Path) -> None:
    """Who has had the packs open since before removes none of those that others may read by now."""
    folder, many = tmp_path / "store", contents(1, 10)
    store, earlier = new_store(folder), open_store(str(folder))
    digests = put_all(store, many)
    with contextlib.ExitStack() as reading:
        reading.enter_context(earlier.reading())
        assert compact(store, ()).waiting_bytes > 0
        for path in folder.glob("index.db*"):
            path.unlink()
        with contextlib.closing(open_store(str(folder))) as later, later.writing("test") as writer:
            assert [writer.put(Kind.DATA, one) for one in many] == digests
            assert writer.added.objects == 0
            reading.close()
            store.remove_retired()
    for one in (store, earlier):
        one.close()
    with contextlib.closing(open_store(str(folder))) as last:
        assert get_all(last, digests) == many


def test_nobody_removes_packs_while_a_compaction_makes_the_index_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It might take a pack that is about to go for the only one with its content, and remove the other one."""
    catch_up, may_be_removed = PackIndex.catch_up, list[bool]()

    def looking(index: PackIndex, folder: str, key: bytes, doubted: Collection[Copy] = ()) -> list[str]:
        with store.folder.removing() as may:
            may_be_removed.append(may)
        return catch_up(index, folder, key, doubted)

    with contextlib.closing(new_store(tmp_path / "store")) as store:
        put_all(store, contents(1, 3))
        monkeypatch.setattr(PackIndex, "catch_up", looking)
        compact(store, ())
        mend(store)
        assert set(may_be_removed) == {False}
        with store.folder.removing() as may:
            assert may, "when it is done they may be again"
