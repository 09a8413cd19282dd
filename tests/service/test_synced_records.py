"""Whoever answers that a capture is durable or the machine's files are changed, or removes what the store has, too,
has had names.db synced before: each of those who do is asked what a disk has that keeps nothing but what was fsynced.
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.store.test_names_store import capture_of, row_of
from waypoint.branch import removal
from waypoint.branch.applying.apply_records import ApplyOutcome
from waypoint.capture.captures import Captures
from waypoint.capture.storing.orders import ArrivedImage, Compact, Ingested, Inspected, Verified
from waypoint.model.errors import StoreDamaged
from waypoint.model.records import Ref, Standing
from waypoint.model.requests import EvictRequest
from waypoint.service import housekeeping
from waypoint.service.durable import applying, by_itself, keeping, receiving
from waypoint.session.birth import rights
from waypoint.store.names import Names

IMAGE = "ab" * 32
DONE = Ingested(image=IMAGE, added_bytes=7)
WHOLE = Verified(images=1, objects=1, problems=[], lacking={}, missing=[])


class SyncedHome:
    """A home of which the disk has what was fsynced of names.db, nothing else."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._disk, self._monkeypatch, self._fsync = path / "disk", monkeypatch, os.fsync
        self.names = Names(path / "names.db")
        self.capture = capture_of(row_of("main"))
        with self.names.change("checkpoint") as change:
            change.add(self.capture)
        self._keep()
        monkeypatch.setattr(os, "fsync", self._synced)
        measures = SimpleNamespace(hot_bytes_of=lambda _ident: 1)
        captures = SimpleNamespace(measures=measures, alike={}, torn=SimpleNamespace(may_be=lambda _ident: False))
        captures.leaving = set()
        self.home: Any = SimpleNamespace(path=path, names=self.names, captures=captures, jobs=None)
        self.home.between = lambda: None
        self.home.config = SimpleNamespace(base_files_bytes=0)
        places = SimpleNamespace(ids=SimpleNamespace(first=0))
        self.home.sessions = SimpleNamespace(resources=SimpleNamespace(names=self.names, places=places))
        self.job: Any = SimpleNamespace(report=lambda **_: None, is_unasked=True)

    def _synced(self, fd: int) -> None:
        self._fsync(fd)
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/names.db-wal"):
            self._keep()

    def _keep(self) -> None:
        shutil.rmtree(self._disk, ignore_errors=True)
        self._disk.mkdir()
        for path in self._disk.parent.glob("names.db*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, self._disk)

    def answers(self, module: object, answer: object) -> None:
        """What the program that works on the store answers to who asks it in the module."""

        async def carry_out(*_words: object, **_more: object) -> object:
            return answer

        self._monkeypatch.setattr(module, "carry_out", carry_out)

    def is_sure(self, ident: str = "") -> bool:
        """Whether the disk has it that the capture is durable."""
        with contextlib.closing(Names(self._disk / "names.db")) as found:
            with contextlib.suppress(StoreDamaged):
                found.capture(ident or self.capture.id)
                return found.standing(ident or self.capture.id).durable
            return False

    def put(self) -> None:
        """The capture is in the store, and that is on record, but not synced."""
        with self.names.change("store") as change:
            change.set_standing(self.capture.id, Standing(image=IMAGE, durable=True))
            change.create("kept", Ref(kind="checkpoint", capture=self.capture.id, created=1.0))
        assert not self.is_sure()  # or the test shows nothing


@pytest.fixture
def synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncedHome]:
    made = SyncedHome(tmp_path, monkeypatch)
    yield made
    made.names.close()


Act = Callable[[SyncedHome, pytest.MonkeyPatch], Coroutine[Any, Any, object]]


async def _put_by_itself(synced: SyncedHome, monkeypatch: pytest.MonkeyPatch) -> object:
    @contextlib.asynccontextmanager
    async def holding(*_: object, **__: object) -> Any:
        yield [SimpleNamespace(source=lambda *_: None)]

    monkeypatch.setattr(keeping, "holding", holding)
    synced.answers(keeping, DONE)
    assert not synced.is_sure()
    return await keeping.put_job(synced.home, synced.job, synced.capture.id)


