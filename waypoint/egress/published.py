"""The ports of sessions that are published on the machine (`shell --publish`, `port`).

The daemon opens the listening sockets and starts a program for each session that forwards their connections
(forwarder.py). Both keep the sockets, so that neither needs the other to live: the next daemon takes the sockets of a
running program, and a program that has died is started again. A session that replaces another one gets its sockets.
"""

import asyncio
import contextlib
import errno
import functools
import ipaddress
import itertools
import json
import logging
import os
import signal
import socket
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from waypoint.egress.programs import run_module
from waypoint.linux.net import netns, network
from waypoint.linux.storage import files
from waypoint.linux.tasks import pidfd, procfs
from waypoint.model.errors import NotAllowed, StateConflict, UsageProblem
from waypoint.model.records import Published

NOTE = "ports.json"  # in the runtime folder of a session: its running programs, and their sockets
MOST = 64
"""The maximum number of ports of a session."""
RESTART_S = 1.0
_LOOPBACK = ("127.0.0.1", "::1")
_BACKLOG = 128
_MOST_PORT = 65_535
_TRIES = 50  # to find a number that is free on both loopback addresses

log = logging.getLogger(__name__)


class Target(NamedTuple):
    """A running session whose ports are published. `pid`, `start`: of its pid 1, on the host. `folder`: its runtime
    folder.
    """

    session: str
    branch: str
    pid: int
    start: int
    folder: Path


@dataclass(eq=False, slots=True)
class _Port:
    """`sessions`: those that have it: one, or two while one replaces the other."""

    published: Published
    sockets: list[socket.socket]
    sessions: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class _Program:
    """A running forwarder. `fds`: the numbers of its sockets, in the order of those of `ports`."""

    pid: int
    start: int
    pidfd: int
    ports: list[_Port]
    fds: list[int]


@dataclass(eq=False, slots=True)
class _Guest:
    ports: list[_Port] = field(default_factory=list)
    programs: list[_Program] = field(default_factory=list)
    target: Target | None = None
    said: str = ""  # why its ports are not forwarded
    not_open: str = ""  # why a port of it could not be opened again


