"""Sessions that CRIU cannot dump as they are, and that a checkpoint still captures with their processes."""

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, session
from tests.answers import unusual
from tests.homes import Home
from tests.waiting import wait_until

pytestmark = pytest.mark.privileged

STATE = "grep ^State: /proc/$!/status"


@pytest.mark.requires("own-criu")
def test_a_job_that_its_terminal_has_stopped_is_captured_as_a_stopped_job(home: Home, person: Person) -> None:
    with session(home, person.name, "--shell", "bash") as branch:
        home.must("exec", "-b", branch, "--tty", "--", "python3 -c 'input()' &")
        wait_until(lambda: "stopped" in inside(home, branch, STATE), "the job is stopped by SIGTTIN")
        found = home.must("doctor", branch, "--json").json()
        assert {one["tier"] for one in found} == {"live"}
        made = home.must("checkpoint", f"{branch}-1", "-b", branch, "--json").json()
        assert (made["tier"], unusual(made["degraded"])) == ("live", [])
        home.must("restore", f"{branch}-1", "-b", branch)
        assert "stopped" in inside(home, branch, STATE)
        assert "Stopped" in inside(home, branch, "jobs")


def test_a_large_deleted_file_that_is_open_is_captured(home: Home, person: Person) -> None:
    with session(home, person.name, "--shell", "bash") as branch:
        make = "head -c 100M /dev/urandom >big; exec 9<big; rm big"
        before = inside(home, branch, f"cd; {make}; sha256sum <&9")
        made = home.must("checkpoint", f"{branch}-1", "-b", branch, "--json").json()
        assert (made["tier"], unusual(made["degraded"])) == ("live", [])
        home.must("restore", f"{branch}-1", "-b", branch)
        assert inside(home, branch, "sha256sum /proc/$$/fd/9").split()[0] == before.split()[0]
