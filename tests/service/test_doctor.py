"""`doctor`: its trials run in their own threads and can be cancelled; it has rows about the home."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import DEADLINE_S, wait_until
from waypoint.capture.captures import MemoryUse
from waypoint.model.conditions import degradation, text_of
from waypoint.model.profile_facts import ProfileFacts
from waypoint.model.session_facts import Capability
from waypoint.service import activity
from waypoint.service.home import HomeUsers
from waypoint.setup import trials
from waypoint.upper.contract import Outlook

WHY = "/ cannot be mounted with other owners (idmapped): Invalid argument"
UNHELD = degradation("limit-not-enforced", "memory", "the machine has no controller 'memory' for groups")
LEFT_OUT = [
    degradation("mount-left-out", "/mnt/nas", "nfs4: not a local file system"),
    degradation("mount-left-out", "/boot/efi", "vfat: ..."),
]
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


PROFILES = [
    ProfileFacts(name="bad", where="/home/profiles/bad.toml", problem="it is not UTF-8"),
    ProfileFacts(name="good", where="built-in"),
]
HOME: Any = SimpleNamespace(
    path="/nowhere",
    captures=SimpleNamespace(
        images=SimpleNamespace(keys=SimpleNamespace(encryption=None)),
        memory=lambda: MemoryUse(0, 0, "it cannot be mounted", is_wanted=True),
        profiles=SimpleNamespace(all=lambda: PROFILES),
    ),
    moving=SimpleNamespace(problem=None),
    left_out=lambda: LEFT_OUT,
    why_host_ids=lambda: WHY,
    unlimited=lambda: [UNHELD],
    users=HomeUsers(),
    egress=SimpleNamespace(why_not="there is no pasta (package passt)"),
    pool=SimpleNamespace(outlook=lambda: SOUND, check_writable=lambda: None),
    sessions=SimpleNamespace(
        live=[live_session("main", "default"), live_session("old", "none"), live_session("web", "userns")]
    ),
)
ANSWER = [Capability(name="overlay", state="ok")]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """One event for each trial that has begun. Setting it, or killing the trial's process, ends the trial."""
    events: list[threading.Event] = []

    def try_everything(_home: object, *, on_start: Callable[[Any], None]) -> list[Capability]:
        end = threading.Event()
        on_start(SimpleNamespace(kill=end.set))
        events.append(end)
        assert end.wait(10 * DEADLINE_S)
        return ANSWER

    monkeypatch.setattr(trials, "try_everything", try_everything)
    return events


def test_trials_do_not_use_the_shared_threads(begun: list[threading.Event]) -> None:
    async def try_meanwhile() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        asked = [asyncio.create_task(activity.doctor(HOME)) for _ in range(5)]
        try:
            await asyncio.sleep(0)  # let the tasks ask for their trials
            assert await asyncio.wait_for(asyncio.to_thread(lambda: "at once"), DEADLINE_S) == "at once"
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(try_meanwhile())


def test_a_trial_that_has_not_begun_is_cancelled_at_once(begun: list[threading.Event]) -> None:
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
    """Return the doctor's rows, by name."""

    async def try_once() -> list[Capability]:
        trial = asyncio.ensure_future(activity.doctor(home))
        await asyncio.to_thread(wait_until, lambda: begun, "the trial has begun")
        begun[0].set()
        return await trial

    return {one.name: one for one in asyncio.run(try_once())}


def test_doctor_reports_what_sessions_lack(begun: list[threading.Event]) -> None:
    found = rows_of(HOME, begun)
    row, ids = found["mounts of this machine"], found["user ids of sessions"]
    refused = found["system calls of sessions"]
    limits = found["limits of sessions"]
    way_out = found["internet access of sessions"]
    assert (way_out.state, way_out.why, way_out.required_for) == ("degraded", HOME.egress.why_not, "optional")
    assert way_out.remedy.startswith("apt-get install passt nftables")
    assert (limits.state, limits.required_for) == ("degraded", "optional")
    assert limits.why == text_of(UNHELD)
    assert (refused.state, refused.required_for) == ("degraded", "optional")
    assert refused.why.startswith("no system call is refused in old (it is old); web may make namespaces")
    assert (ids.state, ids.required_for) == ("degraded", "optional")
    assert WHY in ids.why
    memory = found["captures in memory"]
    profiles = found["workload profiles"]
    assert (profiles.state, profiles.why) == ("degraded", "not used: /home/profiles/bad.toml: it is not UTF-8")
    assert memory.state == "degraded"
    assert memory.why == "a checkpoint pauses its session for longer: it cannot be mounted"
    assert (row.state, row.required_for) == ("degraded", "optional")
    assert all(f"not in the session: {text_of(one)}" in row.why for one in LEFT_OUT)


@pytest.mark.parametrize(
    ("outlook", "state", "why", "remedy"),
    [
        (SOUND, "ok", "700 MiB are free, the pool can grow by 500 MiB and leaves 2048 MiB of the disk free", ""),
        (
            replace(SOUND, growth_bytes=0),
            "degraded",
            "it is nearly full: 700 MiB are free, the pool can grow by 0",
            "gc",
        ),
        (
            replace(SOUND, disk_free_bytes=900 * MIB),
            "degraded",
            "it is nearly full: 700 MiB are free, the pool can grow by 500 MiB and leaves 2048 MiB of the disk free",
            "gc",
        ),
        (replace(SOUND, growth_bytes=None), "degraded", "it is nearly full: 700 MiB are free", "gc"),
        (replace(SOUND, free_bytes=1024 * MIB, growth_bytes=None, floor_bytes=0), "ok", "1024 MiB are free", ""),
        (replace(SOUND, errors=3), "degraded", "the disk has failed 3 reads, writes or checks; 700 MiB", "dmesg"),
    ],
)
def test_doctor_reports_the_state_of_the_pool(
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
