"""Ports of the machine that lead into sessions (`--publish`), as the daemon sees to them.

What listens is opened before anything of a session is started, so a port that is taken is found then. A program of its
own for each session (relay.py) takes the connections: it outlives the daemon, and no bytes go through the daemon.
"""

import asyncio
import contextlib
import errno
import functools
import ipaddress
import logging
import os
import socket
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from waypoint.egress import own_program
from waypoint.egress.relay import FIRST_LISTENER
from waypoint.linux.tasks import cgroups, pidfd, procfs
from waypoint.model.errors import StateConflict, UsageProblem

NOTHING = "none"
_UDP = "/udp"
_USUAL = "127.0.0.1"
_WAITING = 128  # connections that nobody has taken yet
_MOST_PORTS = 64  # of one session
ANEW_S = 1.0  # at least so long after the last time a program is started anew, in case that it dies each time

log = logging.getLogger(__name__)


class Port(NamedTuple):
    """`address`, `number`: of the machine. `inner`: the session's port. `protocol`: "", TCP; or "/udp"."""

    address: str
    number: int
    inner: int
    protocol: str = ""

    @classmethod
    def parse(cls, text: str) -> "Port":
        """That of `[IP:]HOST:INNER[/udp]`, with an IPv6 address in brackets. Raises UsageProblem."""
        ports, slash, protocol = text.partition("/")
        before, _, inner = ports.rpartition(":")
        address, _, number = before.rpartition(":")
        try:
            found = cls(str(ipaddress.ip_address(address.strip("[]") or _USUAL)), int(number), int(inner))
        except ValueError:
            found = cls("", 0, 0)
        is_known = not slash or protocol in ("tcp", "udp")
        if not (is_known and 0 < found.number < 1 << 16 and 0 < found.inner < 1 << 16):
            said = "it is no [IP:]HOST:INNER[/udp], with ports from 1 to 65535"
            raise UsageProblem("publish", repr(text), said, "see --help")
        return found._replace(protocol=_UDP) if protocol == "udp" else found

    def __str__(self) -> str:
        return f"{self.on}:{self.within}"

    @property
    def on(self) -> str:
        """Where the machine listens."""
        return f"[{self.address}]:{self.number}" if ":" in self.address else f"{self.address}:{self.number}"

    @property
    def within(self) -> str:
        """The session's port, with its protocol."""
        return f"{self.inner}{self.protocol}"

    def listen(self) -> socket.socket:
        """What listens on the machine. Raises OSError."""
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        if not self.protocol:
            return socket.create_server((self.address, self.number), family=family, backlog=_WAITING)
        with contextlib.ExitStack() as undo:
            found = undo.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            if family == socket.AF_INET6:
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            found.bind((self.address, self.number))
            undo.pop_all()
        return found


def wanted(texts: Iterable[str]) -> list[str] | None:
    """The ports that a request asks for, as a setting has them; None: it asks for nothing. Raises UsageProblem."""
    asked = list(dict.fromkeys(texts))
    if NOTHING in asked and len(asked) > 1:
        raise UsageProblem("publish", " ".join(asked), f"{NOTHING} stands alone", "leave it out")
    if len(asked) > _MOST_PORTS:
        raise UsageProblem("publish", f"{len(asked)} ports", f"a session has {_MOST_PORTS} at most", "leave it out")
    return [str(Port.parse(one)) for one in asked if one != NOTHING] if asked else None