class Publisher:
    """The published ports of a home's sessions. Call the methods in the event loop.

    `owner`: the uid of the forwarding programs. `mounts_fd`: the mount namespace for them; None: the caller's.
    """

    def __init__(self, owner: int, mounts_fd: int | None) -> None:
        self._owner = owner
        self._mounts_fd = -1 if mounts_fd is None else mounts_fd
        self._guests: dict[str, _Guest] = {}
        self._thread = ThreadPoolExecutor(1, "publish")
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def of(self, session: str) -> list[Published]:
        return [port.published for port in self._ports(session)]

    def why_not(self, session: str) -> str:
        """Why the ports of a session are not forwarded; "" if they are."""
        guest = self._guests.get(session)
        return guest.said or guest.not_open if guest is not None else ""

    def take(self, session: str, wanted: Iterable[Published], *, exactly: bool, privileged: bool) -> list[Published]:
        """Open the ports of a session that is being started. Return them with their numbers on the machine.
        `exactly`: whether a number that is in use is an error; otherwise the port gets a free one. `privileged`:
        whether numbers that only root may use are allowed. Raises StateConflict, NotAllowed; then none is open.
        """
        guest = self._guests.setdefault(session, _Guest())
        try:
            for one in wanted:
                _check_count(guest, one)
                guest.ports.append(self._open(one, session, exactly=exactly, privileged=privileged))
        except BaseException:
            self.release(session)
            raise
        return self.of(session)

    def share(self, session: str, successor: str) -> list[Published]:
        """Let the session `successor`, which is to replace `session`, have its ports."""
        for port in self._ports(session):
            port.sessions.add(successor)
            self._guests.setdefault(successor, _Guest()).ports.append(port)
        return self.of(successor)

    def release(self, session: str) -> None:
        """Close the ports of a session that has ended, or was not started, unless another one has them."""
        guest = self._guests.pop(session, None)
        if guest is None:
            return
        for program in guest.programs:
            self._end(program)
        for port in guest.ports:
            _release(port, session)

    def begin(self, target: Target, wanted: Sequence[Published]) -> None:
        """Forward the connections to the ports `wanted` of a running session. They were opened by `take` or `share`, or
        by an earlier daemon.
        """
        if not wanted:
            return
        guest = self._guests.setdefault(target.session, _Guest())
        guest.target = target
        for other in list(self._guests.values()):
            if other is not guest and any(target.session in port.sessions for port in other.ports):
                for program in other.programs:
                    self._end(program)
                other.programs = []
        if not guest.ports:
            self._adopt(guest, target, wanted)
        self._forward(target.session)

    def add(self, target: Target, one: Published, *, exactly: bool, privileged: bool) -> Published:
        """Publish one more port of a running session. Returns it with its number on the machine. Raises as `take`."""
        guest = self._guests.setdefault(target.session, _Guest())
        guest.target = target
        _check_count(guest, one)
        port = self._open(one, target.session, exactly=exactly, privileged=privileged)
        guest.ports.append(port)
        self._forward(target.session)
        return port.published

    def remove(self, session: str, one: Published) -> None:
        """End the publication of a port. Connections through it, and through those that were published together with
        it, end.
        """
        guest = self._guests.get(session, _Guest())
        for port in [port for port in guest.ports if port.published == one]:
            guest.ports.remove(port)
            for program in [program for program in guest.programs if port in program.ports]:
                guest.programs.remove(program)
                self._end(program)
            _release(port, session)
        self._forward(session)

    async def close(self) -> None:
        """Release all sockets. The programs continue for the next daemon."""
        self._is_closed = True
        await asyncio.gather(*self._tasks)
        for guest in self._guests.values():
            for program in guest.programs:
                self._forget(program)
            for port in guest.ports:
                for sock in port.sockets:
                    sock.close()
        self._thread.shutdown()

    def _ports(self, session: str) -> list[_Port]:
        guest = self._guests.get(session)
        return guest.ports if guest is not None else []

    def _open(self, one: Published, session: str, *, exactly: bool, privileged: bool) -> _Port:
        lowest = network.first_unprivileged_port()
        if one.host and one.host < lowest and not privileged:
            said = f"only root may use the machine's ports below {lowest}"
            raise NotAllowed("publish", _name(one), said, "choose a higher number, or 0 for a free one")
        try:
            host, opened = _listen(one.address, one.host)
        except OSError as error:
            if exactly and one.host:
                raise self._refused(one, error) from error
            try:
                host, opened = _listen(one.address, 0)
            except OSError as other:
                raise self._refused(one, other) from other
        published = Published(session=one.session, host=host, address=one.address)
        return _Port(published, opened, {session})

    def _refused(self, one: Published, error: OSError) -> StateConflict:
        next_step = "choose another number, or 0 for a free one"
        said, code = error.strerror or str(error), "conflict"
        if isinstance(error, _InUse):
            holders = [
                guest.target.branch
                for guest in self._guests.values()
                if guest.target is not None and any(port.published.host == one.host for port in guest.ports)
            ]
            by = f": the session on {holders[0]} publishes it" if holders else ""
            said, code = f"port {one.host} of this machine is in use{by}", "port-in-use"
        return StateConflict("publish", _name(one), said, next_step, code=code)

    def _forward(self, session: str) -> None:
        if not self._is_closed:
            task = asyncio.ensure_future(self._start(session))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _start(self, session: str) -> None:
        """Start a program for the ports of a session that have none."""
        guest = self._guests.get(session)
        if guest is None or guest.target is None:
            return
        ports = [port for port in guest.ports if not any(port in program.ports for program in guest.programs)]
        if ports:
            pending = _Program(0, 0, -1, ports, [])  # so that no second one is started for them
            guest.programs.append(pending)
            run = functools.partial(_run, self._owner, self._mounts_fd, guest.target, ports)
            try:
                program = await asyncio.get_running_loop().run_in_executor(self._thread, run)
            except OSError as error:
                if pending in guest.programs:
                    guest.programs.remove(pending)
                if self._guests.get(session) is guest:  # else the session has ended
                    self._retry(session, guest.target, error.strerror or str(error))
                return
            guest.said = ""
            if self._guests.get(session) is not guest or pending not in guest.programs:
                self._end(program)  # the session has ended, or one of the ports was closed
            else:
                guest.programs[guest.programs.index(pending)] = program
                self._watch(session, program)
            if pending in guest.programs:
                guest.programs.remove(pending)
        self._note(guest)

    def _retry(self, session: str, target: Target, said: str) -> None:
        guest = self._guests[session]
        if guest.said != said:
            guest.said = said
            log.warning("the ports of the session on %s are not forwarded: %s", target.branch, said)
        asyncio.get_running_loop().call_later(RESTART_S, self._forward, session)

    def _watch(self, session: str, program: _Program) -> None:
        loop = asyncio.get_running_loop()

        def ended() -> None:
            self._forget(program)
            guest = self._guests.get(session)
            if guest is not None and program in guest.programs:
                guest.programs.remove(program)
                loop.call_later(RESTART_S, self._forward, session)

        loop.add_reader(program.pidfd, ended)

    def _end(self, program: _Program) -> None:
        if program.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                pidfd.send_signal(program.pidfd, signal.SIGKILL)
        self._forget(program)

    def _forget(self, program: _Program) -> None:
        if program.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(program.pidfd)
            os.close(program.pidfd)
            program.pidfd = -1

    def _note(self, guest: _Guest) -> None:
        """Write down the programs of a session for the next daemon."""
        if guest.target is None:
            return
        noted = [
            {
                "pid": program.pid,
                "start": program.start,
                "ports": [[one.session, one.host, one.address] for one in (port.published for port in program.ports)],
                "fds": program.fds,
            }
            for program in guest.programs
            if program.pid
        ]
        with contextlib.suppress(OSError):  # the session has ended; or the next daemon opens the ports again
            files.publish(str(guest.target.folder / NOTE), json.dumps(noted).encode(), durable=False)

    def _adopt(self, guest: _Guest, target: Target, wanted: Sequence[Published]) -> None:
        """Take the sockets of the running programs of an earlier daemon, and open the ports `wanted` that have none."""
        left = list(wanted)
        for pid, start, ports, fds in _noted(target.folder):
            if not procfs.is_same(pid, start):
                continue
            program = _Program(pid, start, -1, [], fds)
            try:
                program.pidfd = pidfd.open(pid)
                numbers = iter(fds)
                for one in ports:
                    taken = [_take(program, number) for number in itertools.islice(numbers, len(_addresses(one)))]
                    program.ports.append(_Port(one, taken, {target.session}))
            except OSError:  # it has ended
                self._end(program)
                continue
            if any(one not in left for one in ports):  # one of them was closed
                self._end(program)
                for port in program.ports:
                    _release(port, target.session)
                continue
            left = [one for one in left if one not in ports]
            guest.ports += program.ports
            guest.programs.append(program)
            self._watch(target.session, program)
        for one in left:
            try:
                guest.ports.append(self._open(one, target.session, exactly=True, privileged=True))
            except StateConflict as error:
                guest.not_open = error.said
                log.warning("a port of the session on %s is not published any more: %s", target.branch, error.said)


