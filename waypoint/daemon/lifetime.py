"""The life of a daemon process: it takes the home's lock, opens the service, answers requests and stops cleanly."""

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
from typing import Any, Protocol, TextIO

from waypoint.daemon import listening
from waypoint.daemon.background import is_log_full, open_log
from waypoint.daemon.http.conversation import Served
from waypoint.daemon.http.messages import Limits
from waypoint.daemon.http.route import Routes
from waypoint.daemon.http.server import Server
from waypoint.daemon.siblings import parse_options, take_fd
from waypoint.daemon.supervisor_watch import SupervisorWatch
from waypoint.linux.calls import hard_limits
from waypoint.linux.storage import files, mounts, ownership
from waypoint.linux.tasks import lock_holder, namespaces
from waypoint.model.errors import HostLacks, WaypointError, cleaned
from waypoint.model.paths import daemon_lock_path
from waypoint.service.background.bugs import LOG, log_bug


class StoppableService(Protocol):
    """The methods of service.home.Home that this module uses."""

    stop_daemon: Callable[[], None]

    async def shutdown(self) -> None: ...


OpenService = Callable[[str, int], Awaitable[StoppableService]]
"""Opens the service of the home at a path. The number is a descriptor of the machine's mount namespace, and stays open.
If the function raises a WaypointError, every client is answered with this error.
"""

EXIT_LOCKED = 75  # exit status if another daemon serves the home
# How long requests in progress may take to end when the daemon stops; streams are ended at once.
STOP_S = 5.0
# How long the service may take to shut down. With STOP_S it is less than the supervisor waits before it kills a daemon.
SHUTDOWN_S = 12.0
# Threads for blocking calls. With Python's default, six on two processors, a few long dumps would hold up everything.
WORKERS = 32
# How long a thread may run Python code while another thread waits for the interpreter lock. A capture takes some forty
# steps while its session is frozen, and may have to wait for the lock before each step (linux/tasks/pauses.py).
SWITCH_S = 0.0005
# How long a daemon that cannot serve its home accepts connections that were made before it began to stop.
REFUSE_S = 0.2


def run(argv: list[str], environ: dict[str, str], open_service: OpenService, routes: Routes) -> int:
    """Serve a home until the daemon is asked to stop, then end the process. `argv`: HOME, and the options --listen-fd
    N, --supervisor-fd N and --serving-fd N.

    Returns only if another daemon serves the home: then EXIT_LOCKED.

    The process enters a new mount namespace: the host does not see its mounts, and they vanish with the last
    process in that namespace.
    """
    home, options = parse_options(argv)
    listen_fd, supervisor_fd = take_fd(options, "listen-fd"), take_fd(options, "supervisor-fd")
    hard_limits.use_all_open_files()  # each session takes some ten
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # writes to the log where each thread is
    logging.basicConfig(
        format="%(asctime)s daemon[%(process)d] %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level=logging.INFO,
        handlers=[_BoundedLog(home)],
    )
    try:
        ownership.check_home(home)
        lock_fd = files.lock(daemon_lock_path(home), wait=False)  # held until the process ends
        lock_holder.sign(lock_fd)  # so that a supervisor finds this daemon without its socket
    except HostLacks as problem:  # nothing in the home is changed then
        open_service = _refusing(problem)
    except BlockingIOError:
        LOG.error("another daemon serves this home")
        return EXIT_LOCKED
    # A descriptor of the machine's mount namespace: the daemon follows the mounts there, and starts a new supervisor in
    # it, because later daemons must not begin with a copy of this daemon's mounts.
    mounts_fd = namespaces.open_own("mnt")
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.make_slave("/")
    sys.setswitchinterval(SWITCH_S)
    daemon = _Daemon(home, socket.socket(fileno=listen_fd), routes, take_fd(options, "serving-fd"))
    asyncio.run(_exit_after(daemon.serve(open_service, supervisor_fd, mounts_fd, environ)))
    raise AssertionError("unreachable")


