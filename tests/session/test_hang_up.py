"""The hang-up of a shell that is stopped, where the shell is quicker than we are."""

import os
import signal
import subprocess

import pytest

from waypoint.linux.tasks import pidfd
from waypoint.session import end

# Pid 1 of a session in small: it starts the shell at the terminal and reaps it.
INIT = "setsid -c sh -c 'echo ready; read line' <$0 >$0 2>&1; exit 0"


def test_a_shell_that_has_ended_before_the_second_signal_was_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    with subprocess.Popen(["sh", "-c", INIT, os.ttyname(slave)]) as init:
        assert os.read(master, 5) == b"ready"
        sent = []

        def send_slowly(fd: int, number: int) -> None:
            sent.append(number)
            signal.pidfd_send_signal(fd, number)
            init.wait()  # it has reaped the shell

        monkeypatch.setattr(pidfd, "send_signal", send_slowly)
        assert end._hang_up(master, init.pid)
        assert sent == [signal.SIGHUP, signal.SIGCONT]
    os.close(master)
    os.close(slave)
