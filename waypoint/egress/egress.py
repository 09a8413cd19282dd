"""The daemon's part of the outbound network: connects the sessions with private networks to the home's router.

No session waits for this: a session starts or is restored without outbound network, and is connected some milliseconds
later.
"""

import asyncio
import contextlib
import errno
import functools
import logging
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from waypoint.egress import allowed, plan, session_side
from waypoint.egress import router as routers
from waypoint.egress.router import Guest, Place, Router
from waypoint.linux.net import netns, rtnetlink, sockets
from waypoint.linux.net.rtnetlink import RouteSocket
from waypoint.linux.tasks import procfs

RESOLVE_S = 60.0  # the interval at which the names in --allow-net are resolved again
RESTART_S = 1.0  # the minimum interval between two starts of pasta, for a pasta that always dies soon

log = logging.getLogger(__name__)


class _Prepared(NamedTuple):
    """A pair that is made and not in use yet. `number`: its index. `refused`: the machine's networks for which the
    session has the routes of `Router.refuse_closed`; None: it has not.
    """

    number: int
    refused: list[str] | None = None


class Egress:
    """Connects sessions to the router. Call the methods in the event loop.

    `why_not`: the reason, in words, why sessions have no outbound network, or "". `outcomes`: for each session that
    could not be connected, the reason.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.why_not = routers.why_not()
        self._guests: dict[str, Guest] = {}
        self.outcomes: dict[str, str] = {}
        self._router: Router | None = None
        self._pairs: dict[str, _Prepared] = {}  # by session
        self._watched: Router | None = None
        # Only one thread, so that two sessions cannot start two routers.
        self._thread = ThreadPoolExecutor(1, "egress")
        self._changes: socket.socket | None = None
        self._resolving: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._restarted_at = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()

    def connect(self, session: str, guest: Guest) -> asyncio.Task[None]:
        """Begin to connect a session, unless it is already connected. The task raises nothing. If the session cannot be
        connected, its connections to other machines fail at once.
        """
        self._guests[session] = guest
        task = asyncio.ensure_future(self._connect(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def prepare(self, session: str, namespace: int, *, is_restricted: bool) -> None:
        """Begin the slow part of connecting a session whose processes are being restored in the network namespace
        behind the descriptor `namespace`. May be called in any thread. The pair that this makes ends with the
        namespace. `is_restricted`: as for `Router.make_pair`.
        """
        own = os.dup(namespace)
        try:
            self._thread.submit(self._prepare_now, session, own, is_restricted=is_restricted)
        except RuntimeError:  # the daemon stops
            os.close(own)

    def forget(self, session: str) -> None:
        self._guests.pop(session, None)
        self._pairs.pop(session, None)
        self.outcomes.pop(session, None)

    async def close(self) -> None:
        """Wait for the work in progress, and release the router, which keeps running for the next daemon."""
        for timer in (self._resolving, self._again):
            if timer is not None:
                timer.cancel()
        loop = asyncio.get_running_loop()
        if self._changes is not None:
            loop.remove_reader(self._changes)
            self._changes.close()
        await asyncio.gather(*self._tasks)
        self._unwatch()
        self._thread.shutdown()
        if self._router is not None:
            self._router.close()

    async def _connect(self, session: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._connect_now, session)
        if self._router is not self._watched:
            self._watch()
        if self._resolving is None and any(guest.allowed for guest in self._guests.values()):
            self._resolving = loop.call_later(RESOLVE_S, functools.partial(self._reconnect, names_only=True))

    def _prepare_now(self, session: str, namespace: int, *, is_restricted: bool) -> None:
        router = self._router
        try:
            # The first session of a home makes the router when it is connected, not while processes are restored.
            if router is not None:
                index = router.make_pair(namespace, is_restricted=is_restricted)
                self._pairs[session] = _Prepared(index)
                if not is_restricted:
                    host = _networks()
                    router.refuse_closed(namespace, host)
                    self._pairs[session] = _Prepared(index, host)
        except OSError as error:  # `_connect_now` tries again, and reports why it fails
            log.info("a session could not be prepared for the network: %s", error)
        finally:
            os.close(namespace)

    def _connect_now(self, session: str) -> None:
        guest = self._guests.get(session)
        if guest is None:
            return
        try:
            self._open(session, guest)
        except OSError as error:
            if session not in self._guests or not procfs.is_same(guest.pid, guest.start):
                return  # the session has ended
            self.why_not = self.outcomes[session] = error.strerror or str(error)
            log.warning("a session has no outbound network: %s", self.why_not)
            with contextlib.suppress(OSError):  # the session is ending
                netns.work_in(guest.pid, session_side.refuse_all)
        else:
            self.why_not = ""
            self.outcomes.pop(session, None)

    def _open(self, session: str, guest: Guest) -> None:
        host = _networks()
        opened = allowed.resolve(guest.allowed, [*plan.CLOSED, *host]) if guest.allowed else None
        router = self._router or routers.find(self._place.runtime)
        self._router = router = router or routers.make(self._place, host)
        # Looking up names and making a router may take seconds; by now the pid may be another process's.
        if not procfs.is_same(guest.pid, guest.start) or sockets.shares_network(guest.pid):
            raise ProcessLookupError(errno.ESRCH, "the session has ended")
        pair, index = self._pairs.pop(session, None), netns.work_in(guest.pid, _index)
        if index is None:
            router.attach(guest, host, opened)
        elif pair is not None and pair.number == index:  # else it ended with a first try to restore the session
            router.complete(guest, index, host, opened, is_refused=pair.refused == host)
        elif opened is not None:
            router.tell_opened(guest, index, host, opened)
        else:
            router.route_again(guest, host)

    def _watch(self) -> None:
        self._unwatch()
        loop, router = asyncio.get_running_loop(), self._router
        if router is not None:
            loop.add_reader(router.pidfd, self._restart)
            self._watched = router
        if self._changes is None:
            self._changes = rtnetlink.address_changes()
            loop.add_reader(self._changes, self._tell_host)

    def _unwatch(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched.pidfd)
            self._watched = None

    def _restart(self) -> None:
        """pasta has died: make another router, and connect all sessions to it, unless the home was removed."""
        router, loop = self._watched, asyncio.get_running_loop()
        self._unwatch()
        self._thread.submit(self._drop, router)
        if not self._place.home.is_dir():
            log.warning("pasta has ended, and %s was removed: no router is made again", self._place.home)
            return
        log.warning("pasta has ended: the sessions on private networks are connected again")
        self._again = loop.call_at(
            max(loop.time(), self._restarted_at + RESTART_S), functools.partial(self._reconnect, names_only=False)
        )

    def _drop(self, router: Router | None) -> None:
        """Close the router. This is called in the thread that uses the router."""
        if router is not None:
            router.close()
        if self._router is router:
            self._router = None
            self._pairs.clear()

    def _reconnect(self, *, names_only: bool) -> None:
        """Connect all sessions again, or with `names_only` the sessions with --allow-net, since the addresses of the
        names may have changed.
        """
        if names_only:
            self._resolving = None
        else:
            self._restarted_at = asyncio.get_running_loop().time()
        for session, guest in list(self._guests.items()):
            if guest.allowed or not names_only:
                self.connect(session, guest)

    def _tell_host(self) -> None:
        assert self._changes is not None
        with contextlib.suppress(OSError):  # all messages are read, or some were lost; the addresses are read below
            while self._changes.recv(1 << 16):
                pass
        if self._router is not None:
            self._thread.submit(_tell_host, self._router)


def _tell_host(router: Router) -> None:
    try:
        router.tell(plan.tell_host(_networks()))
    except OSError as error:
        log.error("cannot tell the router the machine's new addresses: %s", error)


def _networks() -> list[str]:
    """Return the machine's addresses and the networks that it receives as its own (`ip route add local`), except
    loopback and link-local ones, which no session can reach; also as a NAT64 reaches them.
    """
    with RouteSocket() as route:
        found = [(socket.inet_ntop(one.family, one.address), one) for one in route.local()]
    own = {
        f"{text}/{one.bits}" if one.bits < 8 * len(one.address) else text
        for text, one in found
        if not text.startswith(("127.", "fe80:")) and text != "::1"
    }
    return sorted({*own, *(plan.by_nat64(one) for one in own if not plan.is_ipv6(one))})


def _index() -> int | None:
    """Return the router index of the session in whose network namespace the thread is, or None if the session is not
    connected.
    """
    with RouteSocket() as route:
        other = route.other_end(plan.SESSION_END.number)
    return None if other is None else other - plan.router_end(0).number
