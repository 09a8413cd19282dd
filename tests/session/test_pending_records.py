"""If the disk is full, the end of a session cannot be put on record. Until there is free space, all verbs report the
pending end; then it is recorded.
"""

import json
import os
import signal
from collections.abc import Callable

import pytest

from tests.homes import Home
from tests.session import ledger
from tests.session.full_disks import fill, make_room
from tests.session.full_disks import small_disk as small_disk
from tests.waiting import wait_until
from waypoint.client import Client, Session
from waypoint.linux.tasks import pidfd
from waypoint.model.errors import StateConflict, WaypointError

pytestmark = [
    pytest.mark.soak(part="faults"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "cgroup2", "btrfs", "simple-quotas"),
]

SECONDS = 5.0
"""The longest wait for the record when there is free space: the daemon tries again every second."""


def begin(home: Home) -> Session:
    """Start a session with a disk limit: then the pool does not shrink, so only the test frees disk space."""
    home.must("shell", "main", "-d", "--disk", "200M")
    session = Client(home.path).session("main")
    session.exec("echo before > /srv/kept; sleep 1000 &")
    session.checkpoint("before", tier="files")
    session.exec("echo precious > /srv/kept")
    return session


def stop(home: Home, *options: str) -> None:
    """Stop the session while the disk is full, and check the error."""
    done = home.cli("stop", "main", *options)
    assert (done.code, done.stdout) == (125, "")
    assert "cannot record that the session has ended on branch main: " in done.stderr
    assert "No space left on device" in done.stderr
    again = "it is then recorded within a second; until then no new operation begins on this branch"
    assert f"\n  next: free some disk space there; no data is lost; {again}\n" in done.stderr


def leave(home: Home) -> None:
    """End the session by an `exit` of its shell."""
    ended = os.pidfd_open(Client(home.path).session("main").refresh().pid or 0)
    assert home.cli("exec", "-b", "main", "--", "exit 3").code == 3
    assert pidfd.wait_ended(ended, SECONDS)
    os.close(ended)
    wait_until(lambda: Client(home.path).sessions() == [], "the daemon has noticed the end of the session", SECONDS)


def check_end_is_pending(home: Home) -> None:
    """Check that no verb takes the session for a live one, and that all refuse to continue it."""
    client = Client(home.path)
    assert client.sessions() == []
    assert [branch.live for branch in client.history.branches() if branch.name == "main"] == [False]
    with pytest.raises(StateConflict, match="it has no running session"):
        client.session("main").exec("true")
    for ask in (client.start, lambda: client.session("main").restore("before"), lambda: client.fork("main", "copy")):
        with pytest.raises(WaypointError, match="the session has ended") as caught:
            ask()
        assert "No space left on device" in caught.value.said


def is_on_record(home: Home, *reasons: str) -> bool:
    try:
        (tip, *_) = Client(home.path).history.log("main", limit=1)
    except WaypointError:
        return False
    return tip.reason in (reasons or ("stopped", "exited"))


@pytest.mark.parametrize("end", [stop, leave])
def test_an_end_on_a_full_disk_is_recorded_when_there_is_free_space(
    small_disk: Home, end: Callable[[Home], None]
) -> None:
    session = begin(small_disk)
    fill(small_disk)
    end(small_disk)
    check_end_is_pending(small_disk)
    check_end_is_pending(small_disk)
    make_room(small_disk)
    wait_until(lambda: is_on_record(small_disk), "the end is on record", SECONDS)
    ledger.check(small_disk)
    session = Client(small_disk.path).start("main")
    assert session.exec("cat /srv/kept").output == b"precious\n"


def test_a_request_records_a_pending_end_at_once(small_disk: Home) -> None:
    begin(small_disk)
    fill(small_disk)
    stop(small_disk, "--files")
    make_room(small_disk)
    assert Client(small_disk.path).start("main").exec("cat /srv/kept").output == b"precious\n"
    ledger.check(small_disk)


def test_a_discard_on_a_full_disk_is_completed_later(small_disk: Home) -> None:
    begin(small_disk)
    fill(small_disk)
    stop(small_disk, "--discard")
    check_end_is_pending(small_disk)
    make_room(small_disk)
    assert Client(small_disk.path).start("main").exec("cat /srv/kept").output == b"before\n"
    ledger.check(small_disk)


def test_the_next_daemon_records_a_pending_end(small_disk: Home) -> None:
    begin(small_disk)
    fill(small_disk)
    stop(small_disk, "--files")
    client = Client(small_disk.path)
    os.kill(client.status().pid, signal.SIGKILL)
    check_end_is_pending(small_disk)
    make_room(small_disk)
    wait_until(lambda: is_on_record(small_disk, "crashed"), "the end is on record", SECONDS)
    assert client.start("main").exec("cat /srv/kept").output == b"precious\n"
    ledger.check(small_disk)
    assert json.loads(small_disk.must("ps", "--json").stdout)[0]["branch"] == "main"
