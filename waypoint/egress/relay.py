"""The program that takes what comes to the published ports of one session, and passes it on to the session's ports.

It gets what listens, enters the session's network, and is nobody from then on. It ends with the session. In the session
it has an address of its own, so that its connections are for captures what they are: such to another machine, which
copies of the session have reset.
"""

import asyncio
import contextlib
import fcntl
import functools
import os
import socket
import sys
from collections.abc import Iterable, Sequence

from waypoint.egress import plan
from waypoint.egress.datagrams import Datagrams, Ways
from waypoint.linux.net import netns, rtnetlink
from waypoint.linux.net.rtnetlink import Prefix, RouteSocket
from waypoint.linux.tasks import cgroups, kin, namespaces, pidfd

FIRST_LISTENER = 100  # the descriptors of the program from here on are those that listen
_ASIDE = 500  # above those
_LO = 1
_MOST = 400  # connections at a time, of two files each; what comes beyond is closed at once
_PIECE = 1 << 16
_TRIED: Ways = (
    (plan.OWN_ADDRESS, plan.PUBLISHER),
    ("127.0.0.1", plan.PUBLISHER),  # what listens on the session's loopback only
    (plan.OWN_ADDRESS_IPV6, plan.PUBLISHER_IPV6),
    ("::1", plan.PUBLISHER_IPV6),
)


def main(argv: list[str]) -> None:
    """Run the program. It ends when its child, which never returns from here, serves. `argv`: the cgroup2 group that it
    is to be in; pid and start time of the session's pid 1; the user that it is to be; of each listener
    `DESCRIPTOR:PORT`, with the port of the session. Raises OSError.
    """
    group, pid, start, owner, *pairs = argv
    cgroups.enter(group)
    init = pidfd.open(int(pid))
    with netns.opened_of_session(int(pid), int(start)) as network:
        namespaces.setns(network, namespaces.CLONE_NEWNET)
    with RouteSocket() as route:
        own = [plan.PUBLISHER, *([plan.PUBLISHER_IPV6] if socket.has_dualstack_ipv6() else [])]
        route.do([rtnetlink.add_address(_LO, Prefix.parse(one)) for one in own])
    ports = _take_places(pairs)
    if not kin.is_bare(group):  # else it has no more rights than the user whose sessions these are
        os.setgroups([])
        os.setresgid(int(owner), int(owner), int(owner))
        os.setresuid(int(owner), int(owner), int(owner))
    child = os.fork()
    if child:
        if kin.is_bare(group):
            kin.note_first(group, child)
        os._exit(0)
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    asyncio.run(_serve(init, ports))


def _take_places(pairs: Sequence[str]) -> list[int]:
    """Give the listeners their numbers, by which the next daemon finds them. Returns the ports of the session."""
    given = [[int(part) for part in pair.split(":")] for pair in pairs]
    aside = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _ASIDE) for number, _ in given]
    for number, _ in given:
        os.close(number)
    for place, number in enumerate(aside):
        os.dup2(number, FIRST_LISTENER + place, inheritable=False)
        os.close(number)
    return [port for _, port in given]


async def _serve(init: int, ports: Sequence[int]) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(init, ended.set)
    listeners = [(socket.socket(fileno=FIRST_LISTENER + place), port) for place, port in enumerate(ports)]
    served: list[object] = [Datagrams(one, port, _TRIED) for one, port in listeners if one.type == socket.SOCK_DGRAM]
    served += await take_all((one, port) for one, port in listeners if one.type == socket.SOCK_STREAM)
    await ended.wait()
    os._exit(0)


async def take_all(listeners: Iterable[tuple[socket.socket, int]]) -> list[asyncio.Server]:
    """Begin to take the connections that come to each listener, for the session's port that is with it."""
    # The tasks themselves: one that waits for a side which sends no more is otherwise held by nothing.
    open_now: set[asyncio.Task[None] | None] = set()

    async def take(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        try:
            if len(open_now) < _MOST:
                open_now.add(task)
                await _relay(reader, writer, port)
        finally:
            open_now.discard(task)
            writer.transport.abort()

    return [await asyncio.start_server(functools.partial(take, port), sock=listener) for listener, port in listeners]


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Returns when the kernel has all that came from both sides, or one has broken off."""
    for address, own in _TRIED:
        with contextlib.suppress(OSError):
            others = await asyncio.open_connection(address, port, local_addr=(own, 0))
            break
    else:
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_pass_on(reader, others[1]))
            both.create_task(_pass_on(others[0], writer))
    except* OSError:  # a side has broken off
        writer.transport.abort()
    finally:
        others[1].transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Returns when all that came is the kernel's, which goes on sending after the socket is closed."""
    writer.transport.set_write_buffer_limits(high=0)  # `drain` returns when nothing waits here
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        print(error.strerror or error, file=sys.stderr)
        sys.exit(1)
