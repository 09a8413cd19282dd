"""Sockets of other processes."""

import os
import socket

import pytest

from waypoint.linux.net import sockets

pytestmark = [pytest.mark.privileged]


def test_a_socket_is_duplicated_and_another_file_is_refused_without_a_leak() -> None:
    with socket.socket() as own, open("/dev/null") as other:
        before = os.listdir("/proc/self/fd")
        with sockets.take(os.getpid(), own.fileno()) as taken:
            assert os.path.sameopenfile(taken.fileno(), own.fileno())
        with pytest.raises(OSError, match="non-socket"):
            sockets.take(os.getpid(), other.fileno())
        assert os.listdir("/proc/self/fd") == before
