"""Kinds of objects that only Waypoint's own CRIU restores: each is unchanged in the original, a fork, and a fork of the
fork.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.restoring import in_process, in_shell, new_name, restore_as, started
from tests.answers import unusual
from tests.homes import Home
from waypoint.client.sdk import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu", "own-criu")]

WITNESS = ("witness.py", "witness_memory.py", "witness_own_criu.py")


@pytest.fixture(scope="module")
def sessions(home: Home, person: Person) -> Iterator[dict[str, Session]]:
    """A session whose shell stands in /proc/1 and that runs the program witness_own_criu.py, and its copies."""
    with started(home, person.name) as session:
        for name in WITNESS:
            session.run("sh", "-c", f"cat >/tmp/{name}", stdin=Path(__file__).with_name(name).read_bytes())
        session.run("mkdir", "/tmp/witness")
        session.exec("python3 /tmp/witness_own_criu.py /tmp/witness </dev/null >/tmp/witness.log 2>&1 &")
        in_process(session, "until [ -p /tmp/witness/answer -o -s /tmp/witness.log ]; do sleep 0.02; done")
        assert in_process(session, "cat /tmp/witness.log") == ""
        session.exec("cd /proc/1")
        checkpoint, second = new_name(session), new_name(session)
        assert unusual(session.checkpoint(checkpoint, tier="live").degraded) == []
        fork = restore_as(home, session, checkpoint, "fork")
        assert unusual(fork.checkpoint(second, tier="live").degraded) == []
        yield {"original": session, "fork": fork, "second": restore_as(home, fork, second, "fork")}


@pytest.mark.parametrize("which", ["original", "fork", "second"])
def test_everything_that_a_program_holds_is_unchanged(sessions: dict[str, Session], which: str) -> None:
    session = sessions[which]
    said = json.loads(in_process(session, "echo >/tmp/witness/ask; timeout 90 cat /tmp/witness/answer"))
    assert said == dict.fromkeys(said, "unchanged"), "\n".join(f"{name}: {one}" for name, one in said.items())
    assert in_shell(session, "pwd -P") == "/proc/1\n"
