"""Who may cancel a job."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from waypoint.model.errors import NotAllowed
from waypoint.model.records import Caller
from waypoint.service import activity
from waypoint.service.background.events import Events
from waypoint.service.background.jobs import Job, Jobs
from waypoint.store.callers import asked_by

ROOT, USER, OTHER, TRUSTED = 0, 7, 8, 9


async def work(_job: Job) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("is_unasked", [False, True])
@pytest.mark.parametrize("starts", [ROOT, USER])
@pytest.mark.parametrize("cancels", [ROOT, USER, OTHER, TRUSTED])
def test_a_user_cancels_the_own_jobs_alone(starts: int, cancels: int, *, is_unasked: bool) -> None:
    may = cancels in (ROOT, TRUSTED) or (cancels == starts and not is_unasked)

    async def begin_and_cancel() -> str:
        jobs = Jobs(Events(asyncio.get_running_loop()))
        home: Any = SimpleNamespace(jobs=jobs, sessions=SimpleNamespace(resources=SimpleNamespace(trusted=TRUSTED)))
        with asked_by(Caller(uid=starts)):
            job = jobs.start("gc", work, is_unasked=is_unasked)
        with asked_by(Caller(uid=cancels)):
            if may:
                await activity.cancel_job(home, job.id)
            else:
                with pytest.raises(NotAllowed, match="has started it"):
                    await activity.cancel_job(home, job.id)
        state = job.state
        await jobs.close()
        return state

    assert asyncio.run(begin_and_cancel()) == ("cancelled" if may else "running")