class _InUse(OSError):
    pass


def parse(text: str, *, takes_number: bool = False) -> Published:
    """The port in `text`: `[ADDR:]HOST:SESSION`; with `takes_number` also a port of the session alone. Raises
    UsageProblem.
    """
    if takes_number and (number := _number(text)):
        return Published(session=number)
    rest, _, inside = text.rpartition(":")
    address, _, outside = rest.rpartition(":")
    numbers = [_number(one) for one in (inside, outside)]
    bare = address.removeprefix("[").removesuffix("]")
    if None not in numbers and numbers[0]:
        with contextlib.suppress(ValueError):
            given = str(ipaddress.ip_address(bare)) if address else ""
            return Published(session=numbers[0], host=numbers[1] or 0, address=given)
    before, example = (f"neither PORT, a number from 1 to {_MOST_PORT}, nor", "80, ") if takes_number else ("not", "")
    said = f"it is {before} [ADDRESS:]HOST:SESSION, two ports, with an address of this machine before them or none"
    next_step = f"write it like this: {example}8080:80, or 0.0.0.0:8080:80; 0:80 takes a free port"
    raise UsageProblem("publish", repr(text), said, next_step)


def check_distinct(ports: Collection[Published]) -> None:
    """Raise UsageProblem if two ports have the same number on the machine."""
    numbers = [one.host for one in ports if one.host]
    for one in ports:
        if numbers.count(one.host) > 1:
            raise UsageProblem("publish", _name(one), "its number is given twice", "choose different numbers")


