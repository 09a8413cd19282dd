"""What cannot be brought back as it was is brought back with less, when that is asked for: `--tier`."""

import contextlib
import json
import re
import socket
from collections.abc import Iterator

import pytest

from tests.acceptance.sessions import inside
from tests.homes import Home
from tests.ports import free_port
from tests.waiting import until_runs, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

STATE = "cd /usr; X='as it was'; echo kept >/var/tmp/file"
SLEEPS = f"sleep 4321 & {until_runs('sleep 4321')}"
SEEN = "echo $X; pwd; cat /var/tmp/file; pgrep -c -f 'sleep 4321'"
WITHOUT = "as it was\n/usr\nkept\n0\n"
LEFT_OUT = "degraded: without its processes: --tier files"
WITH = "as it was\n/usr\nkept\n1\n"


@pytest.fixture(autouse=True)
def _ended(home: Home) -> Iterator[None]:
    yield
    home.must("stop", "--all", "--discard")
    for name in [row["name"] for row in home.must("branch", "list", "--json").json()]:
        home.must("branch", "delete", name)
    home.cli("rm", "parked")


def seen(home: Home, branch: str) -> str:
    return home.cli("exec", "-b", branch, "--", SEEN).stdout


def tier_of(home: Home, branch: str) -> str:
    """With which the session says that it has begun."""
    return str(json.loads(inside(home, branch, "waypoint status --json"))["tier"])


def advised(stderr: str, option: str) -> list[str]:
    """The command with `option` that the error's next step names."""
    found = re.search(rf"waypoint ([^;\n]*{option})", stderr)
    assert found, stderr
    return found.group(1).split()


def test_a_parked_branch_takes_another_network(home: Home) -> None:
    home.must("shell", "b", "-d")
    inside(home, "b", f"{STATE}; {SLEEPS}")
    home.must("checkpoint", "-b", "b", "parked", "--park")
    done = home.cli("shell", "b", "-d", "--net", "none")
    assert (done.code, done.stdout) == (2, "")
    assert (
        "\n  next: leave that out, or have its programs started again (--tier respawn), or not at all " in done.stderr
    )
    done = home.must("shell", "b", "-d", "--net", "none", "--tier", "files")
    assert "degraded: without its processes: --tier files\n" in done.stderr
    assert seen(home, "b") == WITHOUT
    assert [one["net"] for one in home.must("ps", "--json").json()] == ["none"]
    assert home.cli("shell", "b", "-d", "--tier", "files").code == 4  # it is live
    home.must("stop", "b")
    home.must("shell", "b", "-d")
    assert [one["net"] for one in home.must("ps", "--json").json()] == ["none"]  # which the branch keeps
    home.must("restore", "parked", "--new", "whole")
    assert seen(home, "whole") == WITH
    assert {one["branch"]: one["net"] for one in home.must("ps", "--json").json()}["whole"] == "private"
    done = home.must("restore", "parked", "-b", "whole", "--tier", "respawn")
    assert "degraded: without its processes: --tier respawn\n" in done.stderr
    assert "\nstarted again: sleep 4321\n" in done.stderr
    wait_until(lambda: seen(home, "whole") == WITH, "it runs again")
    assert tier_of(home, "whole") == "respawn"
    home.must("undo", "-b", "whole")
    assert seen(home, "whole") == WITH


