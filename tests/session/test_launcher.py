"""The launcher's process: what each of its forks pays for, and what its daemon gets of it."""

import itertools
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.homes import open_home
from tests.places import ROOT
from tests.waiting import wait_until

IMPORTS = """
import sys
sys.path[:0] = %r
from waypoint.model.packages import begin
begin("msgspec")
import waypoint.launch.launcher
print(*(name for name, module in sys.modules.items() if type(module).__name__ != "_StandIn"))
"""


def test_it_has_no_module_that_works_in_every_forked_child() -> None:
    """threading, logging and random register something with os.register_at_fork."""
    paths = [str(ROOT), *(entry for entry in sys.path if entry.endswith("site-packages"))]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", IMPORTS % paths], check=True, capture_output=True)
    found = set(done.stdout.decode().split())
    assert "msgspec" in found
    assert not found & {"threading", "logging", "random", "concurrent.futures", "subprocess"}
    not_asked_for = {
        "msgspec.inspect",
        "dataclasses",
        "inspect",
        "ast",
        "textwrap",
        "tokenize",
        "pathlib",
        "logging",
        "asyncio",
        "json",
    }
    assert not found & not_asked_for


@pytest.mark.privileged
@pytest.mark.requires("root", "overlay", "cgroup2")
def test_a_start_for_which_the_daemon_has_no_descriptor_left_is_refused_in_words() -> None:
    with open_home("few") as home:
        home.must("shell", "main", "-d")
        daemon = home.must("daemon", "status", "--json").json()["pid"]
        former = resource.prlimit(daemon, resource.RLIMIT_NOFILE)
        used = set[int]()

        def is_settled() -> bool:
            nonlocal used
            before, used = used, {int(path.name) for path in Path(f"/proc/{daemon}/fd").iterdir()}
            return used == before

        wait_until(is_settled, "the daemon has closed what it had for the answers")
        free = (number for number in itertools.count() if number not in used)
        resource.prlimit(daemon, resource.RLIMIT_NOFILE, (list(itertools.islice(free, 4))[-1], former[1]))
        done = home.cli("shell", "more", "-d")
        resource.prlimit(daemon, resource.RLIMIT_NOFILE, former)
        assert done.code == 125
        assert re.search(r"cannot start a session on branch more: (\w+: )?Too many open files", done.stderr)
        home.must("shell", "more", "-d")
