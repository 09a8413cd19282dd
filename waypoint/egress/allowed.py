"""What a session may reach (`--allow-net`): names and networks, and what they stand for by now."""

import asyncio
import functools
import ipaddress
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from waypoint.model.errors import UsageProblem

LOOK_UP_S = 1.5  # less than a command waits for its session's way out
_LOOKUPS = 8  # at a time, for the sessions of each user
_MOST = 256  # entries of a session

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def check(entries: Iterable[str]) -> None:
    """Raise UsageProblem for an entry that is neither a network nor a name, or if there are too many."""
    listed = list(entries)
    if len(listed) > _MOST:
        said = f"a session takes {_MOST} names and networks at most"
        raise UsageProblem("let a session reach", f"{len(listed)} of them", said, "see --help")
    for entry in listed:
        if not is_network(entry) and not _is_name(entry):
            said = "it is neither a name nor a network"
            raise UsageProblem("let a session reach", repr(entry), said, "see --help")


def is_network(entry: str) -> bool:
    """Whether it is a network itself, which is opened also if it is not public; else it is a name."""
    return _network(entry) is not None


class Lookups:
    """What names stand for by now. To be used in the event loop; `known` is read by any thread: of each name the
    addresses of the last answer, so a resolver that is silent for a while takes nothing away.
    """

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {}
        self._under_way: dict[tuple[int, str], asyncio.Future[list[str] | None]] = {}
        # No thread that does anything else: a lookup cannot be broken off, and may take half a minute. And none that
        # works for two users: whoever has a name chooses how long its lookup takes.
        self._threads: dict[int, ThreadPoolExecutor] = {}

    async def look_up(self, entries: Iterable[str], user: int) -> set[asyncio.Future[list[str] | None]]:
        """Look up the names among `entries`, for at most LOOK_UP_S, for a session of `user`. Returns the lookups that
        are not over.
        """
        asked = {self._begin(entry, user) for entry in entries if not is_network(entry)}
        return (await asyncio.wait(asked, timeout=LOOK_UP_S))[1] if asked else set()

    def close(self) -> None:
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, name: str, user: int) -> "asyncio.Future[list[str] | None]":
        if (user, name) not in self._under_way:
            threads = self._threads.setdefault(user, ThreadPoolExecutor(_LOOKUPS, "names"))
            found = asyncio.get_running_loop().run_in_executor(threads, _look_up, name)
            found.add_done_callback(functools.partial(self._end, name, user))
            self._under_way[user, name] = found
        return self._under_way[user, name]

    def _end(self, name: str, user: int, found: "asyncio.Future[list[str] | None]") -> None:
        del self._under_way[user, name]
        if not found.cancelled() and (addresses := found.result()) is not None:
            self.known[name] = addresses


def _look_up(name: str) -> list[str] | None:
    """The addresses of a name, none if it is not known; None if nobody says. Blocks."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return [] if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA) else None
    except UnicodeError:  # a label of a name is too long
        return []
    except OSError:
        return None
    return [str(address[0]).partition("%")[0] for *_, address in answers]


def resolve(entries: Iterable[str], closed: Iterable[str], known: Mapping[str, Iterable[str]]) -> list[str]:
    """The networks that `entries` stand for. `closed`: networks that an entry opens only if it is a network itself:
    what a name stands for is chosen by whoever has the name. `known`: as in Lookups; any other name stands for
    nothing.
    """
    found = list(_resolved(entries, [ipaddress.ip_network(one) for one in closed], known))
    four = ipaddress.collapse_addresses(one for one in found if isinstance(one, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(one for one in found if isinstance(one, ipaddress.IPv6Network))
    return [str(one).removesuffix("/32") for one in four] + [str(one).removesuffix("/128") for one in six]


def _resolved(
    entries: Iterable[str], closed: Collection[_Network], known: Mapping[str, Iterable[str]]
) -> Iterator[_Network]:
    for entry in entries:
        network = _network(entry)
        if network is not None:
            yield network
            continue
        for address in known.get(entry, ()):
            one = ipaddress.ip_address(address)
            if not any(one in network for network in closed):
                yield ipaddress.ip_network(one)


def _network(entry: str) -> _Network | None:
    if "%" in entry:  # a scope, in which Python takes anything, also what nft would take for commands
        return None
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


def _is_name(entry: str) -> bool:
    labels = entry.rstrip(".").split(".")
    return len(entry) < 254 and all(
        len(one) < 64 and one.replace("-", "a").replace("_", "a").isalnum() and one.isascii() for one in labels
    )