def test_ports_of_the_machine_that_are_taken(home: Home) -> None:
    port = free_port()
    home.must("shell", "b", "-d", "--net", "host")
    serve = f"python3 -m http.server -b 127.0.0.1 {port} >/dev/null 2>&1"
    inside(home, "b", f"{STATE}; {serve} & {SLEEPS}")

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    wait_until(listens, "the session's server listens")
    home.must("checkpoint", "-b", "b", "parked", "--park")
    with socket.create_server(("127.0.0.1", port)):
        for tried in (("shell", "b", "-d"), ("restore", "parked"), ("restore", "parked", "--new", "n")):
            done = home.cli(*tried)
            assert (done.code, "other programs have them now" in done.stderr) == (5, True), tried
            branch = "n" if "n" in tried else "b"
            home.must(*advised(done.stderr, "--tier respawn"))
            assert inside(home, branch, until_runs("sleep 4321")) == ""
            home.must("stop", branch, "--discard")
            home.must(*advised(done.stderr, "--tier files"))
            assert seen(home, branch) == WITHOUT
            home.must("stop", branch, "--discard")
        home.must("restore", "parked", "--new", "m", "--tier", "files")
        assert seen(home, "m") == WITHOUT
        home.must("stop", "m", "--discard")
        # To be free of the machine's ports for good.
        home.must("shell", "p", "-d", "--from", "parked", "--net", "private", "--tier", "files")
        assert seen(home, "p") == WITHOUT
        home.must("stop", "p", "--discard")
    home.must("restore", "parked")
    assert seen(home, "b") == WITH


def test_a_tier_of_a_branch_that_begins_anew_is_not_passed_over_in_silence(home: Home) -> None:
    said = "degraded: --tier respawn: the branch begins anew, and there is nothing to bring back\n"
    assert said in home.must("shell", "b", "-d", "--tier", "respawn").stderr
    home.must("stop", "b", "--discard")


def test_programs_that_are_listed_are_not_started_where_files_are_asked_for(home: Home) -> None:
    home.must("shell", "b", "-d")
    inside(home, "b", f"{STATE}; {SLEEPS}")
    home.must("checkpoint", "-b", "b", "parked", "--tier", "respawn")
    home.must("stop", "b", "--discard")
    done = home.must("restore", "parked", "--tier", "files")
    assert "degraded: without its programs: --tier files\n" in done.stderr
    assert seen(home, "b") == WITHOUT
    assert tier_of(home, "b") == "files"
    home.must("stop", "b", "--discard")
    done = home.must("restore", "parked", "--tier", "respawn")
    assert "--tier" not in done.stderr
    assert tier_of(home, "b") == "respawn"
    wait_until(lambda: seen(home, "b") == WITH, "it runs again")
    done = home.cli("restore", "parked", "--tier", "files", "--only", "files")
    assert (done.code, "--only" in done.stderr) == (2, True)


def test_copies_and_what_is_asked_for_inside_have_a_tier_too(home: Home) -> None:
    home.must("shell", "b", "-d")
    inside(home, "b", f"{STATE}; {SLEEPS}")
    home.must("checkpoint", "-b", "b", "parked")
    done = home.must("fork", "parked", "f-1", "f-2", "--tier", "files")
    assert LEFT_OUT in done.stderr
    home.must("fork", "b", "-n", "1", "--prefix", "now", "--tier", "files")
    said = inside(home, "b", "waypoint fork parked in-1 --tier files; waypoint restore parked --new in-2 --tier files")
    told = [line for line in said.splitlines() if line in (LEFT_OUT, "in-1", "in-2")]
    assert told == ["in-1", LEFT_OUT, "in-2", LEFT_OUT]
    for branch in ("f-1", "f-2", "now-1", "in-1", "in-2"):
        assert (seen(home, branch), tier_of(home, branch)) == (WITHOUT, "files"), branch
    home.must("fork", "parked", "f-3")
    assert (seen(home, "f-3"), tier_of(home, "f-3")) == (WITH, "live")
    inside(home, "f-3", "(waypoint restore parked --tier files >/dev/null 2>&1 &)")
    wait_until(lambda: seen(home, "f-3") == WITHOUT, "the session inside which it was asked for is replaced")
    home.must("undo", "-b", "f-3")
    assert seen(home, "f-3") == WITH
    said = home.cli("exec", "-b", "f-3", "--", "waypoint restore parked --tier files --only files").stdout
    assert "--only brings back no more than its aspect\n  next: leave it out" in said
