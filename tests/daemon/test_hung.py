"""What a command that hangs leaves behind for whoever looks for the reason."""

import subprocess

import pytest

from tests.homes import Home

pytestmark = pytest.mark.privileged


def test_of_a_command_that_hangs_it_is_told_where_everything_stands(home: Home) -> None:
    home.must("shell", "-d")
    daemon = home.must("daemon", "status", "--json").json()["pid"]
    for _ in range(3):
        with pytest.raises(subprocess.TimeoutExpired) as raised:
            home.cli("exec", "--", "sleep 100", timeout_s=3)  # for it to begin, too
        said = "\n".join(raised.value.__notes__)
        assert "cli/main.py exec -- sleep 100" in said  # the command itself, before it was killed
        if "epoll_wait" in said and "in select" in said:  # mostly, the daemon waits at that moment
            break
    assert "epoll_wait" in said  # the daemon's place in the kernel
    assert "in select" in said  # and in Python
    assert home.must("daemon", "status", "--json").json()["pid"] == daemon
