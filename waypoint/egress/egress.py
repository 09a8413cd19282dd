"""The way out of all sessions of a home that are on a private network, as the daemon sees to it.

Everything here is done beside what a session waits for: it starts, and comes back, without a way out, and gets one some
milliseconds later.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from waypoint.egress import allowed, plan, session_side
from waypoint.egress import router as routers
from waypoint.egress.own_addresses import OwnAddresses
from waypoint.egress.router import Guest, Router, Site
from waypoint.linux.net import netns
from waypoint.linux.net.rtnetlink import RouteSocket
from waypoint.linux.tasks import procfs

RESOLVE_S = 60.0  # how often the names in --allow-net are looked up again
ANEW_S = 1.0  # at least so long after the last time pasta is started anew, in case that it dies each time

log = logging.getLogger(__name__)


class Egress:
    """To be used in the event loop. `why_not`: in words, why there is no router; "" as long as nothing is known against
    one. `outcomes`: why a session has no way out, "" if it has one, for each session whose way out was tried.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self.why_not = routers.why_not()
        self._guests: dict[str, Guest] = {}
        self.outcomes: dict[str, str] = {}
        self._router: Router | None = None
        self._watched: Router | None = None
        # One thread: a router is made once, for whoever needs it first.
        self._thread = ThreadPoolExecutor(1, "egress")
        self._thread.submit(_sweep, site)
        self._host = OwnAddresses(lambda: self._thread.submit(self._tell_host))
        self._names = allowed.Lookups()
        self._late: set[asyncio.Task[None]] = set()  # those that wait for names
        self._resolving: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._anew_at = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()

    def lead_out(self, session: str, guest: Guest) -> asyncio.Task[None]:
        """Begin to give a session its way out, if it has none yet. The task is done when it has one, or cannot have
        one; then all that goes to other machines is refused at once. It raises nothing.
        """
        self._guests[session] = guest
        self._host.watch()
        task = asyncio.ensure_future(self._lead_out(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def forget(self, session: str) -> None:
        """A session has ended."""
        self._guests.pop(session, None)
        self.outcomes.pop(session, None)

    async def close(self, *, is_used: bool) -> None:
        """End the work under way. The router stays, for the next daemon, as long as a session has its way out by it, or
        if it `is_used` by one that this daemon could not adopt.
        """
        for timer in (self._resolving, self._again):
            if timer is not None:
                timer.cancel()
        for task in self._late:
            task.cancel()
        self._names.close()
        self._host.close()
        await asyncio.gather(*self._tasks)
        self._unwatch()
        self._thread.shutdown()
        if self._router is not None:
            self._router.close()
        if not self._guests and not is_used:
            _end(self._site)

    async def _lead_out(self, session: str, late: Collection[asyncio.Future[list[str] | None]] = ()) -> None:
        """`late`: lookups of names that took too long for the session to wait for; it is led out already."""
        loop, guest = asyncio.get_running_loop(), self._guests.get(session)
        if late:
            await asyncio.wait(late)
        elif guest is not None and (late := await self._names.look_up(guest.allowed, guest.user)):
            task = asyncio.ensure_future(self._lead_out(session, late))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
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
            self.outcomes[session] = said = error.strerror or str(error)
            log.warning("a session has no way out: %s", said)
            # It ends, or has left its network.
            with contextlib.suppress(OSError), netns.opened_of_session(guest.pid, guest.start) as namespace:
                netns.work_within(namespace, _refuse_all)
        else:
            self.outcomes[session] = ""

    def _open(self, guest: Guest) -> None:
        host = self._host.now()
        names = self._names.known
        opened = allowed.resolve(guest.allowed, [*plan.CLOSED, *host], names) if guest.allowed else None
        try:
            router = self._router or routers.find(self._site) or routers.make(self._site, host)
        except OSError as error:  # for all sessions; what fails after this is the one session's
            self.why_not = error.strerror or str(error)
            raise
        self.why_not, self._router = "", router
        router.attach(guest, host, opened)

    def _watch(self) -> None:
        """See when the router dies."""
        self._unwatch()
        loop, router = asyncio.get_running_loop(), self._router
        if router is not None:
            loop.add_reader(router.pidfd, self._make_anew)
            self._watched = router

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
        """In the thread: learn the machine's addresses anew, and tell the router."""
        try:
            host = self._host.look()
            if self._router is not None:
                self._router.tell(plan.tell_host(host))
        except OSError as error:
            log.error("the router does not know of the machine's new addresses: %s", error)


def _sweep(site: Site) -> None:
    try:
        routers.sweep(site)
    except OSError as error:
        log.error("a router of a daemon that was killed stays: %s", error)


def _end(site: Site) -> None:
    try:
        routers.end(site)
    except OSError as error:
        log.error("the router stays: %s", error)


def _refuse_all() -> None:
    with RouteSocket() as route:
        session_side.refuse_all(route)
