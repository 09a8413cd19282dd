"""The server: it accepts clients on the listening socket and limits how many are connected."""

import asyncio
import contextlib
import errno
import functools
import os
import socket
from collections.abc import Callable

from waypoint.daemon.http.connection import Connection
from waypoint.daemon.http.conversation import Conversation, Served
from waypoint.daemon.http.messages import Limits, closing_answer
from waypoint.daemon.http.shares import Share
from waypoint.model.errors import StateConflict
from waypoint.service.background.bugs import log_bug

ACCEPTS_PER_WAKE_UP = 64
# Seconds during which no client is accepted after the process has run out of file descriptors.
ACCEPT_PAUSE_S = 0.1
_TOO_MANY = "the highest number of clients, of all users or of this user, is connected already"
# Seconds for cancelled requests to clean up when the server stops.
LAST_WORDS_S = 1.0


class Server:
    """The HTTP server of one service. Wakes up only when a client or the service has something to do."""

    def __init__(self, listener: socket.socket, served: Served, limits: Limits) -> None:
        """Accept clients only after `start`. Must be called in the running event loop."""
        self._listener = listener
        self._served = served
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._unlimited = {0, os.geteuid()}  # root and the home's owner, who runs the daemon
        self._shares: dict[int, Share] = {}  # the shares of the connected users, by user id
        self._tasks: dict[Conversation, asyncio.Task[None]] = {}
        self._idle: dict[Conversation, None] = {}  # in the order in which they became idle

    def start(self) -> None:
        self._listener.settimeout(0)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def stop(self, patience_s: float, *, keep_streams: bool = False) -> None:
        """Stop accepting clients, end streams and idle connections, and wait at most `patience_s` for other requests.

        The listening socket stays open, because it belongs to the supervisor. `keep_streams`: do not end streams. They
        break off when the process ends, and their clients continue with the next daemon.
        """
        self._loop.remove_reader(self._listener.fileno())
        if self._pause is not None:
            self._pause.cancel()
        kept = {task for conversation, task in self._tasks.items() if keep_streams and conversation.streaming}
        for conversation, task in self._tasks.items():
            if task not in kept and (conversation.streaming or conversation in self._idle):
                task.cancel()
        if ending := set(self._tasks.values()) - kept:
            await asyncio.wait(ending, timeout=patience_s)
        late = set(self._tasks.values()) - kept
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=LAST_WORDS_S)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_WAKE_UP):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._make_room()
                    return
                if error.errno == errno.ECONNABORTED:
                    continue
                raise
            self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        connection = Connection(sock)
        uid = connection.peer.uid
        share = self._shares.get(uid)
        if share is None:
            share = Share(self._limits, limited=uid not in self._unlimited)
        would_do = self._which_would_do(share)
        # If the limit is reached, an idle connection is ended for the new client. If none is idle, the new client is
        # refused.
        if would_do is not None and not self._end_oldest_idle(would_do):
            _refuse(sock)
            return
        share.connections += 1
        self._shares[uid] = share
        conversation = Conversation(
            connection,
            self._served,
            self._limits,
            share,
            on_idle=self._note_idle,
            on_busy=self._note_busy,
        )
        self._idle[conversation] = None
        task = self._loop.create_task(conversation.serve())
        self._tasks[conversation] = task
        # Not in a `finally` of the task: a task that is cancelled before its first step never enters its `try`.
        task.add_done_callback(functools.partial(self._forget, conversation, connection))

    def _which_would_do(self, share: Share) -> Callable[[Share], bool] | None:
        """Return None if a client of the user with `share` can be accepted at once. Otherwise return a test of shares:
        an idle connection whose share passes the test may be ended for the new client.
        """
        limits = self._limits
        if share.limited and share.connections >= limits.connections_of_user:
            return lambda other: other is share
        taken = sum(each.connections for each in self._shares.values() if each.limited)
        if share.limited and taken >= limits.connections - limits.connections_of_user:
            return lambda other: other.limited
        return (lambda _: True) if len(self._tasks) >= limits.connections else None

    def _forget(self, conversation: Conversation, connection: Connection, task: asyncio.Task[None]) -> None:
        connection.close()
        conversation.share.connections -= 1
        if not conversation.share.connections:
            del self._shares[connection.peer.uid]
        self._idle.pop(conversation, None)
        del self._tasks[conversation]
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug: it is logged, and must not end the server
            log_bug(error, "a connection")

    def _note_idle(self, conversation: Conversation) -> None:
        self._idle[conversation] = None

    def _note_busy(self, conversation: Conversation) -> None:
        self._idle.pop(conversation, None)

    def _end_oldest_idle(self, would_do: Callable[[Share], bool] = lambda _: True) -> bool:
        """Of the idle connections whose share passes the test `would_do`, end the one that has been idle for longest.
        Connections of root and of the home's owner are ended last. Returns False if no connection was ended.
        """
        for limited in (True, False):
            for oldest in self._idle:
                if oldest.share.limited == limited and would_do(oldest.share):
                    del self._idle[oldest]
                    self._tasks[oldest].cancel()
                    return True
        return False

    def _make_room(self) -> None:
        """Handle a lack of file descriptors: end an idle connection, and accept no client for ACCEPT_PAUSE_S. Accepting
        again at once would be a busy loop, because the listening socket stays readable.
        """
        self._end_oldest_idle()
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self.start)


def _refuse(sock: socket.socket) -> None:
    """Answer 503 to a client beyond the limits, without reading a request, and close its connection."""
    next_step = "end some clients, such as attached terminals"
    problem = StateConflict("serve", "one more client", _TOO_MANY, next_step, code="too-many-clients")
    with sock, contextlib.suppress(OSError):
        sock.send(closing_answer(503, problem), socket.MSG_DONTWAIT)
