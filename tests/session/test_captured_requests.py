"""Requests from inside that were in flight at a capture, in a copy whose daemon is killed before it looks at them."""

import os
import re
import signal

import pytest

from tests.homes import Home
from tests.session.pauses import Pauses, home_with
from tests.session.transactions import UNANSWERED, is_name
from tests.waiting import PATIENCE_S
from waypoint.capture.steps import Step
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]


home = pytest.fixture(home_with)


def test_it_is_answered_and_never_carried_out(home: Home, pauses: Pauses) -> None:
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
