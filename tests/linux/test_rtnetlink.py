"""Messages of rtnetlink(7), in a network namespace of the test's own."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from waypoint.linux.net import rtnetlink
from waypoint.linux.net.rtnetlink import Prefix, RouteSocket
from waypoint.linux.tasks import namespaces

pytestmark = [pytest.mark.privileged]


def test_more_messages_can_be_sent_than_the_socket_buffers_answers() -> None:
    def work() -> None:
        namespaces.unshare(namespaces.CLONE_NEWNET)
        with RouteSocket() as route:
            route._socket.settimeout(60)
            route.do(rtnetlink.refuse(Prefix.parse(f"11.{i >> 8}.{i & 255}.0/24")) for i in range(2000))
            with pytest.raises(
                OSError, match="Invalid argument"
            ):  # the error is read, so that no answer stays in the socket
                route.do([rtnetlink.refuse(Prefix(b"\x0b\x00\x00\x01", 8)), rtnetlink.bring_up(1)])
            assert len(route.local()) > 0

    with ThreadPoolExecutor(1) as thread:  # the namespace ends with the thread
        thread.submit(work).result()