class Publisher:
    """The published ports of all sessions of a home, by the sessions' ids. To be used in the event loop. `outcomes`: in
    words, why nothing leads into a session that has such ports.
    """

    def __init__(self, groups: str, owner: int) -> None:
        """`groups`: the cgroup2 group below which the program of each session has its own. `owner`: the user that these
        programs are to be.
        """
        self._groups, self._owner = groups, owner
        self.outcomes: dict[str, str] = {}
        self._listeners: dict[str, list[socket.socket]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, "publish")

    def listen(self, session: str, ports: Sequence[str]) -> None:
        """Listen on all `ports` or on none, for a session that is going to be started. Raises StateConflict."""
        opened: list[socket.socket] = []
        for port in map(Port.parse, ports):
            try:
                opened.append(port.listen())
            except OSError as error:
                for one in opened:
                    one.close()
                said = os.strerror(error.errno) if error.errno else str(error)
                next_step = f"publish another port (--publish HOST:{port.within}), or none: --publish {NOTHING}"
                raise StateConflict("publish", f"port {port.on}", said, next_step) from error
        if opened:
            self._listeners[session] = opened

    def lead_in(self, session: str, ports: Sequence[str], init: tuple[int, int], instead_of: str) -> None:
        """Lead `ports` into a session that runs: those that were opened for it; else those of the session that it
        replaces (`instead_of`: the id; "": none); else those that its program has, with which a former daemon has
        started it; else what can be opened now. `init`: pid and start time of its pid 1. Raises StateConflict.
        """
        program = None
        if session not in self._listeners:
            former = self._listeners.pop(instead_of, None)
            if former is not None:
                self._listeners[session] = former
            else:
                program = self._find(session, len(ports))
                if program is None:
                    self.listen(session, ports)
        task = asyncio.ensure_future(self._keep(session, init, [Port.parse(one).inner for one in ports], program))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, session: str, init: tuple[int, int], inner: list[int], program: int | None) -> None:
        """See to it that a program leads into a session as long as that runs. `program`: a pidfd of the one that does;
        None: none does.
        """
        loop, begun = asyncio.get_running_loop(), float("-inf")
        while True:
            if program is not None:
                await _wait_ended(program, begun + ANEW_S)
                program = None
            if session not in self._listeners or not procfs.is_same(*init):
                return
            begun, numbers = loop.time(), [os.dup(one.fileno()) for one in self._listeners[session]]
            try:
                program = await loop.run_in_executor(self._thread, self._run, session, init, numbers, inner)
            except OSError as error:
                if session in self._listeners and procfs.is_same(*init):
                    log.error("nothing leads to the published ports of a session: %s", error)
                    self._close(session)
                    self.outcomes[session] = error.strerror or str(error)

    def forget(self, session: str) -> None:
        """The session has not come up, or has ended, with which its program ends."""
        self._close(session)
        self.outcomes.pop(session, None)

    def _close(self, session: str) -> None:
        for one in self._listeners.pop(session, []):
            one.close()

    def sweep(self, running: Collection[str]) -> None:
        """End the programs of all sessions but those that run: their daemon was killed."""

        def work() -> None:
            try:
                cgroups.end_below(self._groups, running)
            except OSError as error:
                log.error("a program of a session that has ended stays: %s", error)

        self._thread.submit(work)

    async def end(self, session: str) -> None:
        """End the session's program, with all connections that came by it, also if it has just begun. Raises OSError.
        The ports are free then, if nobody took them over.
        """
        self.forget(session)
        end = functools.partial(cgroups.end, f"{self._groups}/{session}")
        await asyncio.get_running_loop().run_in_executor(self._thread, end)

    def close(self) -> None:
        """The programs go on, for the next daemon."""
        for task in self._tasks:
            task.cancel()
        self._thread.shutdown()
        for session in list(self._listeners):
            self.forget(session)

    def _find(self, session: str, count: int) -> int | None:
        """A pidfd of the session's program, whose listeners are taken; None if there is none."""
        found: list[socket.socket] = []
        with contextlib.ExitStack() as undo, contextlib.suppress(OSError):  # it has just ended
            program = self._open_program(session)
            undo.callback(os.close, program)
            for number in range(FIRST_LISTENER, FIRST_LISTENER + count):
                found.append(undo.enter_context(socket.socket(fileno=pidfd.getfd(program, number))))
            undo.pop_all()
            self._listeners[session] = found
            return program
        return None

    def _open_program(self, session: str) -> int:
        """A pidfd of the session's program. Raises ProcessLookupError if there is none."""
        for pid in cgroups.members(f"{self._groups}/{session}")[:1]:
            return pidfd.open(pid)
        raise ProcessLookupError(errno.ESRCH, "its program has ended")

    def _run(self, session: str, init: tuple[int, int], listeners: list[int], inner: list[int]) -> int:
        """In the thread: start the session's program. Returns a pidfd of it. Closes `listeners`. Raises OSError."""
        group = f"{self._groups}/{session}"
        try:
            cgroups.end(group)  # the note of a former one would be taken for this one's, where there are no cgroups
            cgroups.create(group)
            pairs = [f"{number}:{port}" for number, port in zip(listeners, inner, strict=True)]
            own_program.run("relay", [group, *map(str, init), str(self._owner), *pairs], listeners, "its program")
            return self._open_program(session)
        finally:
            for number in listeners:
                os.close(number)


async def _wait_ended(program: int, not_before: float) -> None:
    """Wait until the process behind the pidfd `program` has ended, and the loop's time is `not_before`. Closes that."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def see_end() -> None:
        loop.remove_reader(program)
        loop.call_at(not_before, over.set)

    loop.add_reader(program, see_end)
    try:
        await over.wait()
    finally:
        loop.remove_reader(program)
        os.close(program)
