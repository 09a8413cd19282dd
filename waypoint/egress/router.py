"""The router of a home (Waypoint's data folder): a network namespace and a pasta(1) process, which continues when the
daemon ends.
"""

import contextlib
import functools
import json
import os
import random
import re
import signal
import subprocess
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from waypoint.egress import plan, session_side, stale_connections
from waypoint.egress.keeper import NOTE, note_of
from waypoint.egress.programs import run_module
from waypoint.linux.calls import abilities, programs
from waypoint.linux.net import netns, network, rtnetlink
from waypoint.linux.net.rtnetlink import Prefix, RouteSocket
from waypoint.linux.storage import files
from waypoint.linux.tasks import pidfd, procfs, signals
from waypoint.model.errors import one_line

_PROGRAM_S = 20.0
_PROGRAMS = {"pasta": "passt", "nft": "nftables"}  # the needed programs and their Debian packages


class Guest(NamedTuple):
    """A session with a private network. `pid`, `start`: the host pid and the start time (in ticks) of the session's pid
    1. `processes`: returns the host pids of its processes. `allowed`: the only names and networks that the session may
    reach; if empty, it may reach all public networks.
    """

    pid: int
    start: int
    processes: Callable[[], Iterable[int]]
    allowed: tuple[str, ...] = ()


class Router:
    """A running router. Its methods block, and raise OSError, also if the session has ended."""

    def __init__(self, pid: int, *, ipv6: bool, holder: int = 0) -> None:
        """`pid`: of pasta. `holder`: the pid of a process in the router's network namespace, which this ends; 0: pasta
        shows its namespace.
        """
        self.pidfd = pidfd.open(pid)
        self._ipv6 = ipv6
        self._namespace = -1
        try:
            self._namespace = _take_from(holder) if holder else netns.open_held_by(pid)
            self._route = netns.work_within(self._namespace, RouteSocket)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for fd in (self.pidfd, self._namespace):
            if fd >= 0:
                os.close(fd)
        self.pidfd = self._namespace = -1

    def set_up(self, host: Iterable[str]) -> None:
        def work() -> None:
            network.raise_loopback()
            network.write_setting("ipv4/ip_forward", "1")
            network.write_setting("ipv4/conf/all/accept_source_route", "0")
            with contextlib.suppress(FileNotFoundError):
                network.write_setting("ipv6/conf/all/forwarding", "1")
            parts = plan.rules(host)
            for commands in ["".join(parts)] if abilities.own().owners else parts:
                _nft(["-f", "-"], commands)  # this loads conntrack
            for name, seconds in plan.CONNTRACK.items():
                network.write_setting(f"netfilter/nf_conntrack_{name}", str(seconds))
            with RouteSocket() as route:  # refuse packets to sessions that have ended
                route.do(rtnetlink.refuse(Prefix.parse(one)) for one in plan.OF_SESSIONS if self._reaches(one))

        netns.work_within(self._namespace, work)

    def tell(self, commands: str) -> None:
        if commands:
            netns.work_within(self._namespace, lambda: _nft(["-f", "-"], commands))

    def attach(self, guest: Guest, host: Iterable[str], opened: Collection[str] | None) -> None:
        """Connect a session to the router: the steps `make_pair` and `complete`."""
        namespace = netns.open_of(guest.pid)
        try:
            index = self.make_pair(namespace, is_restricted=opened is not None)
        finally:
            os.close(namespace)
        self.complete(guest, index, host, opened)

    def make_pair(self, namespace: int, *, is_restricted: bool) -> int:
        """Make an interface in the network namespace behind the descriptor `namespace`, and its other end here. Return
        the index of the pair. Nothing is routed to the interface yet. `is_restricted`: the session may reach only some
        networks.
        """
        index = self._make_pair(namespace, plan.LISTED if is_restricted else plan.INDICES)
        end = plan.router_end(index).number
        netns.work_within(namespace, session_side.bring_up)
        own = [Prefix.parse(one) for one in plan.own_addresses(index) if self._reaches(one)]
        self._route.do([rtnetlink.bring_up(end), *(rtnetlink.add_route(one, end) for one in own)])
        return index

    def refuse_closed(self, namespace: int, host: Iterable[str]) -> None:
        """Do most of what `complete` does in the network namespace behind the descriptor `namespace`, of a session that
        may reach all public networks.
        """
        netns.work_within(namespace, lambda: session_side.refuse_closed(host, ipv6=self._ipv6))

    def complete(
        self,
        guest: Guest,
        index: int,
        host: Iterable[str],
        opened: Collection[str] | None,
        *,
        is_refused: bool = False,
    ) -> None:
        """Route packets of a session to the pair with `index`, and end the connections to other machines that a
        restored session still has. `host`, `opened`, `is_refused`: see `session_side.route_out`.
        """
        self._route.wait_up(plan.router_end(index).number)
        if opened is not None:
            self._tell_opened(index, opened)

        def work() -> None:
            with RouteSocket() as route:
                session_side.route_out(route, host, opened, ipv6=self._ipv6, is_refused=is_refused)
            # This is the last step, since a program whose connection is ended may connect again at once, and needs the
            # route.
            stale_connections.end(guest.pid, guest.processes())

        netns.work_in(guest.pid, work)

    def route_again(self, guest: Guest, host: Iterable[str]) -> None:
        """Set the routes of a session that is connected and may reach all public networks. The daemon that has
        connected the session may have died before it had set them.
        """
        self._route_out(guest, host, None)

    def tell_opened(self, guest: Guest, index: int, host: Iterable[str], opened: Collection[str]) -> None:
        if self._tell_opened(index, opened):
            self._route_out(guest, host, opened)

    def _reaches(self, network: str) -> bool:
        return self._ipv6 or not plan.is_ipv6(network)

    def _tell_opened(self, index: int, opened: Collection[str]) -> bool:
        """Change the router's rules so that the session can reach `opened` only. Return True if the rules were
        changed.
        """
        found = self._opened(index)
        gone, new = found.difference(opened), set(opened).difference(found)
        self.tell("\n".join((plan.tell_open(index, gone, "delete"), plan.tell_open(index, new))).strip())
        return bool(gone or new)

    def _route_out(self, guest: Guest, host: Iterable[str], opened: Collection[str] | None) -> None:
        def work() -> None:
            with RouteSocket() as route:
                session_side.route_out(route, host, opened, ipv6=self._ipv6)

        netns.work_in(guest.pid, work)

    def _opened(self, index: int) -> set[str]:
        """Return the networks that the session with `index` may reach. They may come from an ended session that had the
        same index.
        """
        found: set[str] = set()
        for name in ("open4", "open6"):
            words = ["list", "set", "inet", "waypoint", name]
            text = netns.work_within(self._namespace, functools.partial(_nft, words))
            found.update(re.findall(rf'"{plan.router_end(index).name}" \. ([0-9a-f.:/]+)', text))
        return found

    def _make_pair(self, namespace: int, indices: range) -> int:
        # The index is chosen at random, so that the connections of its earlier use have probably expired.
        for index in random.sample(indices, len(indices)):
            pair = rtnetlink.add_veth(plan.router_end(index), plan.SESSION_END, namespace, plan.HARDWARE, plan.MTU)
            try:
                self._route.do([pair])
            except FileExistsError:
                continue
            return index
        raise OSError(0, f"the router already has {len(indices)} sessions, and can connect no more")


