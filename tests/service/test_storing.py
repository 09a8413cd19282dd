"""The job that stores captures: which ones, and what it does when one cannot be stored."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.records.test_names_store import name_it
from tests.service.test_removal import chain
from waypoint.capture.captures import Captures
from waypoint.capture.storing.orders import Ingest, Ingested
from waypoint.model.errors import Failed, WaypointError
from waypoint.model.records import Capture, Standing
from waypoint.records.names import Names
from waypoint.service.background.bugs import Bug
from waypoint.service.background.events import Events
from waypoint.service.background.jobs import Job, Jobs
from waypoint.service.storing import KIND, Storing

IMAGE = Ingested(image="a" * 64, content_bytes=1, new_bytes=1, ms=1.0, changed_only=False)


def store(
    names: Names, tmp_path: Path, ingest: Callable[[Capture], Ingested], awaited: Capture
) -> tuple[WaypointError | None, Job]:
    """Have `awaited` stored, with all others that are due. Returns the error of waiting for it, and the job."""
    nothing: Any = None
    captures = Captures(tmp_path, nothing, names, nothing, nothing)
    captures.ingest = lambda capture, _on_progress: ingest(capture)

    async def work() -> tuple[WaypointError | None, Job]:
        jobs = Jobs(Events(asyncio.get_running_loop()))
        storing = Storing(names, captures, jobs, lambda: asyncio.sleep(0))
        waiting = asyncio.ensure_future(storing.wait(awaited))
        await asyncio.sleep(0)
        job = jobs.running(KIND)
        assert job is not None
        (found,) = await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.gather(jobs.result(job), return_exceptions=True)
        assert found is None or isinstance(found, WaypointError)
        return found, job

    return asyncio.run(work())


@pytest.mark.parametrize(
    ("error", "kind"), [(Failed("store", "x", "no room", code="disk-full"), Failed), (ValueError("a bug"), Bug)]
)
def test_a_capture_that_cannot_be_stored_fails_the_job_but_not_the_others(
    names: Names, tmp_path: Path, error: Exception, kind: type[WaypointError]
) -> None:
    bad, tip = chain(names, 2)
    name_it(names, "bad", bad)

    def ingest(capture: Capture) -> Ingested:
        if capture.id == bad.id:
            raise error
        return IMAGE

    found, job = store(names, tmp_path, ingest, bad)
    assert type(found) is kind
    assert (names.standing(bad.id).durable, names.standing(tip.id).durable) == (False, True)
    facts = job.facts(whole=True)
    assert (facts.state, facts.error) == ("failed", found.to_json())


def test_captures_without_a_name_are_not_stored_by_themselves(names: Names, tmp_path: Path) -> None:
    _, named, tip = chain(names, 3)
    name_it(names, "named", named)
    stored: list[str] = []
    assert store(names, tmp_path, lambda one: stored.append(one.id) or IMAGE, tip)[0] is None
    assert stored == [tip.id, named.id]


def test_files_of_a_damaged_image_are_not_reused(names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool: Any = SimpleNamespace(path=lambda tree: str(tmp_path / tree), usage=lambda _tree: 0)
    captures = Captures(tmp_path, pool, names, pool, pool)
    orders: list[Ingest] = []
    monkeypatch.setattr(captures.images.workers, "run", lambda order, *_: orders.append(order))
    parent, child = chain(names, 2)
    one, other = "a" * 64, "b" * 64
    for capture, standing in (
        (parent, Standing(image=one, durable=True)),
        (parent, Standing(image=one, durable=False)),
        (child, Standing(image=other, durable=False)),
    ):
        with names.change("ingest") as change:
            change.set_standing(capture.id, standing)
        captures.images.ingest(child, lambda *_: None)
    found = [(order.parents, order.earlier, order.again) for order in orders]
    assert found == [([one], one, False), ([one], "", False), ([one], "", True)]
