"""The daemon as a process: from taking the home's lock to a clean stop."""

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from waypoint.daemon.guard import Guard
from waypoint.daemon.http import Limits
from waypoint.daemon.problems import LOG, log_bug
from waypoint.daemon.server import Server
from waypoint.daemon.service import Service
from waypoint.daemon.siblings import parse_options, take_fd
from waypoint.linux import files, mounts, namespaces
from waypoint.model.errors import WaypointError
from waypoint.model.paths import daemon_lock_path, socket_path

OpenService = Callable[[str], Awaitable[Service]]
"""Makes the service of the home at a path. A WaypointError that it raises is told to every client."""

EXIT_LOCKED = 75
# How long requests under way may take to end when the daemon stops; streams are ended at once.
STOP_S = 5.0
# How long the service may take to shut down. All together less than the supervisor waits before it kills us.
SHUTDOWN_S = 12.0
# Threads for what blocks. Python's own number, six on two processors, would let a few long dumps hold up all else.
WORKERS = 32
# How long a daemon that cannot serve its home tells the reason to those who ask, before it ends.
REFUSE_S = 1.0


def run(argv: list[str], environ: dict[str, str], open_service: OpenService) -> int:
    """Serve a home until told to stop, then end the process. `argv`: HOME --listen-fd N --supervisor-fd N.

    Returns only if another daemon serves the home: the exit status for that.

    Its own mount namespace, in which what it mounts is unseen by the machine and ends with its last process.
    """
    home, options = parse_options(argv)
    listen_fd, supervisor_fd = take_fd(options, "listen-fd"), take_fd(options, "supervisor-fd")
    faulthandler.enable()
    logging.basicConfig(
        format="%(asctime)s daemon[%(process)d] %(message)s", datefmt="%Y-%m-%d %H:%M:%S", level=logging.INFO
    )
    try:
        files.lock(daemon_lock_path(home), wait=False)  # until the process ends
    except BlockingIOError:
        LOG.error("another daemon serves this home")
        return EXIT_LOCKED
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.make_slave("/")
    daemon = _Daemon(home, socket.socket(fileno=listen_fd))
    asyncio.run(_exit_after(daemon.serve(open_service, supervisor_fd, environ)))
    raise AssertionError("unreachable")


async def _exit_after(serving: Awaitable[None]) -> None:
    """End the process, not just the loop: asyncio would wait for each thread and task that is still busy, or stuck."""
    status = 1
    try:
        await serving
        status = 0
    except Exception as error:  # the last chance to say why
        log_bug(error, "the home")
    finally:
        sys.stderr.flush()
        os._exit(status)


class _Daemon:
    def __init__(self, home: str, listener: socket.socket) -> None:
        self._home = home
        self._listener = listener
        self._stopping = asyncio.Event()

    async def serve(self, open_service: OpenService, supervisor_fd: int, environ: dict[str, str]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_unhandled)
        loop.set_default_executor(ThreadPoolExecutor(WORKERS))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._begin_stop)
        guard = Guard(self._home, os.path.abspath(sys.argv[0]), self._listener.fileno(), environ)
        guard.watch(supervisor_fd)
        try:
            service = await open_service(self._home)
        except WaypointError as problem:
            LOG.error("cannot serve this home: %s", problem)
            await self._refuse(problem)
        else:
            await self._answer(service)
        guard.stop()

    async def _answer(self, service: Service) -> None:
        server = Server(self._listener, lambda: service, self._begin_stop, Limits())
        server.start()
        LOG.info("serving")
        await self._stopping.wait()
        LOG.info("stopping")
        await server.stop(STOP_S)
        async with asyncio.timeout(SHUTDOWN_S):
            await service.shutdown()

    async def _refuse(self, problem: WaypointError) -> None:
        """Give `problem` as the answer to whatever is asked, for a while; the next client starts a new daemon."""

        def refuse() -> Service:
            raise problem

        server = Server(self._listener, refuse, self._begin_stop, Limits())
        server.start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), REFUSE_S)
        self._begin_stop()
        await server.stop(STOP_S)

    def _begin_stop(self) -> None:
        """Take away the socket's name: nobody can come any more, and the supervisor knows that our end is meant."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_path(self._home))
        self._stopping.set()


def _log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, BaseException):
        log_bug(error, "the event loop")
    else:
        LOG.error("event loop: %s", context.get("message"))
