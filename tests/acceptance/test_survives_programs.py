"""Sockets, memory, files and terminals of programs are restored by a fork and by a restore in place."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.restoring import WAYS, Mood, Way, in_process, new_name, restore_as, started
from tests.homes import Home
from waypoint.client.sdk import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

WITNESS = ("witness.py", "witness_memory.py")


@pytest.fixture(
    scope="module",
    params=[
        "person-quiet",
        *(
            pytest.param(name, marks=pytest.mark.soak(part="matrix"))
            for name in ("person-busy", "root-quiet", "root-busy")
        ),
    ],
)
def witnesses(home: Home, request: pytest.FixtureRequest) -> Iterator[dict[Way, Session]]:
    """A session that runs the program witness.py, restored as a fork and in place."""
    who, _, mood_name = request.param.partition("-")
    mood: Mood = "busy" if mood_name == "busy" else "quiet"
    user = "root" if who == "root" else request.getfixturevalue(who).name
    with started(home, user, mood) as session:
        for name in WITNESS:
            session.run("sh", "-c", f"cat >/tmp/{name}", stdin=Path(__file__).with_name(name).read_bytes())
        session.run("mkdir", "/tmp/witness")
        session.exec("python3 /tmp/witness.py /tmp/witness </dev/null >/tmp/witness.log 2>&1 &")
        in_process(session, "until [ -p /tmp/witness/answer -o -s /tmp/witness.log ]; do sleep 0.02; done")
        assert in_process(session, "cat /tmp/witness.log") == ""
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        ask(session)
        fork = restore_as(home, session, checkpoint, "fork")
        yield {"fork": fork, "restore": restore_as(home, session, checkpoint, "restore")}


def ask(session: Session) -> dict[str, str]:
    """Return the report of the program witness.py on each object that it holds."""
    answer = json.loads(in_process(session, "echo >/tmp/witness/ask; timeout 60 cat /tmp/witness/answer"))
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("way", WAYS)
def test_everything_that_a_program_holds_is_restored(witnesses: dict[Way, Session], way: Way) -> None:
    said = ask(witnesses[way])
    assert said == dict.fromkeys(said, "unchanged"), "\n".join(f"{name}: {one}" for name, one in said.items())
