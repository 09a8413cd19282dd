"""What a session's programs meet while the way out is missing."""

import errno
import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from waypoint.egress import plan, session_side
from waypoint.linux.net import rtnetlink
from waypoint.linux.net.rtnetlink import PairEnd, RouteSocket
from waypoint.linux.tasks import namespaces

PUBLIC = "192.88.99.1"


def begun() -> int:
    """How a connection begins: with EINPROGRESS if its packets are sent."""
    with socket.socket() as one:
        one.setblocking(False)  # noqa: FBT003
        return one.connect_ex((PUBLIC, 80))


def way_of(address: str) -> str:
    found = subprocess.run(["ip", "route", "get", address], capture_output=True, text=True, check=False)
    return found.stdout or found.stderr


@pytest.mark.privileged
@pytest.mark.requires("root")
def test_when_its_way_out_is_lost_programs_wait_as_at_the_start() -> None:
    def lose() -> list[tuple[int, bool]]:
        namespaces.unshare(namespaces.CLONE_NEWNET)
        found = []

        def look() -> None:
            found.append((begun(), " dev lo " in way_of(PUBLIC)))

        session_side.furnish()
        look()
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        with RouteSocket() as route:
            pair = rtnetlink.add_veth(PairEnd("other", 1001), plan.SESSION_END, here, plan.HARDWARE, plan.MTU)
            route.do([pair, rtnetlink.bring_up(plan.SESSION_END.number)])
            session_side.lead_out(route, [], None, ipv6=socket.has_dualstack_ipv6())
        os.close(here)
        look()
        subprocess.run(["ip", "link", "delete", plan.SESSION_END.name], check=True)
        look()
        with RouteSocket() as route:
            session_side.refuse_all(route)
        look()
        return found

    with ThreadPoolExecutor(1) as thread:  # it is gone afterwards, and its network with it
        found = thread.submit(lose).result()
    waits = (errno.EINPROGRESS, True)
    assert found == [waits, (errno.EINPROGRESS, False), waits, (errno.EHOSTUNREACH, False)]
