"""What is put into the store, and what is removed from it, take turns."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from errno import EIO, ENOSPC
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.store.test_names_store import capture_of, row_of
from waypoint.capture.storing.orders import Compact, Compacting, Verified
from waypoint.model.errors import Failed, StateConflict, StoreDamaged, UnknownName, WaypointError
from waypoint.model.facts import GcFacts, StrangerFacts
from waypoint.model.records import Capture
from waypoint.service import housekeeping
from waypoint.service.background.events import Events
from waypoint.service.background.jobs import Job, Jobs
from waypoint.service.durable import by_itself, keeping, settling_images
from waypoint.service.durable.settling_images import FIRST_STOP_S, STOP_S, SettlingImages
from waypoint.service.home import Home

DONE = Compacting(images=0, freed_bytes=7)


class Bench:
    """A home with a store. `images`: on record. `log`: what was begun. `gate`: what a compaction waits for."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (path / keeping.STORE).mkdir()
        (path / keeping.STORE / "config.json").touch()
        self.images = ["old"]
        self.log: list[str] = []
        self.gate = asyncio.Event()
        self.jobs = Jobs(Events(asyncio.get_running_loop()))
        self.is_removed = self.is_torn = False
        names = SimpleNamespace(images=lambda: list(self.images), standing=self.standing, sync=lambda: None)
        captures = SimpleNamespace(torn=SimpleNamespace(may_be=lambda _ident: self.is_torn))
        self.home: Any = SimpleNamespace(path=path, jobs=self.jobs, names=names, captures=captures)
        self.home.present_strangers = lambda: [
            StrangerFacts(kind=kind, id=f"unknown-{kind}", path="") for kind in ("image", "journal")
        ]
        monkeypatch.setattr(keeping, "carry_out", self.carry_out)
        monkeypatch.setattr(keeping, "put_job", self.put)

    def standing(self, _ident: str) -> SimpleNamespace:
        return SimpleNamespace(durable="new" in self.images, removed=self.is_removed)

    async def carry_out(self, _home: object, order: Compact, _kind: type[Compacting]) -> Compacting:
        self.log.append(f"keep {' '.join(order.keep)}")
        await self.gate.wait()
        self.log.append("compacted")
        return DONE

    async def put(self, _home: object, _job: Job, _capture: str) -> None:
        self.log.append("put")
        for _ in range(10):
            await asyncio.sleep(0)
        self.images.append("new")


def on_bench(
    path: Path, monkeypatch: pytest.MonkeyPatch, check: Callable[[Bench], Coroutine[Any, Any, None]]
) -> list[str]:
    async def run() -> list[str]:
        bench = Bench(path, monkeypatch)
        await check(bench)
        await bench.jobs.close()
        return bench.log

    return asyncio.run(run())


def test_a_compaction_keeps_what_is_being_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(bench: Bench) -> None:
        bench.gate.set()
        putting = asyncio.ensure_future(keeping.make_durable(bench.home, "capture"))
        await asyncio.sleep(0)
        assert await keeping.compact(bench.home, patient=True) == DONE
        await putting

    assert on_bench(tmp_path, monkeypatch, check) == ["put", "keep new old unknown-image", "compacted"]


def test_nothing_is_put_during_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(bench: Bench) -> None:
        compacting = asyncio.ensure_future(keeping.compact(bench.home, patient=True, strangers=["unknown-image"]))
        putting = asyncio.ensure_future(keeping.make_durable(bench.home, "capture"))
        for _ in range(30):
            await asyncio.sleep(0)
        bench.gate.set()
        await asyncio.gather(compacting, putting)

    assert on_bench(tmp_path, monkeypatch, check) == ["keep old", "compacted", "put"]


@pytest.mark.parametrize(("what", "kind"), [("is_removed", UnknownName), ("is_torn", Failed)])
def test_what_goes_while_others_are_waited_for_is_not_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, kind: type[WaypointError]
) -> None:
    async def check(bench: Bench) -> None:
        compacting = asyncio.ensure_future(keeping.compact(bench.home, patient=True))
        await asyncio.sleep(0)
        putting = asyncio.ensure_future(keeping.make_durable(bench.home, "capture"))
        await asyncio.sleep(0)
        setattr(bench, what, True)
        bench.gate.set()
        await compacting
        with pytest.raises(kind):
            await putting

    assert on_bench(tmp_path, monkeypatch, check) == ["keep old unknown-image", "compacted"]


