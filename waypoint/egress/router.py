"""The router of a home: a network namespace with a pasta(1), which outlives the daemon.

All its processes are in a cgroup of its own, from before the first of them does anything: by that they are found and
ended, whoever was killed while the router was made. Without root there is no cgroup: the group is pasta alone, which is
found by the words that it was run with until it is noted.
"""

import contextlib
import errno
import functools
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from waypoint.egress import own_program, pasta, plan, session_side, stale
from waypoint.linux.calls import powers, programs
from waypoint.linux.net import netns, network, rtnetlink
from waypoint.linux.net.rtnetlink import Prefix, RouteSocket
from waypoint.linux.storage import files
from waypoint.linux.tasks import cgroups, kin, namespaces, pidfd, procfs
from waypoint.model.ids import new_id
from waypoint.model.paths import home_id

_NOTE = "router.json"  # in the home's runtime folder, of a router that routes by its rules: see _RouterNote
_NFT_S = 20.0
_PROGRAMS = {"pasta": "passt", "nft": "nftables"}  # each with its package of Debian
_OWN_AT_ONCE = 1024  # without root, nft's socket takes no more than net.core.wmem_max: 208 KiB
_TUN = "/dev/net/tun"


class Site(NamedTuple):
    """Where a home has its router. `runtime`: the home's runtime folder. `groups`: the cgroup2 group below which each
    router that is made has a new one, so that nothing late of a former one gets into it. `owner`: the user that pasta
    is to be. `mounts_fd`: a descriptor of the mount namespace that it is to see; None: the caller's.
    """

    runtime: Path
    groups: str
    owner: int
    mounts_fd: int | None


class _RouterNote(NamedTuple):
    """`pid`, `start`: pasta's pid and start time. `ipv6`: whether the router reaches that. `group`: the name of its
    cgroup; "": an earlier version has made it, in none of its own. `holder`: the pid and start time of a process that
    is in the router's network namespace; 0: there is none, and that is found by what pasta has open.
    """

    pid: int
    start: int
    ipv6: bool
    group: str = ""
    holder: tuple[int, int] = (0, 0)


class Guest(NamedTuple):
    """A session on a private network. `pid`: the host's pid of its pid 1, `start` the start time of that, in ticks.
    `processes`: all of its processes. `allowed`: the names and networks that it may reach; none: all that is public.
    `user`: whose session it is.
    """

    pid: int
    start: int
    processes: Callable[[], Iterable[int]]
    allowed: tuple[str, ...] = ()
    user: int = 0


