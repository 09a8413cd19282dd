"""The way out of all sessions of a home that are on a private network, as the daemon sees to it.

Everything here is done beside what a session waits for: it starts, and comes back, without a way out, and gets one some
milliseconds later.
"""

import asyncio
import contextlib
import errno
import functools
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from waypoint.egress import allowed, plan, session_side
from waypoint.egress import router as routers
from waypoint.egress.router import Guest, Router
from waypoint.linux.net import netns, rtnetlink, sockets
from waypoint.linux.net.rtnetlink import RouteSocket
from waypoint.linux.tasks import procfs

RESOLVE_S = 60.0  # how often the names in --allow-net are looked up again
ANEW_S = 1.0  # at least so long after the last time pasta is started anew, in case that it dies each time

log = logging.getLogger(__name__)


class Egress:
    """To be used in the event loop. `why_not`: in words, why sessions have no way out; "" as long as nothing is known
    against it. `outcomes`: the same for each session whose way out was tried.
    """

    def __init__(self, runtime: Path, owner: int, mounts_fd: int | None) -> None:
        """`runtime`: the home's runtime folder. `owner`, `mounts_fd`: as for `router.make`."""
        self._runtime, self._owner, self._mounts_fd = runtime, owner, mounts_fd
        self.why_not = routers.why_not()
        self._guests: dict[str, Guest] = {}
        self.outcomes: dict[str, str] = {}
        self._router: Router | None = None
        self._watched: Router | None = None
        # One thread: a router is made once, for whoever needs it first.
        self._thread = ThreadPoolExecutor(1, "egress")
        self._changes: socket.socket | None = None
        self._resolving: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._anew_at = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()

    def lead_out(self, session: str, guest: Guest) -> asyncio.Task[None]:
        """Begin to give a session its way out, if it has none yet. The task is done when it has one, or cannot have
        one; then all that goes to other machines is refused at once. It raises nothing.
        """
        self._guests[session] = guest
        task = asyncio.ensure_future(self._lead_out(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def forget(self, session: str) -> None:
        """A session has ended."""
        self._guests.pop(session, None)
        self.outcomes.pop(session, None)

    async def close(self) -> None:
        """End the work under way. The router stays, for the next daemon."""
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

    async def _lead_out(self, session: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._lead_out_now, session)
        if self._router is not self._watched:
            self._watch()
        if self._resolving is None and any(guest.allowed for guest in self._guests.values()):
            self._resolving = loop.call_later(RESOLVE_S, functools.partial(self._begin_all, names_only=True))

    def _lead_out_now(self, session: str) -> None:
        guest = self._guests.get(session)
        if guest is None:
            return
        try:
            self._open(guest)
        except OSError as error:
            if session not in self._guests or not procfs.is_same(guest.pid, guest.start):
                return  # it has ended meanwhile
            self.why_not = self.outcomes[session] = error.strerror or str(error)
            log.warning("a session has no way out: %s", self.why_not)
            with contextlib.suppress(OSError):  # it ends
                netns.work_in(guest.pid, _refuse_all)
        else:
            self.why_not = ""
            self.outcomes.pop(session, None)

    def _open(self, guest: Guest) -> None:
        host = _addresses()
        opened = allowed.resolve(guest.allowed, [*plan.CLOSED, *host]) if guest.allowed else None
        router = self._router or routers.find(self._runtime)
        self._router = router = router or routers.make(self._runtime, self._owner, self._mounts_fd, host)
        # Looking up names and making a router may take seconds, after which the pid may be a stranger's.
        if not procfs.is_same(guest.pid, guest.start) or sockets.shares_network(guest.pid):
            raise ProcessLookupError(errno.ESRCH, "it has ended")
        index = netns.work_in(guest.pid, _index)
        if index is None:
            router.attach(guest, host, opened)
        elif opened is not None:
            router.tell_opened(guest, index, host, opened)

    def _watch(self) -> None:
        """See when the router dies, and when the machine's addresses change."""
        self._unwatch()
        loop, router = asyncio.get_running_loop(), self._router
        if router is not None:
            loop.add_reader(router.pidfd, self._make_anew)
            self._watched = router
        if self._changes is None:
            self._changes = rtnetlink.address_changes()
            loop.add_reader(self._changes, self._tell_host)

    def _unwatch(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched.pidfd)
            self._watched = None

    def _make_anew(self) -> None:
        """pasta has died, and with it every way out: have the sessions led out anew."""
        log.warning("pasta has ended: the sessions on private networks are connected anew")
        router, loop = self._watched, asyncio.get_running_loop()
        self._unwatch()
        self._thread.submit(self._drop, router)
        self._again = loop.call_at(
            max(loop.time(), self._anew_at + ANEW_S), functools.partial(self._begin_all, names_only=False)
        )

    def _drop(self, router: Router | None) -> None:
        """In the thread, which is the one that uses it."""
        if router is not None:
            router.close()
        if self._router is router:
            self._router = None

    def _begin_all(self, *, names_only: bool) -> None:
        """Lead all sessions out anew, or those that may reach some names only."""
        if names_only:
            self._resolving = None
        else:
            self._anew_at = asyncio.get_running_loop().time()
        for session, guest in list(self._guests.items()):
            if guest.allowed or not names_only:
                self.lead_out(session, guest)

    def _tell_host(self) -> None:
        assert self._changes is not None
        with contextlib.suppress(OSError):  # none is left, or some were lost (ENOBUFS): all are looked up anyway
            while self._changes.recv(1 << 16):
                pass
        if self._router is not None:
            self._thread.submit(_tell_host, self._router)


def _tell_host(router: Router) -> None:
    try:
        router.tell(plan.tell_host(_addresses()))
    except OSError as error:
        log.error("the router does not know of the machine's new addresses: %s", error)


def _addresses() -> list[str]:
    """The machine's addresses, but for those that no session reaches anyway."""
    with RouteSocket() as route:
        found = route.addresses()
    text = (socket.inet_ntop(socket.AF_INET if len(one) == 4 else socket.AF_INET6, one) for one in found)
    return sorted({one for one in text if not one.startswith(("127.", "fe80:")) and one != "::1"})


def _index() -> int | None:
    """The index that the session of the calling thread's network namespace has in the router; None if it has none."""
    with RouteSocket() as route:
        other = route.other_end(plan.SESSION_END.number)
    return None if other is None else other - plan.router_end(0).number


def _refuse_all() -> None:
    with RouteSocket() as route:
        session_side.refuse_all(route)