def test_a_compaction_that_fails_keeps_nothing_from_being_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(bench: Bench) -> None:
        async def fail(*_: object) -> None:
            await asyncio.sleep(0)
            raise Failed("compact", "the store", "no", "try again")

        monkeypatch.setattr(keeping, "carry_out", fail)
        compacting = asyncio.ensure_future(keeping.compact(bench.home, patient=True))
        await asyncio.sleep(0)
        await keeping.make_durable(bench.home, "capture")
        with pytest.raises(Failed):
            await compacting

    assert on_bench(tmp_path, monkeypatch, check) == ["put"]


def test_what_somebody_still_reads_is_told_and_is_no_room_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    async def compacted(_home: object, **_: object) -> Compacting:
        return Compacting(images=1, freed_bytes=7, waiting_bytes=5 << 20)

    monkeypatch.setattr(housekeeping, "compact", compacted)
    before = GcFacts(
        dry_run=False,
        removed=[],
        strangers=[],
        kept_operations_s=0,
        freed_bytes=1,
        home_bytes=100,
        failed=[],
        stays=["it"],
        spared=[],
    )
    found = asyncio.run(housekeeping._with_store(SimpleNamespace(), before, []))  # type: ignore[arg-type]
    assert (found.freed_bytes, found.home_bytes, found.failed) == (8, 93, [])
    assert [said[:18] for said in found.stays] == ["it", "5 MiB of the store"]


@pytest.mark.parametrize(
    "error", [StoreDamaged("read", "it", "no"), UnknownName("read", "it", "no"), Failed("put", "it", os.strerror(EIO))]
)
def test_a_damaged_capture_keeps_nothing_from_being_put_that_goes_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: WaypointError
) -> None:
    first = capture_of(row_of("main"))
    broken = capture_of(row_of("main"), parents=[first.id])
    last = capture_of(row_of("main"), parents=[broken.id])
    put, met = list[str](), [error]

    async def put_one(_home: object, _job: Job, capture: Capture) -> str:
        if capture is broken:
            raise met[-1]
        put.append(capture.id)
        return capture.id

    put_job = keeping.put_job
    monkeypatch.setattr(keeping, "_put_one", put_one)

    async def check(bench: Bench) -> None:
        bench.home.names.capture = {one.id: one for one in (first, broken, last)}.__getitem__
        bench.home.names.standing = lambda _ident: SimpleNamespace(durable=False, removed=False)
        job: Any = SimpleNamespace(report=lambda **_: None)
        assert await put_job(bench.home, job, last.id) == [first.id, last.id]
        with pytest.raises(type(error)):
            await put_job(bench.home, job, broken.id)
        met.append(Failed("put", "it", os.strerror(ENOSPC)))  # which all others would have, too
        with pytest.raises(Failed, match="No space"):
            await put_job(bench.home, job, last.id)

    on_bench(tmp_path, monkeypatch, check)
    assert put == [first.id, last.id, first.id, first.id]