def _refusing(problem: WaypointError) -> OpenService:
    async def refuse(home: str, mounts_fd: int) -> StoppableService:
        raise problem

    return refuse


async def _exit_after(serving: Awaitable[None]) -> None:
    """Await `serving`, then end the process by os._exit: asyncio.run would wait for threads that are still busy or
    stuck.
    """
    status = 1
    try:
        await serving
        status = 0
    except Exception as error:  # os._exit follows, so no caller could log the error
        log_bug(error, "the home")
    finally:
        sys.stderr.flush()
        os._exit(status)


class _BoundedLog(logging.StreamHandler[TextIO]):
    """Writes to stderr, which is the home's log, and begins a new file when the log is full."""

    def __init__(self, home: str) -> None:
        super().__init__(sys.stderr)
        self._home = home

    def format(self, record: logging.LogRecord) -> str:
        """Format a line without control characters. Messages of CRIU and the kernel contain names chosen in
        sessions.
        """
        return cleaned(super().format(record), keep="\n\t")

    def emit(self, record: logging.LogRecord) -> None:
        if is_log_full():
            open_log(self._home)
        super().emit(record)


class _Daemon:
    def __init__(self, home: str, listener: socket.socket, routes: Routes, serving_fd: int) -> None:
        self._home = home
        self._listener = listener
        self._routes = routes
        self._serving_fd = serving_fd
        self._stopping = asyncio.Event()
        self._socket = listening.named_socket(home)
        self._is_lost = False  # whether somebody else has removed the socket's name: no client can reach this daemon

    async def serve(
        self, open_service: OpenService, supervisor_fd: int, mounts_fd: int, environ: dict[str, str]
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_unhandled)
        loop.set_default_executor(ThreadPoolExecutor(WORKERS))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._begin_stop)
        fds = {"listen_fd": self._listener.fileno(), "mounts_fd": mounts_fd}
        watch = SupervisorWatch(self._home, os.path.abspath(sys.argv[0]), environ, **fds)
        watch.watch(supervisor_fd)
        try:
            service = await open_service(self._home, mounts_fd)
        except WaypointError as problem:
            LOG.error("cannot serve this home: %s", problem)
            await self._refuse(problem)
        else:
            await self._answer(service)
        watch.stop()

    async def _answer(self, service: StoppableService) -> None:
        service.stop_daemon = self._begin_stop
        server = Server(self._listener, Served(lambda: service, self._routes), Limits())
        server.start()
        LOG.info("serving")
        self._tell_serving()
        await self._stopping.wait()
        LOG.info("stopping")
        await server.stop(STOP_S, keep_streams=self._is_lost)
        async with asyncio.timeout(SHUTDOWN_S):
            await service.shutdown()

    def _tell_serving(self) -> None:
        """Tell the supervisor that has started this daemon that the daemon serves its home."""
        if self._serving_fd >= 0:
            with contextlib.suppress(BrokenPipeError):  # that supervisor has died
                os.write(self._serving_fd, b"s")
            os.close(self._serving_fd)

    async def _refuse(self, problem: WaypointError) -> None:
        """Answer the clients that are waiting with `problem`, then stop. A later client starts a new daemon, which may
        find that the cause is gone.
        """

        def refuse() -> object:
            raise problem

        server = Server(self._listener, Served(refuse, self._routes), Limits())
        server.start()
        self._begin_stop()
        await asyncio.sleep(REFUSE_S)
        await server.stop(STOP_S)

    def _begin_stop(self) -> None:
        """Begin to stop: remove the socket's name, so that no client can connect and the supervisor knows that this
        daemon ends on purpose.
        """
        if not self._stopping.is_set():
            self._is_lost = listening.named_socket(self._home) != self._socket
            listening.remove_name(self._home, self._socket)
            self._stopping.set()


def _log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, BaseException):
        log_bug(error, "the event loop")
    else:
        LOG.error("event loop: %s", context.get("message"))