def _take_from(holder: int) -> int:
    """Open the network namespace of the process, and end it."""
    handle = pidfd.open(holder)
    try:
        return netns.open_of(holder)
    finally:
        pidfd.send_signal(handle, signal.SIGKILL)
        os.close(handle)


def why_not() -> str:
    """Name the programs that a router needs and that are missing, in words. "" if all exist."""
    lacking = [f"{name} (package {package})" for name, package in _PROGRAMS.items() if programs.find(name) is None]
    return f"there is no {' and no '.join(lacking)}" if lacking else ""


def find(runtime: Path) -> Router | None:
    """Return the running router that an earlier daemon has started, or None if there is none."""
    pid = _noted(runtime)
    if pid:
        with contextlib.suppress(OSError):  # it has just ended
            return Router(pid, ipv6=json.loads((runtime / NOTE).read_bytes())["ipv6"])
    return None


class Place(NamedTuple):
    """The home that a router serves. `runtime`: its runtime folder. `group`: the cgroup above those of its sessions.
    `owner`: the uid for pasta. `mounts_fd`: a descriptor of the mount namespace for pasta; None: the caller's.
    """

    home: Path
    runtime: Path
    group: str
    owner: int
    mounts_fd: int | None


def make(place: Place, host: Iterable[str]) -> Router:
    """Make a router. `host`: the machine's addresses. Raises OSError."""
    said = why_not() or ("" if place.home.is_dir() else f"{place.home} was removed")
    if said:
        raise OSError(0, said)
    runtime = place.runtime
    end(runtime)
    pid, ipv6, holder = _run_pasta(place)
    note = note_of(pid, procfs.start_ticks(pid), ipv6=ipv6)
    files.publish(str(runtime / NOTE), note.encode(), durable=False)
    router = Router(pid, ipv6=ipv6, holder=holder)
    try:
        router.set_up(host)
    except BaseException:
        router.close()
        end(runtime)
        raise
    return router


def end(runtime: Path) -> None:
    """End the home's router, if it runs. Its network namespace and the veth pairs in it disappear, too."""
    if pid := _noted(runtime):
        signals.send(pid, signal.SIGKILL, lambda: [_noted(runtime)])
    (runtime / NOTE).unlink(missing_ok=True)


def _noted(runtime: Path) -> int:
    """Return the pid of pasta that is recorded in the folder `runtime`, or 0 if pasta has ended or nothing is
    recorded.
    """
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
        note = json.loads((runtime / NOTE).read_bytes())
        return note["pid"] if procfs.is_same(note["pid"], note["start"]) else 0
    return 0


def _run_pasta(place: Place) -> tuple[int, bool, int]:
    mounts_fd = -1 if place.mounts_fd is None else place.mounts_fd
    words = [str(place.owner), str(mounts_fd), str(place.home), place.group]
    pid, ipv6, holder = run_module("pasta", words, [mounts_fd]).split()
    return int(pid), ipv6 == "1", int(holder)


def _nft(words: list[str], commands: str = "") -> str:
    """Run nft in the calling thread's network namespace and return its output. Raises OSError with nft's message."""
    program = programs.find("nft")
    if program is None:
        raise OSError(0, "the program nft is missing")
    try:
        done = subprocess.run(
            [program, *words],
            input=commands.encode(),
            capture_output=True,
            env={"LC_ALL": "C"},
            check=False,
            timeout=_PROGRAM_S,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(0, f"nft did not end within {_PROGRAM_S:g} s") from error
    if done.returncode != 0:
        raise OSError(0, f"nft: {one_line(done.stderr.decode(errors='replace'))}")
    return done.stdout.decode()
