"""Trials of the machine block for seconds: they have threads of their own, and end when nobody wants their answer."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.json import decode, encode

from tests.store.content.stores import add_image, contents, put_all
from tests.waiting import DEADLINE_S, wait_until
from waypoint.capture.storing import store_work
from waypoint.capture.storing.orders import StoreOrder, StoreOutcome, Verified, Verify
from waypoint.launch.ground.shown_mounts import ShownCapture
from waypoint.model.facts import Capability
from waypoint.service import activity
from waypoint.service.durable import doctor_rows
from waypoint.service.home import HomeUsers
from waypoint.setup import trials
from waypoint.store.content.home_key import remove_left
from waypoint.store.content.opened import make_store
from waypoint.upper.contract import Outlook

WHY = "/ cannot be shown with other owners: Invalid argument"
UNHELD = "memory: not enforced: the machine has no controller 'memory' for groups"
LEFT_OUT = ["/mnt/nas (nfs4: not a local file system)", "/boot/efi (vfat: ...)"]
MIB = 1 << 20
SOUND = Outlook(
    free_bytes=700 * MIB,
    headroom_bytes=1024 * MIB,
    growth_bytes=500 * MIB,
    floor_bytes=2048 * MIB,
    disk_free_bytes=2548 * MIB,
)


def live_session(branch: str, seccomp: str) -> Any:
    row = SimpleNamespace(branch=branch)
    return SimpleNamespace(record=SimpleNamespace(row=row, seccomp=seccomp, why_no_seccomp="it is old"))


HOME: Any = SimpleNamespace(
    path=Path("/nowhere"),
    left_out=lambda: LEFT_OUT,
    why_host_ids=lambda: WHY,
    unlimited=lambda: [UNHELD],
    users=HomeUsers(),
    egress=SimpleNamespace(why_not="there is no pasta (package passt)"),
    pool=SimpleNamespace(outlook=lambda: SOUND, check_writable=lambda: None),
    sessions=SimpleNamespace(
        live=[live_session("main", "default"), live_session("old", "none"), live_session("web", "userns")],
        resources=SimpleNamespace(
            places=SimpleNamespace(
                runtime=SimpleNamespace(name="here"),
                host=SimpleNamespace(
                    all_shown=lambda: [
                        ShownCapture("here", "known", "/mnt/a"),
                        ShownCapture("here", "unknown", "/mnt/b"),
                        ShownCapture("no-home", "known", "/mnt/c"),
                    ]
                ),
            )
        ),
    ),
    names=SimpleNamespace(
        captures_of=lambda ids, may_lack: {one: one for one in ids if one == "known"},
        refs=dict,
        standings=lambda ids: {},
        names_of_all=lambda ids: {},
        images=list,
    ),
    captures=SimpleNamespace(
        settling=SimpleNamespace(memory=SimpleNamespace(why_not="", used_bytes=lambda: 3 << 20, most_bytes=64 << 20))
    ),
    config=SimpleNamespace(hot_memory_bytes=64 << 20),
)
NO_NAMES: Any = {"refs": dict, "live": list, "standings": lambda ids: {}}
GIVE_UP = "put the store's files back from a backup, or give it up (gc with --keep-operations 0)"
ANSWER = [Capability(name="overlay", state="ok")]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """One event for each trial that has begun; the trial ends when it is set, or when its process is killed."""
    events: list[threading.Event] = []

    def try_everything(_home: object, *, on_start: Callable[[Any], None]) -> list[Capability]:
        end = threading.Event()
        on_start(SimpleNamespace(kill=end.set))
        events.append(end)
        assert end.wait(3 * DEADLINE_S)
        return ANSWER

    monkeypatch.setattr(trials, "try_everything", try_everything)
    return events


def test_trials_take_no_thread_that_others_need(begun: list[threading.Event]) -> None:
    async def try_meanwhile() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        asked = [asyncio.create_task(activity.doctor(HOME)) for _ in range(5)]
        try:
            await asyncio.sleep(0)  # the trials have been asked for
            assert await asyncio.wait_for(asyncio.to_thread(lambda: "at once"), DEADLINE_S) == "at once"
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(try_meanwhile())


def test_a_trial_that_waits_for_its_turn_is_cancelled_at_once(begun: list[threading.Event]) -> None:
    async def cancel_the_last() -> None:
        first = [asyncio.create_task(activity.doctor(HOME)) for _ in range(2)]
        await asyncio.to_thread(wait_until, lambda: len(begun) == 2, "two trials have begun")
        last = asyncio.create_task(activity.doctor(HOME))
        await asyncio.sleep(0)
        last.cancel()
        await asyncio.wait([last], timeout=DEADLINE_S)
        assert last.cancelled()
        for end in begun:
            end.set()
        assert [rows[:1] for rows in await asyncio.gather(*first)] == [ANSWER, ANSWER]
        assert len(begun) == 2

    asyncio.run(cancel_the_last())


def rows_of(home: Any, begun: list[threading.Event]) -> dict[str, Capability]:
    """What the doctor says of the home, by name."""

    async def try_once() -> list[Capability]:
        trial = asyncio.ensure_future(activity.doctor(home))
        await asyncio.to_thread(wait_until, lambda: begun, "the trial has begun")
        begun[0].set()
        return await trial

    return {one.name: one for one in asyncio.run(try_once())}


def test_what_of_the_machine_is_in_no_session_is_told(begun: list[threading.Event]) -> None:
    found = rows_of(HOME, begun)
    row, ids = found["what is mounted here"], found["ids of their own"]
    refused = found["refused to live sessions"]
    limits = found["limits of sessions"]
    way_out = found["way out of private networks"]
    assert (way_out.state, way_out.why, way_out.required_for) == ("degraded", HOME.egress.why_not, "optional")
    assert way_out.remedy.startswith("apt-get install passt nftables")
    assert (limits.state, limits.required_for) == ("degraded", "optional")
    assert limits.why == UNHELD
    assert (refused.state, refused.required_for) == ("degraded", "optional")
    assert refused.why.startswith("no system call is refused to old (it is old); web may make namespaces")
    assert (ids.state, ids.required_for) == ("degraded", "optional")
    assert WHY in ids.why
    assert (row.state, row.required_for) == ("degraded", "optional")
    assert all(f"not in the session: {line}" in row.why for line in LEFT_OUT)


def test_what_is_mounted_and_what_is_left_of_it_is_told(begun: list[threading.Event]) -> None:
    found = rows_of(HOME, begun)
    assert found["the store of this home"].why == "not encrypted"
    assert found["images in memory"].why == "3 MiB of at most 64 MiB"
    row = found["mounted captures"]
    assert (row.state, row.remedy) == ("degraded", "umount /mnt/b; umount /mnt/c")
    assert row.why == "known at /mnt/a, unknown at /mnt/b (gone), known at /mnt/c (gone)"


@pytest.mark.parametrize(
    ("outlook", "state", "why", "remedy"),
    [
        (SOUND, "ok", "700 MiB are free, it can grow by 500 MiB; 2048 MiB of the disk stay free", ""),
        (replace(SOUND, growth_bytes=0), "degraded", "its room runs short: 700 MiB are free, it can grow by 0", "gc"),
        (
            replace(SOUND, disk_free_bytes=900 * MIB),
            "degraded",
            "its room runs short: 700 MiB are free, it can grow by 500 MiB; 2048 MiB of the disk stay free (it has 900",
            "gc",
        ),
        (replace(SOUND, growth_bytes=None), "degraded", "its room runs short: 700 MiB are free", "gc"),
        (replace(SOUND, free_bytes=1024 * MIB, growth_bytes=None, floor_bytes=0), "ok", "1024 MiB are free", ""),
        (replace(SOUND, errors=3), "degraded", "the disk has failed 3 reads, writes or checks; 700 MiB", "dmesg"),
    ],
)
def test_how_the_pool_stands_is_told(
    begun: list[threading.Event], outlook: Outlook, state: str, why: str, remedy: str
) -> None:
    home: Any = SimpleNamespace(
        **{**vars(HOME), "pool": SimpleNamespace(outlook=lambda: outlook, check_writable=lambda: None)}
    )
    row = rows_of(home, begun)["the pool of this home"]
    assert (row.state, row.required_for) == (state, "session")
    assert row.why.startswith(why)
    assert remedy in row.remedy
    assert bool(row.remedy) == (state != "ok")


SESAME = b"open sesame"


async def here(_home: object, order: StoreOrder, _kind: object) -> StoreOutcome:
    """The order carried out in this process, by what the program does that gets it as JSON."""
    return store_work.carry_out(decode(encode(order), type=StoreOrder), lambda done, total: None)


def test_what_is_wrong_with_the_store_is_told_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_rows, "carry_out", here)
    word = tmp_path / "word"
    word.write_bytes(SESAME)
    key = {"file": str(word), "passphrase": True}
    (tmp_path / "config.json").write_text(json.dumps({"store_key": key}))
    with contextlib.closing(make_store(str(tmp_path / "store"), SESAME, passphrase=True)) as store:
        put_all(store, contents(1, 20))
        image = add_image(store, b"{}")
    (pack,) = (tmp_path / "store/packs").iterdir()
    whole, why = pack.read_bytes(), f"encrypted, with the passphrase in {word}"

    async def look() -> None:
        home: Any = SimpleNamespace(path=tmp_path, names=SimpleNamespace(images=lambda: [image], **NO_NAMES))

        async def told(state: str, said: str = "", remedy: str = "") -> None:
            row = await doctor_rows.of_store(home)
            assert (row.state, row.why, row.remedy) == (state, f"{why}: {said}" if said else why, remedy)

        await told("ok")
        word.write_bytes(b"open barley")
        step = "give the passphrase that it was made with"
        await told("missing", "the key is not the one that it was made with", step)
        word.write_bytes(SESAME)
        pack.write_bytes(whole[:-1])
        verify = f"waypoint --home {tmp_path} verify"
        step = f"put its files back from a backup; {verify} tells what needs them"
        await told("degraded", f"{pack}: it has {len(whole) - 1} bytes, {len(whole)} were written", step)
        order = Verify(store=str(tmp_path / "store"), images=[image], read_data=False)
        found = await here(home, order, Verified)
        assert isinstance(found, Verified)
        assert found.problems, "which that command tells, too"
        pack.unlink()
        (tmp_path / "store/images" / image).rename(tmp_path / "away")
        await told("degraded", f"{pack}: it is not there; 1 of 1 images are not there", step)
        pack.write_bytes(whole)
        (tmp_path / "away").rename(tmp_path / "store/images" / image)
        await told("ok")
        (tmp_path / "store").rename(tmp_path / "away")
        await told("missing", "it is gone, and names.db knows 1 images in it", GIVE_UP)
        (tmp_path / "away").rename(tmp_path / "store")
        (tmp_path / "store.plain").mkdir()
        left = f"{tmp_path}/store.plain is what is left of one that was not"
        await told("degraded", left, f"waypoint --home {tmp_path} setup")
        remove_left(str(tmp_path))  # as that does
        await told("ok")

    asyncio.run(look())


def test_a_pack_that_is_gone_is_told_until_it_is_back_or_nobody_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_rows, "carry_out", here)
    with contextlib.closing(make_store(str(tmp_path / "store"))) as store:
        put_all(store, contents(1, 20))
        needed = [add_image(store, b"{}")]  # it is no manifest, so nothing that it needs can be found
    (pack,) = (tmp_path / "store/packs").iterdir()
    gone = f"{pack}: it is not there"
    home: Any = SimpleNamespace(path=tmp_path, names=SimpleNamespace(images=lambda: needed, **NO_NAMES))

    async def look() -> None:
        async def told(state: str, said: str) -> None:
            row = await doctor_rows.of_store(home)
            assert (row.state, row.why) == (state, said)

        await told("ok", "not encrypted")
        pack.rename(tmp_path / "away")
        for _again in range(2):
            await told("degraded", f"not encrypted: {gone}")
            found = await here(home, Verify(store=str(tmp_path / "store"), images=needed, read_data=False), Verified)
            assert isinstance(found, Verified)
            assert found.gone == [gone]
        (tmp_path / "away").rename(pack)
        await told("ok", "not encrypted")
        pack.unlink()
        await told("degraded", f"not encrypted: {gone}")
        (tmp_path / "store/images" / needed.pop()).unlink()
        await told("ok", "not encrypted")

    asyncio.run(look())