class Router:
    """A router that runs. Its methods block."""

    def __init__(self, note: _RouterNote) -> None:
        """Raises OSError if it has ended."""
        self.pidfd = pidfd.open(note.pid)
        self._ipv6 = note.ipv6
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, self.pidfd)
            self._namespace = _open_namespace(note)
            opened.callback(os.close, self._namespace)
            self._route = opened.enter_context(netns.work_within(self._namespace, RouteSocket))
            self._opened = opened.pop_all()

    def close(self) -> None:
        """The namespace, and with it the pairs, is gone when nobody has it open."""
        self._opened.close()
        self.pidfd = self._namespace = -1

    def set_up(self, host: Iterable[str]) -> None:
        """Let a new router route, by the rules. `host`: the machine's addresses."""

        def work() -> None:
            network.raise_loopback()
            network.write_setting("ipv4/ip_forward", "1")
            network.write_setting("ipv4/conf/all/accept_source_route", "0")
            with contextlib.suppress(FileNotFoundError):
                network.write_setting("ipv6/conf/all/forwarding", "1")
            rules = [plan.rules(host, _resolver()), *plan.tell_own(_OWN_AT_ONCE)]
            for commands in ["\n".join(rules)] if powers.is_machines() else rules:
                _nft(["-f", "-"], commands)  # with it comes conntrack
            for name, seconds in plan.CONNTRACK.items():
                network.write_setting(f"netfilter/nf_conntrack_{name}", str(seconds))
            with RouteSocket() as route:  # what comes for a session that has ended goes nowhere
                route.do(rtnetlink.refuse(Prefix.parse(one)) for one in plan.OF_SESSIONS if self._reaches(one))

        netns.work_within(self._namespace, work)

    def tell(self, commands: str) -> None:
        """Have nft carry out `commands`. Raises OSError."""
        if commands:
            netns.work_within(self._namespace, lambda: _nft(["-f", "-"], commands))

    def attach(self, guest: Guest, host: Iterable[str], opened: Collection[str] | None) -> None:
        """Give a session its way out, or bring the one that it has up to date: of the networks to which it is limited,
        `opened` can be reached, and no others any more. A session that had none loses the connections to other machines
        that it has from before. `host`, `opened`: as for `session_side.lead_out`. Raises OSError, also if it has ended.
        """
        with netns.opened_of_session(guest.pid, guest.start) as namespace:
            netns.work_within(namespace, lambda: self._attach(namespace, guest, host, opened))

    def _attach(self, namespace: int, guest: Guest, host: Iterable[str], opened: Collection[str] | None) -> None:
        """`attach`, in the session's network namespace: the calling thread goes there once, for all."""
        with RouteSocket() as route:
            found = session_side.index(route)
            if found is None:
                index = self._make_pair(namespace, plan.INDICES if opened is None else plan.LISTED)
            else:
                index = found
            if opened is not None:
                self._tell_opened(index, opened)
            # Only now: from then on it may send what it likes, and another session may have had this index before.
            route.do([rtnetlink.bring_up(plan.SESSION_END.number)])
            self._route.wait_up(plan.router_end(index).number)
            session_side.lead_out(route, host, opened, ipv6=self._ipv6)
        if found is None:  # last: a program that is told so connects anew at once
            stale.end(guest.processes)

    def _reaches(self, network: str) -> bool:
        return self._ipv6 or not plan.is_ipv6(network)

    def _tell_opened(self, index: int, opened: Collection[str]) -> None:
        found = self._now_opened(index)
        gone, new = found.difference(opened), set(opened).difference(found)
        self.tell("\n".join((plan.tell_open(index, gone, "delete"), plan.tell_open(index, new))).strip())

    def _now_opened(self, index: int) -> set[str]:
        """What is opened for the session with `index`, or still is for one that had it before."""
        found: set[str] = set()
        for name in ("open4", "open6"):
            words = ["list", "set", "inet", "waypoint", name]
            text = netns.work_within(self._namespace, functools.partial(_nft, words))
            found.update(re.findall(rf'"{plan.router_end(index).name}" \. ([0-9a-f.:/]+)', text))
        return found

    def _make_pair(self, namespace: int, indices: range) -> int:
        first = int.from_bytes(os.urandom(4), "little")  # at random: one that was free for long has no connections left
        for place in range(len(indices)):
            index = indices[(first + place) % len(indices)]
            end = plan.router_end(index)
            pair = rtnetlink.add_veth(end, plan.SESSION_END, namespace, plan.HARDWARE, plan.MTU)
            own = [one for one in plan.own_addresses(index) if len(one.address) == 4 or self._ipv6]
            try:
                self._route.do([pair, *(rtnetlink.add_route(one, end.number) for one in own)])
            except FileExistsError:
                continue
            return index
        raise OSError(0, f"the router has {len(indices)} sessions")


def why_not() -> str:
    """In words, what of the machine is missing for a router; "" if nothing is known to be."""
    lacking = [f"{name} (package {package})" for name, package in _PROGRAMS.items() if programs.find(name) is None]
    if lacking:
        return f"there is no {' and no '.join(lacking)}"
    is_open = powers.is_machines() or os.access(_TUN, os.R_OK | os.W_OK)
    return "" if is_open else f"without root it takes a {_TUN} that every user may open, as most machines have it"


def find(site: Site) -> Router | None:
    """The router that the last daemon has left; None if it is gone, or was not finished."""
    note = _noted(site)
    if note is not None:
        with contextlib.suppress(OSError):  # it has just ended
            return Router(note)
    return None


def make(site: Site, host: Iterable[str]) -> Router:
    """Make a router in place of any other. `host`: the machine's addresses. Raises OSError; then none is left."""
    said = why_not()
    if said:
        raise OSError(0, said)
    end(site)
    group = new_id()
    with contextlib.ExitStack() as undo:
        undo.callback(end, site)
        cgroups.create(f"{site.groups}/{group}")
        note = _run_pasta(site, group)
        router = Router(note)
        undo.callback(router.close)
        router.set_up(host)
        # Only now: no daemon must connect a session to a router that has no rules.
        files.publish(str(site.runtime / _NOTE), json.dumps(note._asdict()).encode(), durable=False)
        undo.pop_all()
    return router


