"""Names of checkpoints with the name of their branch, such as `main/warm` for the checkpoint `warm` of `main`."""

import asyncio

import pytest

from tests.records.test_names_store import begin_and_end, name_it
from tests.service.recorded import History
from waypoint.model.errors import NotAllowed
from waypoint.model.records import Caller
from waypoint.records.callers import asked_by
from waypoint.records.names import Names


def test_a_checkpoint_is_removed_by_each_of_its_names_and_only_for_users_who_may(
    names: Names, history: History
) -> None:
    name_it(names, "warm", begin_and_end(names))  # of another user
    for name in ("warm", "main/warm"):
        with asked_by(Caller(uid=1001)), pytest.raises(NotAllowed, match="it belongs to"):
            asyncio.run(history.remove([name]))
        assert names.ref("warm") is not None
    asyncio.run(history.remove(["main/warm", "warm"]))
    assert names.ref("warm") is None
