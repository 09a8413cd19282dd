"""What programs hold on to comes back with a fork and with a restore in place: sockets, memory, files, terminals."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.moments import WAYS, Mood, Way, alone, brought_back, new_name, started
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
    """A session in which the witness runs, brought back in either way."""
    who, _, mood_name = request.param.partition("-")
    mood: Mood = "busy" if mood_name == "busy" else "quiet"
    user = "root" if who == "root" else request.getfixturevalue(who).name
    with started(home, user, mood) as session:
        for name in WITNESS:
            session.run("sh", "-c", f"cat >/tmp/{name}", stdin=Path(__file__).with_name(name).read_bytes())
        session.run("mkdir", "/tmp/witness")
        session.exec("python3 /tmp/witness.py /tmp/witness </dev/null >/tmp/witness.log 2>&1 &")
        alone(session, "until [ -p /tmp/witness/answer -o -s /tmp/witness.log ]; do sleep 0.02; done")
        assert alone(session, "cat /tmp/witness.log") == ""
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        ask(session)
        fork = brought_back(home, session, checkpoint, "fork")
        yield {"fork": fork, "restore": brought_back(home, session, checkpoint, "restore")}


def ask(session: Session) -> dict[str, str]:
    """What the witness says of each thing that it holds."""
    answer = json.loads(alone(session, "echo >/tmp/witness/ask; timeout 60 cat /tmp/witness/answer"))
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("way", WAYS)
def test_everything_that_a_program_holds_comes_back(witnesses: dict[Way, Session], way: Way) -> None:
    said = ask(witnesses[way])
    assert said == dict.fromkeys(said, "as it was"), "\n".join(f"{name}: {one}" for name, one in said.items())
