"""Work in other network namespaces."""

import contextlib
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from waypoint.linux.net import netns, network, sockets

pytestmark = pytest.mark.privileged


def _own() -> int:
    return os.stat("/proc/thread-self/ns/net").st_ino


def test_a_thread_works_in_another_network_namespace_and_returns() -> None:
    def fail() -> None:
        inside.append(_own())
        raise ValueError

    def work() -> tuple[int, int]:
        before = _own()
        with contextlib.suppress(ValueError):
            netns.work_in_new(fail)
        return before, _own()

    inside: list[int] = []
    with ThreadPoolExecutor(1) as thread:
        before, after = thread.submit(work).result()
    assert before == after != inside[0]


def test_the_main_thread_stays_in_its_own_namespace() -> None:
    before = _own()
    assert netns.work_in_new(lambda: (_own(), os.stat("/proc/self/ns/net").st_ino)) != (before, before)
    assert netns.work_in_new(lambda: os.stat("/proc/self/ns/net").st_ino) == _own() == before


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_namespace_with_a_listener_has_tcp(address: str) -> None:
    def work() -> tuple[bool, bool]:
        network.raise_loopback()
        thread = threading.get_native_id()
        before = sockets.has_tcp(thread)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family):
            return before, sockets.has_tcp(thread)

    assert netns.work_in_new(work) == (False, True)
