"""The session's side of a private network: what is set up in its namespace, by whoever is in it."""

import socket
from collections.abc import Iterable

from waypoint.egress import plan
from waypoint.linux.net import rtnetlink
from waypoint.linux.net.rtnetlink import Prefix, RouteSocket

_LO = 1  # the index of `lo` in every network namespace
_LAST = 1 << 16  # the metric of a route that counts where there is no other: the kernel's usual one of IPv6 is 1024


def furnish() -> None:
    """Set up a new namespace: `lo` is up, with the session's address. While there is no way out, at first and when a
    router was lost, what goes to other machines ends in `lo` without an answer: programs try it again, and connections
    can be brought back. Raises OSError.
    """
    messages = [rtnetlink.bring_up(_LO)]
    for version, (own, everything) in enumerate(zip(plan.INSIDE, plan.EVERYTHING, strict=True)):
        if version == 0 or socket.has_dualstack_ipv6():
            messages += [rtnetlink.add_address(_LO, own), rtnetlink.add_route(everything, _LO, own, _LAST)]
    with RouteSocket() as route:
        route.do(messages)


def index(route: RouteSocket) -> int | None:
    """The index that the session has in the router; None if it has no way there. Raises OSError."""
    other = route.other_end(plan.SESSION_END.number)
    return None if other is None else other - plan.router_end(0).number


def lead_out(route: RouteSocket, host: Iterable[str], opened: Iterable[str] | None, *, ipv6: bool) -> None:
    """Lead what goes to other machines to the router, by the session's end of the pair. `host`: the machine's
    addresses. `opened`: the only networks that may be reached; None: all public ones. What is not to be reached is
    refused here already, with an error that the program sees at once. Raises OSError.
    """
    messages = []
    for version, everything in enumerate(plan.EVERYTHING):
        if opened is None and (version == 0 or ipv6):
            messages.append(_to_router(everything))
        elif version == 0 or socket.has_dualstack_ipv6():
            messages.append(rtnetlink.refuse(everything))
    route.wait_up(plan.SESSION_END.number)
    ways = [_to_router(Prefix.parse(one)) for one in opened or () if ipv6 or not plan.is_ipv6(one)]
    shut = [] if opened is not None else [*plan.CLOSED, *host]
    messages += [rtnetlink.refuse(Prefix.parse(one)) for one in shut if ipv6 or not plan.is_ipv6(one)]
    route.do([*messages, _to_router(Prefix.parse(plan.RESOLVER)), *ways])


def refuse_all(route: RouteSocket) -> None:
    """Have all that goes to other machines refused at once. Raises OSError."""
    route.do(rtnetlink.refuse(one) for one in plan.EVERYTHING)


def _to_router(network: Prefix) -> bytes:
    own = plan.INSIDE[network.family == socket.AF_INET6]
    return rtnetlink.add_route(network, plan.SESSION_END.number, own)