def _check_count(guest: _Guest, one: Published) -> None:
    if len(guest.ports) >= MOST:
        raise StateConflict("publish", _name(one), f"the session has {MOST} published ports", "close one of them")


def _number(text: str) -> int | None:
    number = int(text) if text.isdecimal() and text.isascii() and len(text) <= len(str(_MOST_PORT)) else -1
    return number if 0 <= number <= _MOST_PORT else None


def _name(one: Published) -> str:
    return f"port {one.session} of the session" + (f" as {one.host}" if one.host else "")


def _addresses(one: Published) -> tuple[str, ...]:
    return (one.address,) if one.address else _loopback()


@functools.cache
def _loopback() -> tuple[str, ...]:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((_LOOPBACK[1], 0))
    except OSError:
        return _LOOPBACK[:1]
    return _LOOPBACK


def _listen(address: str, host: int) -> tuple[int, list[socket.socket]]:
    """Listen on a port of the machine, 0: any free one. Return its number, and the sockets. Raises OSError; _InUse if
    the port is in use.
    """
    for is_last in (number == _TRIES for number in range(1, _TRIES + 1)):
        number, opened = host, []
        try:
            for one in (address,) if address else _loopback():
                opened.append(_listen_at(one, number))
                number = opened[-1].getsockname()[1]
        except _InUse:
            for sock in opened:
                sock.close()
            if host or is_last:
                raise
            continue
        except BaseException:
            for sock in opened:
                sock.close()
            raise
        return number, opened
    raise AssertionError("unreachable")


def _listen_at(address: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if ":" in address:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise _InUse(error.errno, error.strerror) from error
        raise
    return sock


def _release(port: _Port, session: str) -> None:
    port.sessions.discard(session)
    if not port.sessions:
        for sock in port.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # the number is free at once, although the program may still have it
            sock.close()


def _run(owner: int, mounts_fd: int, target: Target, ports: Sequence[_Port]) -> _Program:
    """Start a program that forwards the connections to `ports`. Blocks. Raises OSError."""
    space = netns.open_of(target.pid)
    try:
        sockets = [(sock.fileno(), port.published.session) for port in ports for sock in port.sockets]
        words = [str(one) for one in (owner, mounts_fd, space, target.pid, target.start)]
        words += [f"{fd}:{number}" for fd, number in sockets]
        fds = [fd for fd, _ in sockets]
        pid = int(run_module("forwarder", words, [mounts_fd, space, *fds]))
    finally:
        os.close(space)
    return _Program(pid, procfs.start_ticks(pid), pidfd.open(pid), list(ports), fds)


def _noted(folder: Path) -> list[tuple[int, int, list[Published], list[int]]]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return [
            (
                one["pid"],
                one["start"],
                [Published(session=session, host=host, address=address) for session, host, address in one["ports"]],
                one["fds"],
            )
            for one in json.loads((folder / NOTE).read_bytes())
        ]
    return []


def _take(program: _Program, number: int) -> socket.socket:
    sock = socket.socket(fileno=pidfd.getfd(program.pidfd, number))
    sock.settimeout(0)
    return sock