def test_what_failed_before_comes_last_when_it_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what cannot be put does not keep all from it that is newer."""
    captures = {one.id: one for one in (capture_of(row_of(f"b{number}")) for number in range(6))}
    bad, good = [*captures][:4], [*captures][4:]
    put: list[str] = []

    async def put_job(_home: object, _job: Job, capture_id: str) -> None:
        put.append(capture_id)
        if capture_id in bad:
            raise Failed("put", "the capture", "no", "try again")

    monkeypatch.setattr(by_itself, "put_job", put_job)
    monkeypatch.setattr(by_itself, "SettlingImages", lambda _home: None)

    async def check(bench: Bench) -> None:
        names = bench.home.names
        names.refs = lambda: {ident: SimpleNamespace(capture=ident) for ident in captures}
        names.captures_of = lambda idents, may_lack: {ident: captures[ident] for ident in idents}
        names.standings = lambda idents: {
            i: SimpleNamespace(durable=i in put and i in good, removed=False) for i in idents
        }
        worker = by_itself.ByItself(bench.home)

        async def cool() -> None:
            pass

        monkeypatch.setattr(worker, "_cool", cool)
        for _round in range(2):
            await worker._work()
            assert worker._timer is not None
            worker._timer.cancel()
            put.append("and again")

    on_bench(tmp_path, monkeypatch, check)
    assert put[:4] == [*bad[:3], "and again"]
    assert put[4:7] == [bad[3], *good]
    assert sorted(put[7:-1]) == sorted(bad[:2])


def test_what_the_store_has_not_whole_keeps_nothing_else_from_being_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, lacking, missing = (capture_of(row_of("main")) for _ in range(3))
    found = Verified(images=2, objects=9, problems=[], lacking={lacking.id: "a data is damaged"}, missing=[missing.id])

    async def look(_home: object, _order: object, _kind: object) -> Verified:
        return found

    async def check(bench: Bench) -> None:
        monkeypatch.setattr(keeping, "carry_out", look)
        names = bench.home.names
        names.standings = lambda idents: {ident: SimpleNamespace(image=ident) for ident in idents}
        names.captures_of_images = lambda images: {image: image for image in images}
        names.refs = dict
        names.images = lambda: [missing.id]
        assert await keeping.whole_of(bench.home, [whole, lacking, missing]) == [whole]
        for captures in ([whole, lacking], [missing]):
            with pytest.raises(StoreDamaged):
                await keeping.check_whole(bench.home, captures)
        with pytest.raises(StoreDamaged):
            await keeping.whole_of(bench.home, [lacking])

    on_bench(tmp_path, monkeypatch, check)


def test_who_makes_room_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(bench: Bench) -> None:
        putting = asyncio.ensure_future(keeping.make_durable(bench.home, "capture"))
        await asyncio.sleep(0)
        with pytest.raises(StateConflict):
            await keeping.compact(bench.home, patient=False)
        await putting

    assert on_bench(tmp_path, monkeypatch, check) == ["put"]


def test_what_is_in_memory_comes_to_the_disk_before_the_jobs_end_of_a_daemon_that_stops() -> None:
    """They may take all the time that it has."""
    done: list[str] = []

    def step(name: str) -> Callable[[], Coroutine[Any, Any, None]]:
        async def act() -> None:
            done.append(name)
            if name == "jobs":
                raise TimeoutError

        return act

    keeper = SimpleNamespace(close=step("no more"), settle=step("settled"))
    home: Any = SimpleNamespace(_keeper=keeper, _host_watch=None, jobs=SimpleNamespace(close=step("jobs")))
    with pytest.raises(TimeoutError):
        asyncio.run(Home.shutdown(home))
    assert done == ["no more", "settled", "jobs"]


@pytest.mark.parametrize(("closing_s", "left"), [(1.0, []), (STOP_S, ["b", "c"])])
def test_it_leaves_them_time_to_close_the_sessions(
    monkeypatch: pytest.MonkeyPatch, closing_s: float, left: list[str]
) -> None:
    """`closing_s`: that takes so long. A copy that is cut off is made anew when they are closed."""
    clock, captures = [0.0], [capture_of(row_of(name)) for name in "abc"]
    in_memory = {one.id: one.branch for one in captures}

    def settle(capture: Capture, between: Callable[[], None]) -> None:
        clock[0] += 0.75 * FIRST_STOP_S
        between()
        del in_memory[capture.id]

    memory = SimpleNamespace(list=lambda: list(in_memory))
    settling = SimpleNamespace(memory=memory, finish=lambda _: None, has_room=lambda *_: True)
    home: Any = SimpleNamespace(config=SimpleNamespace(settle_after_s=30.0), between=lambda: None)
    home.captures = SimpleNamespace(settling=settling, settle=settle, attached=SimpleNamespace(floor_bytes=0))
    home.names = SimpleNamespace(captures_of=lambda *_, **__: {one.id: one for one in captures if one.id in in_memory})

    async def stop() -> None:
        worker = SettlingImages(home)
        await worker.close()
        assert (list(in_memory.values()), clock) == (["b", "c"], [1.5 * FIRST_STOP_S])
        clock[0] += closing_s
        await worker.close()

    measured = SimpleNamespace(
        monotonic=lambda: clock[0], clock_gettime=time.clock_gettime, CLOCK_BOOTTIME=time.CLOCK_BOOTTIME
    )
    monkeypatch.setattr(settling_images, "time", measured)
    asyncio.run(stop())
    assert list(in_memory.values()) == left
