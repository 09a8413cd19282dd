"""Sets the addresses and routes in a session's network namespace. All functions act on the calling thread's
namespace.
"""

import socket
from collections.abc import Iterable

from waypoint.egress import plan
from waypoint.linux.net import rtnetlink
from waypoint.linux.net.rtnetlink import Prefix, RouteSocket

_LO = 1  # the index of `lo` in every network namespace


def furnish() -> None:
    """Set up a new namespace: enable the interface `lo`, with the session's address.

    Until the session is connected to the router, packets to other machines go to `lo` and get no answer. So programs
    send them again, and restored connections stay open.
    """
    messages = [rtnetlink.bring_up(_LO)]
    for version, (own, everything) in enumerate(zip(plan.INSIDE, plan.EVERYTHING, strict=True)):
        if version == 0 or socket.has_dualstack_ipv6():
            messages += [rtnetlink.add_address(_LO, own), rtnetlink.add_route(everything, _LO, own)]
    with RouteSocket() as route:
        route.do(messages)


def bring_up() -> None:
    with RouteSocket() as route:
        route.do([rtnetlink.bring_up(plan.SESSION_END.number)])


def refuse_closed(host: Iterable[str], *, ipv6: bool) -> None:
    """Refuse packets to networks that are not public, as `route_out` does for a session that may reach all others.
    `host`: the machine's addresses.
    """
    with RouteSocket() as route:
        route.do(_refused(host, ipv6=ipv6))


def route_out(
    route: RouteSocket, host: Iterable[str], opened: Iterable[str] | None, *, ipv6: bool, is_refused: bool = False
) -> None:
    """Route packets to allowed networks to the router. Refuse all other packets here, so that programs get an error at
    once.

    `host`: the machine's addresses, which are refused. `opened`: the only networks that are allowed, or None for all
    public networks. `is_refused`: `refuse_closed` was called for this `host`.
    """
    messages = []
    for version, everything in enumerate(plan.EVERYTHING):
        if opened is None and (version == 0 or ipv6):
            messages.append(_to_router(everything))
        elif version == 0 or socket.has_dualstack_ipv6():
            messages.append(rtnetlink.refuse(everything))
    route.wait_up(plan.SESSION_END.number)
    allowed = [_to_router(Prefix.parse(one)) for one in opened or () if ipv6 or not plan.is_ipv6(one)]
    if opened is None and not is_refused:
        messages += _refused(host, ipv6=ipv6)
    route.do([*messages, _to_router(Prefix.parse(plan.RESOLVER)), *allowed])


def _refused(host: Iterable[str], *, ipv6: bool) -> list[bytes]:
    return [rtnetlink.refuse(Prefix.parse(one)) for one in (*plan.CLOSED, *host) if ipv6 or not plan.is_ipv6(one)]


def refuse_all() -> None:
    """Refuse all packets to other machines at once."""
    with RouteSocket() as route:
        route.do(rtnetlink.refuse(one) for one in plan.EVERYTHING)


def _to_router(network: Prefix) -> bytes:
    own = plan.INSIDE[network.family == socket.AF_INET6]
    return rtnetlink.add_route(network, plan.SESSION_END.number, own)
