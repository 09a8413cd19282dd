"""CRIU's log of a failed dump or restore is shown to root and to the user of the session."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from waypoint.model.errors import UnknownName
from waypoint.model.records import Caller
from waypoint.records.callers import asked_by
from waypoint.service.captures import criu_log

OWNER, TRUSTED, STRANGER = 1001, 1002, 1003
HOME: Any = SimpleNamespace(
    captures=SimpleNamespace(criu_log=lambda name: (OWNER, "Error: no\n") if name == "1-dump" else None),
    sessions=SimpleNamespace(resources=SimpleNamespace(trusted=TRUSTED)),
)


@pytest.mark.parametrize("uid", [0, OWNER, TRUSTED])
def test_the_user_of_the_session_may_read_the_log(uid: int) -> None:
    with asked_by(Caller(uid=uid)):
        assert asyncio.run(criu_log(HOME, "1-dump")).text == "Error: no\n"


@pytest.mark.parametrize(("uid", "name"), [(STRANGER, "1-dump"), (0, "2-dump"), (OWNER, "2-dump")])
def test_other_users_do_not_learn_whether_there_is_a_log(uid: int, name: str) -> None:
    with asked_by(Caller(uid=uid)), pytest.raises(UnknownName, match="no log of this name is kept"):
        asyncio.run(criu_log(HOME, name))