def end(site: Site) -> None:
    """End the home's router, and what was left of others. Their pairs and namespaces go with them. Raises OSError."""
    note = _noted(site)
    if note is not None and not note.group:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(note.pid, signal.SIGKILL)
    (site.runtime / _NOTE).unlink(missing_ok=True)
    cgroups.end(site.groups)
    _end_unnoted(site, but=0)


def sweep(site: Site) -> None:
    """End what was left of routers that were not finished: their daemon was killed; and a router that an earlier
    version has made. Raises OSError.
    """
    note = _noted(site)
    if note is not None and not note.group:
        end(site)
    cgroups.end_below(site.groups, () if note is None else (note.group,))
    _end_unnoted(site, but=0 if note is None else note.pid)


def _end_unnoted(site: Site, but: int) -> None:
    """Without root: end each pasta of the home, but for that with the pid `but`. A session may have processes that look
    like one, which end, too.
    """
    wanted = pasta.pid_file(_home_id(site))
    for name in os.listdir("/proc") if kin.is_bare(site.groups) else ():
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if name.isdecimal() and int(name) != but and wanted in procfs.command_line(int(name)):
                os.kill(int(name), signal.SIGKILL)


def _home_id(site: Site) -> str:
    """The home's, which is the name of its runtime folder, but for one that is in the home itself: without root."""
    return home_id(str(site.runtime.parent)) if kin.is_bare(site.groups) else site.runtime.name


def _noted(site: Site) -> _RouterNote | None:
    """None if the pasta that is noted has ended, or none is."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        note = _RouterNote(**json.loads((site.runtime / _NOTE).read_bytes()))
        holder, holder_start = note.holder
        note = note._replace(holder=(holder, holder_start))
        return note if procfs.is_same(note.pid, note.start) else None
    return None


def _resolver() -> str:
    """The first resolver that the machine asks; "" if that is none of IPv4 that pasta reaches, as its loopback."""
    with contextlib.suppress(OSError), open("/etc/resolv.conf") as file:
        for line in file:
            words = line.split()
            if words[:1] == ["nameserver"] and len(words) > 1:
                with contextlib.suppress(OSError):
                    socket.inet_pton(socket.AF_INET, words[1])
                    return "" if words[1].startswith("127.") else words[1]
                return ""
    return ""


def _open_namespace(note: _RouterNote) -> int:
    """A descriptor of the router's network namespace. Raises OSError."""
    holder, start = note.holder
    if not holder:
        return netns.open_held_by(note.pid)
    namespace = os.open(namespaces.path(holder, "net"), os.O_RDONLY | os.O_CLOEXEC)
    if procfs.is_same(holder, start):
        return namespace
    os.close(namespace)
    raise ProcessLookupError(errno.ESRCH, "who holds the router's network has ended")


def _run_pasta(site: Site, group: str) -> _RouterNote:
    mounts_fd = -1 if site.mounts_fd is None else site.mounts_fd
    words = [f"{site.groups}/{group}", _home_id(site), str(site.owner), str(mounts_fd)]
    passed = [mounts_fd] if mounts_fd >= 0 else []
    pid, ipv6, holder = map(int, own_program.run("pasta", words, passed, "pasta").split())
    held = (holder, procfs.start_ticks(holder)) if holder else (0, 0)
    return _RouterNote(pid, procfs.start_ticks(pid), ipv6 == 1, group, held)


def _nft(words: list[str], commands: str = "") -> str:
    """Run nft in the calling thread's network namespace, and return what it prints. Raises OSError with its words."""
    program = programs.find("nft")
    if program is None:
        raise OSError(0, "there is no nft")
    try:
        done = subprocess.run(
            [program, *words],
            input=commands.encode(),
            capture_output=True,
            env={"LC_ALL": "C"},
            check=False,
            timeout=_NFT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(0, f"nft did not end within {_NFT_S:g} s") from error
    if done.returncode != 0:
        raise OSError(0, f"nft: {done.stderr.decode(errors='replace').splitlines()[:1]}")
    return done.stdout.decode()
