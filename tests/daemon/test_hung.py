"""The test helper `Home.cli` adds the stacks of the command and the daemon to the failure of a command that hangs."""

import subprocess

import pytest

from tests.homes import Home

pytestmark = pytest.mark.privileged


@pytest.mark.soak(part="floods")
def test_the_failure_of_a_command_that_hangs_has_the_stacks_of_all_processes(home: Home) -> None:
    home.must("shell", "-d")
    daemon = home.must("daemon", "status", "--json").json()["pid"]
    with pytest.raises(subprocess.TimeoutExpired) as raised:
        home.cli("exec", "--", "sleep 100", timeout_s=1)
    said = "\n".join(raised.value.__notes__)
    assert "cli/main.py exec -- sleep 100" in said  # the command, before it was killed
    assert "epoll_wait" in said  # the kernel stack of the daemon
    assert "in select" in said  # the Python stack of the daemon
    assert home.must("daemon", "status", "--json").json()["pid"] == daemon
