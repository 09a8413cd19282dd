"""Names that sessions may reach, where the machine's resolver does not answer: nobody else waits for it."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.acceptance.outside import NAME, PRIVATE, PUBLIC, open_outside
from tests.acceptance.reaching import REACHED, tried
from tests.homes import open_home
from tests.waiting import wait_until

pytestmark = [pytest.mark.privileged]

SOON_S = 1.5  # a command waits for its session's way out for 2 s at most
LATE_S = 40.0  # the resolver of the C library asks again after 5 s, some times


@pytest.mark.alone("how soon a session begins is a matter of the machine's load")
def test_nobody_waits_for_the_names_of_another(tmp_path: Path) -> None:
    with open_outside(tmp_path) as outside, open_home("silent") as home:
        there = outside.moved(home)
        there.must("shell", "first", "-d")
        assert tried(there, "first", PUBLIC) == REACHED

        def on_internet(rules: str) -> None:
            subprocess.run(["nsenter", "-t", str(outside.internet), "-n", "nft", rules], check=True)

        on_internet("table ip silent { chain in { type filter hook input priority 0; udp dport 53 drop; }; }")
        names = [f"{NAME},{PRIVATE}"] + [f"n{number}.example.test" for number in range(10)]  # more than threads
        for number, name in enumerate(names):
            there.must("shell", f"waits-{number}", "-d", "--allow-net", name)
        begun = time.monotonic()
        there.must("shell", "other", "-d")
        assert tried(there, "other", PUBLIC) == REACHED
        assert time.monotonic() - begun < SOON_S
        assert tried(there, "waits-0", PRIVATE) == REACHED  # an address needs no name
        assert tried(there, "waits-0", PUBLIC) == "OSError at once\n"
        on_internet("delete table ip silent")
        wait_until(lambda: tried(there, "waits-0", PUBLIC) == REACHED, "the answer is used when it comes", LATE_S)
        there.must("stop", "--all", "--discard")