async def _wait_for_what_was_put(synced: SyncedHome, _: pytest.MonkeyPatch) -> object:
    synced.put()
    return await keeping.make_durable(synced.home, synced.capture.id)


def _evicting(synced: SyncedHome, monkeypatch: pytest.MonkeyPatch, module: object) -> list[bool]:
    """What is sure whenever a hot copy is removed."""
    seen: list[bool] = []
    synced.put()
    synced.answers(keeping, WHOLE)
    monkeypatch.setattr(module, "evict_one", lambda *_: not seen.append(synced.is_sure()))  # type: ignore[func-returns-value]
    return seen


async def _evict(synced: SyncedHome, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(rights, "check_origin", lambda *_: None)
    seen = _evicting(synced, monkeypatch, keeping)
    done = await keeping.evict(synced.home, EvictRequest(names=["kept"]))
    return done.evicted == [synced.capture.id] and seen == [True]


async def _evict_the_coldest(synced: SyncedHome, monkeypatch: pytest.MonkeyPatch) -> object:
    seen = _evicting(synced, monkeypatch, by_itself)
    done = await asyncio.to_thread(by_itself.evict_coldest, synced.home, [synced.capture], lambda _freed: True)
    return done == 1 and seen == [True]


async def _apply(synced: SyncedHome, monkeypatch: pytest.MonkeyPatch) -> object:
    outcome = ApplyOutcome(files=1, changes=[], setid=[], conflicts=[], conflicts_total=0)

    async def carry_out(*words: Any) -> ApplyOutcome:
        words[-1](msgspec.to_builtins(outcome))  # the machine has them: confirm
        return outcome

    monkeypatch.setattr(applying, "carry_out", carry_out)
    order: Any = None
    return await applying._carried_out(synced.home, synced.job, order, lambda _files: synced.put()) == outcome


ACTS: dict[str, Act] = {
    "the machine's files are changed": _apply,
    "a capture is put": _put_by_itself,
    "what was put is waited for": _wait_for_what_was_put,
    "a hot copy is removed, as asked": _evict,
    "a hot copy is removed by itself": _evict_the_coldest,
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_what_leads_to_an_image_is_on_the_disk(synced: SyncedHome, monkeypatch: pytest.MonkeyPatch, act: Act) -> None:
    assert asyncio.run(act(synced, monkeypatch))
    assert synced.is_sure()


def test_what_was_imported_is_on_the_disk(synced: SyncedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    image = ArrivedImage(image=IMAGE, parts=(), parents=[], capture=capture_of(row_of("b")))
    found = Inspected(images=[image], name="came", objects=1, signer="", digest="")
    synced.answers(receiving, DONE)
    monkeypatch.setattr(receiving, "lacking_in", lambda *_: [])
    facts = asyncio.run(receiving._put(synced.home, found, "came", "", -1, synced.job))
    assert (facts.image, facts.new) == (IMAGE, 1)
    assert synced.is_sure(facts.capture)


@pytest.mark.parametrize("what", ["what captures have here", "what the store has"])
def test_what_a_gc_removes_is_off_the_record_of_the_disk(
    synced: SyncedHome, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    names, nothing, seen = synced.names, cast(Any, None), list[bool]()
    with names.change("store") as change:
        change.set_standing(synced.capture.id, Standing(image=IMAGE, durable=True))
    names.sync()
    assert synced.is_sure()
    captures = synced.home.captures = Captures(synced.home.path, nothing, names, nothing, nothing, nothing)
    monkeypatch.setattr(captures, "drop", lambda _capture: seen.append(synced.is_sure()))
    synced.home.due_for_removal = {}

    async def carry_out(_home: object, order: Compact, _result: object) -> None:
        assert order.keep == []
        seen.append(synced.is_sure())

    monkeypatch.setattr(keeping, "carry_out", carry_out)
    synced.home.present_strangers = list
    if what == "what captures have here":
        work = housekeeping._Work(synced.home, synced.job, 0.0)
        work._remove()
        work._drop_all()
    else:
        removal.remove(captures, names, time.time())
        asyncio.run(keeping._compact(synced.home, ()))
    assert seen == [False]
