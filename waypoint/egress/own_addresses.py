"""The machine's own addresses, which no session is to reach."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from waypoint.egress import plan
from waypoint.linux.net import rtnetlink
from waypoint.linux.net.rtnetlink import RouteSocket


class OwnAddresses:
    """They are kept once they were asked for. `look` and `now` are for one thread, the rest is for the event loop."""

    def __init__(self, on_change: Callable[[], object]) -> None:
        """`on_change` is called in the event loop when an address has come or gone; then `look` is to be called."""
        self._on_change = on_change
        self._changes = rtnetlink.address_changes()
        self._kept: list[str] = []

    def watch(self) -> None:
        """Begin to see changes."""
        asyncio.get_running_loop().add_reader(self._changes, self._read)

    def close(self) -> None:
        """See no more changes."""
        asyncio.get_running_loop().remove_reader(self._changes)
        self._changes.close()

    def now(self) -> list[str]:
        """The addresses, but for those that no session reaches anyway. Raises OSError."""
        return self._kept or self.look()

    def look(self) -> list[str]:
        """As `now`, asked of the kernel anew. Raises OSError."""
        with RouteSocket() as route:
            found = route.addresses()
        text = (socket.inet_ntop(socket.AF_INET if len(one) == 4 else socket.AF_INET6, one) for one in found)
        own = {one for one in text if not one.startswith(("127.", "fe80:")) and one != "::1"}
        self._kept = sorted(own | {plan.by_nat64(one) for one in own if ":" not in one})
        return self._kept

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # none is left, or some were lost (ENOBUFS): all are looked up anyway
            while self._changes.recv(1 << 16):
                pass
        self._on_change()
