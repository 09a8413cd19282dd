"""Objects of the kernel in a captured session and in a copy: each is as in a session that was never captured, or the
checkpoint reports the loss.
"""

import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from tests.acceptance.restoring import in_process, new_name, restore_as, started
from tests.differences import objects, run
from tests.homes import Home
from waypoint.client.sdk import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu", "own-criu")]

OFTEN = (
    "affinity",
    "blocked_write",
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
    programs = io.BytesIO()
    with tarfile.open(fileobj=programs, mode="w") as archive:
        for module in (objects, run, *run.MODULES):
            path = Path(str(module.__file__))
            archive.add(path, f"tests/differences/{path.name}")
    session.run("sh", "-c", "mkdir /tmp/d; tar -x -C /tmp", stdin=programs.getvalue())
    run_them = f"PYTHONPATH=/tmp python3 -m tests.differences.run /tmp/d {' '.join(names)}"
    session.exec(f"{run_them} </dev/null >/tmp/errors 2>&1 &")
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
    assert [name for name, text in expected.items() if "Traceback" in text] == []
    with started(home, "root") as session:
        pids = start(session, list(names))
        checkpoint = new_name(session)
        said = session.checkpoint(checkpoint, tier="live").degraded
        fork = restore_as(home, session, checkpoint, "fork")
        after, copied = found(session), found(fork)
    assert after == expected
    codes: dict[str, set[str]] = {name: set() for name in names}
    by_pid = {pid: codes[name] for name, pid in pids.items()}
    for one in said:
        for pid in re.findall(r"\(pid (\d+)", one["subject"]):
            by_pid.get(pid, set()).add(one["code"])
        if one["code"] == "message-queues":
            codes["closed_message_queue"].add(one["code"])
    for name in names:
        if name != "semaphore_undo":  # reported for each process with threads, in a session with semaphores
            codes[name].discard("semaphore-undo")
    assert codes == {name: {objects.REPORTED[name]} if name in objects.REPORTED else set() for name in names}
    is_kept = [name for name in names if name not in objects.REPORTED]
    assert {name: copied[name] for name in is_kept} == {name: expected[name] for name in is_kept}


@pytest.mark.soak(part="differences")
def test_a_capture_of_what_cannot_be_kept_is_refused_with_the_reason(home: Home) -> None:
    codes = {}
    with started(home, "root") as session:
        for name in objects.REFUSED:
            in_process(session, "rm -rf /tmp/d")
            start(session, [name])
            assert "Traceback" not in in_process(session, "cat /tmp/d/*.found 2>/dev/null; :"), name
            tried = home.cli("checkpoint", new_name(session), "-b", session.branch, "--tier", "live", "--json")
            codes[name] = json.loads(tried.stdout).get("error", {"code": "taken"})["code"]
            session.exec("pkill -KILL -f tests.differences; pkill -KILL -f 'sleep 1000'; wait; :")
    assert codes == {name: code for name, (_, code) in objects.REFUSED.items()}
