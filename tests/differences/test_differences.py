"""Objects of the kernel in a captured session and in a copy: each is as in a session that was never captured, or the
checkpoint reports the loss.
"""

import json
import re
from pathlib import Path

import pytest

from tests.acceptance.restoring import in_process, new_name, restore_as, started
from tests.differences import objects
from tests.homes import Home
from waypoint.client.sdk import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu", "own-criu")]

OFTEN = (
    "affinity",
    "core_dump_filter",
    "inherited_lock",
    "io_class",
    "multicast_groups",
    "options_of_tcp",
    "options_of_udp",
    "peeked_at",
    "personality",
    "refused_connection",
    "timer_of_the_day",
    "urgent_data",
)


def start(session: Session, names: list[str]) -> dict[str, str]:
    """Start the objects; return the pid of each."""
    session.run("sh", "-c", "mkdir /tmp/d; cat >/tmp/objects.py", stdin=Path(objects.__file__).read_bytes())
    session.exec(f"python3 /tmp/objects.py /tmp/d {' '.join(names)} </dev/null >/tmp/errors 2>&1 &")
    return dict(json.loads(wait(session, "ready")))


def wait(session: Session, kind: str) -> str:
    until = f"until [ -e /tmp/d/all.{kind} ] || [ -s /tmp/errors ]; do sleep 0.02; done"
    return in_process(session, f"timeout 60 sh -c '{until}'; cat /tmp/errors /tmp/d/all.{kind}")


def found(session: Session) -> dict[str, str]:
    in_process(session, "touch /tmp/d/go")
    return dict(json.loads(wait(session, "found")))


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(OFTEN, id="often"),
        pytest.param(tuple(objects.OBJECTS), marks=pytest.mark.soak(part="differences"), id="all"),
    ],
)
def test_each_object_is_kept_or_its_loss_is_reported(home: Home, names: tuple[str, ...]) -> None:
    with started(home, "root") as other:
        start(other, list(names))
        expected = found(other)
    with started(home, "root") as session:
        pids = start(session, list(names))
        checkpoint = new_name(session)
        said = session.checkpoint(checkpoint, tier="live").degraded
        fork = restore_as(home, session, checkpoint, "fork")
        after, copied = found(session), found(fork)
    codes = {pid: one["code"] for one in said for pid in re.findall(r"\(pid (\d+)", one["subject"])}
    # As each process with threads, in a session with semaphores.
    assert codes.pop(pids.get("thread_settings", ""), "semaphore-undo") == "semaphore-undo"
    assert {name: codes.get(pid, "") for name, pid in pids.items()} == {
        name: objects.REPORTED.get(name, "") for name in names
    }
    assert after == expected
    is_kept = [name for name in names if name not in objects.REPORTED]
    assert {name: copied[name] for name in is_kept} == {name: expected[name] for name in is_kept}
