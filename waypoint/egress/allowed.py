"""The names and networks that a session may reach (`--allow-net`), and their current addresses."""

import ipaddress
import socket
from collections.abc import Collection, Iterable, Iterator

from waypoint.model.errors import UsageProblem

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def check(entries: Iterable[str]) -> None:
    """Raise UsageProblem for an entry that is neither a network nor a host name."""
    for entry in entries:
        if _network(entry) is None and not _is_name(entry):
            said = "it is neither the name of a host nor a network such as 10.1.0.0/16"
            raise UsageProblem("let a session reach", repr(entry), said, "see 'waypoint shell --help'")


def resolve(entries: Iterable[str], closed: Iterable[str]) -> list[str]:
    """Return the networks of `entries`, with the addresses to which names resolve. Unknown names are skipped. Blocks.

    `closed`: networks that a session may reach only if an entry lists them as a network. A name that resolves to an
    address in them is ignored, since the owner of a name chooses its addresses.
    """
    found = list(_resolved(entries, [ipaddress.ip_network(one) for one in closed]))
    four = ipaddress.collapse_addresses(one for one in found if isinstance(one, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(one for one in found if isinstance(one, ipaddress.IPv6Network))
    return [str(one).removesuffix("/32") for one in four] + [str(one).removesuffix("/128") for one in six]


def _resolved(entries: Iterable[str], closed: Collection[_Network]) -> Iterator[_Network]:
    for entry in entries:
        network = _network(entry)
        if network is not None:
            yield network
            continue
        try:
            answers = socket.getaddrinfo(entry, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # the name is unknown, or a label in it is too long
            continue
        for *_, address in answers:
            one = ipaddress.ip_address(str(address[0]).partition("%")[0])
            if not any(one in network for network in closed):
                yield ipaddress.ip_network(one)


def _network(entry: str) -> _Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


def _is_name(entry: str) -> bool:
    labels = entry.rstrip(".").split(".")
    return len(entry) < 254 and all(
        len(one) < 64 and one.replace("-", "a").replace("_", "a").isalnum() and one.isascii() for one in labels
    )
