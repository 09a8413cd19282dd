"""Requests from inside that were in flight at a capture, in a copy whose daemon is killed before it looks at them."""

import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.homes import Home
from tests.session.pauses import Pauses
from tests.session.transactions import UNANSWERED, is_name
from tests.waiting import PATIENCE_S
from waypoint.capture.steps import Step
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]


@pytest.fixture
def home(pauses: Pauses) -> Iterator[Home]:
    with pauses.open_home("captured") as made:
        yield made


@pytest.mark.soak(part="floods")
def test_a_request_in_flight_at_a_capture_is_answered_and_not_executed_in_the_copy(home: Home, pauses: Pauses) -> None:
    client = Client(home.path)
    session = client.start("w")
    asked = "cd /run/waypoint; mkfifo a.9.1; printf 'checkpoint\\0evil\\0' >r.9.1; (cat a.9.1 >/tmp/said) & cd /"
    session.exec(asked)  # as `waypoint checkpoint evil` does, but for the bell: nobody has looked yet
    captured = session.checkpoint("point", tier="live").capture
    session.stop(discard=True)
    with pauses.armed(Step.CONFIRMED) as armed, home.background("fork", "point", "f") as command:
        assert armed.wait() == Step.CONFIRMED
        os.kill(client.status().pid, signal.SIGKILL)
        _, said = command.communicate(timeout=PATIENCE_S)
    assert re.fullmatch(UNANSWERED, said.decode())
    read = "until [ -s /tmp/said ]; do sleep 0.02; done; cat /tmp/said"
    told = client.session("f").run("sh", "-c", read).stdout.decode()
    assert told == f"0\nrestored f  {captured}\n"
    assert not is_name(client, "evil")
