"""The launcher when the daemon runs out of descriptors."""

import itertools
import re
import resource
from pathlib import Path

import pytest

from tests.homes import open_home


@pytest.mark.soak(part="faults")
@pytest.mark.privileged
@pytest.mark.requires("root", "overlay", "cgroup2")
def test_a_start_without_a_free_descriptor_is_refused() -> None:
    with open_home("few") as home:
        home.must("shell", "main", "-d")
        daemon = home.must("daemon", "status", "--json").json()["pid"]
        former = resource.prlimit(daemon, resource.RLIMIT_NOFILE)
        used = {int(path.name) for path in Path(f"/proc/{daemon}/fd").iterdir()}
        free = (number for number in itertools.count() if number not in used)
        resource.prlimit(daemon, resource.RLIMIT_NOFILE, (list(itertools.islice(free, 4))[-1], former[1]))
        done = home.cli("shell", "more", "-d")
        resource.prlimit(daemon, resource.RLIMIT_NOFILE, former)
        assert done.code == 125
        assert re.search(r"cannot start a session on branch more: (\w+: )?Too many open files", done.stderr)
        home.must("shell", "more", "-d")
