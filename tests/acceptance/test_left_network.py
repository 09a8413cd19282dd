"""A session whose pid 1 has gone into a network of its own making, over which it has all rights: nothing of the
daemon's goes there, and other sessions feel nothing of it.

Else it would have the end of a pair of interfaces to the router, and could put another in its place: by that the daemon
knows for which session the router opens what `--allow-net` says.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.outside import PUBLIC, HomeThere, open_outside
from tests.acceptance.reaching import REACHED, tried
from tests.acceptance.sessions import inside
from tests.homes import open_home
from tests.waiting import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("userns")]

SAID = "its pid 1 is in no network of the session's"
# In place of /bin/sh. It takes the session's addresses along, as the routes of a way out are made with these.
LEAVES = """#!/usr/bin/python3 -ISs
import ctypes, os, subprocess, sys
if os.getpid() == 1:
    assert ctypes.CDLL(None).unshare(0x50000000) == 0
    for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    for words in ("link set lo up", "addr add 10.77.0.2/32 dev lo", "addr add fd10:77::2/128 dev lo"):
        subprocess.run(["ip", *words.split()], check=True)
os.execv("/bin/dash", ["sh", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HomeThere]:
    with open_outside(tmp_path_factory.mktemp("outside")) as outside, open_home("left") as home:
        yield outside.moved(home)


def facts(there: HomeThere, branch: str) -> dict[str, object]:
    (found,) = (one for one in there.must("ps", "--json").json() if one["branch"] == branch)
    return dict(found)


@pytest.fixture(scope="module")
def left(there: HomeThere) -> str:
    """A branch of which pid 1 leaves the session's network at each start."""
    options = ("--user", "root", "--allow", "userns", "--publish", "18077:80", "--allow-net", "198.51.100.0/24")
    there.must("shell", "left", "-d", *options)
    inside(there, "left", f"printf %s {shlex.quote(LEAVES)} >/srv/sh; chmod 755 /srv/sh; mv /srv/sh /bin/sh")
    there.must("stop", "left")
    return "left"


def test_nothing_leads_into_a_network_that_pid_1_has_made(there: HomeThere, left: str) -> None:
    there.must("shell", left, "-d", "--user", "root")
    wait_until(lambda: facts(there, left)["no_way_out"] and facts(there, left)["not_published"], "both were tried")
    found = facts(there, left)
    assert (found["no_way_out"], found["not_published"], found["published"]) == (SAID, SAID, None)
    lines = Path(f"/proc/{found['pid']}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]
    there.must("stop", left)


def test_other_sessions_have_their_way_out_and_are_told_so(there: HomeThere, left: str) -> None:
    there.must("shell", "other", "-d")
    assert tried(there, "other", PUBLIC) == REACHED
    there.must("shell", left, "-d", "--user", "root")
    assert tried(there, "other", PUBLIC) == REACHED
    wait_until(lambda: facts(there, left)["no_way_out"], "that of the one that has left was tried")
    assert facts(there, "other")["no_way_out"] is None
    (row,) = (one for one in there.must("doctor", "--json").json() if one["capability"].startswith("way out"))
    assert row["state"] == "ok", row
    there.must("stop", "--all", "--discard")
