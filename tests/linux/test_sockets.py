"""Sockets of other processes."""

import contextlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from waypoint.linux.net import sockets
from waypoint.linux.tasks import namespaces

_NETLINK_SOCK_DIAG = 4

pytestmark = [pytest.mark.privileged]


def test_a_socket_is_duplicated_and_another_file_is_refused_without_a_leak() -> None:
    with socket.socket() as own, open("/dev/null") as other:
        before = os.listdir("/proc/self/fd")
        with sockets.take(os.getpid(), own.fileno()) as taken:
            assert os.path.sameopenfile(taken.fileno(), own.fileno())
        with pytest.raises(OSError, match="non-socket"):
            sockets.take(os.getpid(), other.fileno())
        assert os.listdir("/proc/self/fd") == before


def test_a_list_that_was_read_in_part_leaves_no_answers_for_the_next_request() -> None:
    def work() -> None:
        namespaces.unshare(namespaces.CLONE_NEWNET)
        with contextlib.ExitStack() as held:
            for _ in range(200):  # more than one answer of the kernel holds
                held.enter_context(socket.socket()).listen()
            table = held.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG))
            next(sockets.dump(table, socket.AF_INET, socket.IPPROTO_TCP, 1 << 10))
            assert not list(sockets.dump(table, socket.AF_INET, socket.IPPROTO_UDP, 0xFFF))
            assert len(list(sockets.dump(table, socket.AF_INET, socket.IPPROTO_TCP, 1 << 10))) == 200

    with ThreadPoolExecutor(1) as thread:  # the namespace ends with the thread
        thread.submit(work).result()
