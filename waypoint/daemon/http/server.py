"""Accepts clients on the listening socket and keeps the list of them."""

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
from waypoint.linux.calls import powers
from waypoint.linux.tasks import procfs
from waypoint.model.errors import NotAllowed, StateConflict, WaypointError
from waypoint.service.background.bugs import log_bug
from waypoint.service.shapes import Peer

ACCEPTS_PER_WAKE_UP = 64
# Seconds without accepting, when the process has no file descriptor left.
ACCEPT_PAUSE_S = 0.1
_ANOTHERS = "it is another user's own, and answers nobody else"
_BE_THAT_USER = "be that user: sudo -u USER waypoint COMMAND"
_TOO_MANY = "the daemon has as many as it takes, or as many of yours as one user may have"
# Seconds that requests get to clean up after they were cancelled, when the server stops.
LAST_WORDS_S = 1.0


class Server:
    """The HTTP server of one service. Wakes up only when a client or the service has something to do."""

    def __init__(self, listener: socket.socket, served: Served, limits: Limits) -> None:
        """Serves from the call of `start` on. To be made in the running event loop."""
        self._listener = listener
        self._served = served
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._unlimited = {0, os.geteuid()}  # a home's owner is who runs its daemon
        self._shares: dict[int, Share] = {}  # by user id: of those who are connected
        self._tasks: dict[Conversation, asyncio.Task[None]] = {}
        self._idle: dict[Conversation, None] = {}  # in the order in which they became idle

    def start(self) -> None:
        self._listener.settimeout(0)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def stop(self, patience_s: float, *, keep_streams: bool = False) -> None:
        """Accept no more, end streams and idle clients, wait for the requests under way, at most `patience_s`.

        The listening socket stays open: it is the supervisor's. `keep_streams`: streams are not ended. They break off
        when the process ends, and their clients go on with the next daemon.
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
        if not powers.is_machines() and not _is_users(connection.peer):
            if _is_further_in(connection.peer):
                connection.close()
            else:
                _turn_away(sock, 403, NotAllowed("talk to", "this daemon", _ANOTHERS, _BE_THAT_USER))
            return
        uid = connection.peer.uid
        share = self._shares.get(uid)
        if share is None:
            share = Share(self._limits, limited=uid not in self._unlimited)
        would_do = self._which_would_do(share)
        # A newcomer takes the place of an idle connection. If every place has a busy client, the newcomer is turned
        # away.
        if would_do is not None and not self._end_oldest_idle(would_do):
            _turn_away(sock, 503, StateConflict("serve", "one more client", _TOO_MANY, "end some that are attached"))
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
        # Not in a `finally` of the task: one that is cancelled before its first step never enters its `try`.
        task.add_done_callback(functools.partial(self._forget, conversation, connection))

    def _which_would_do(self, share: Share) -> Callable[[Share], bool] | None:
        """None if there is room for a newcomer, whose user's share is `share`. Otherwise a test of shares: the newcomer
        can have the place of an idle connection whose share passes the test.
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
        if error is not None:  # a client must not be able to end the server, whatever it found
            log_bug(error, "a connection")

    def _note_idle(self, conversation: Conversation) -> None:
        self._idle[conversation] = None

    def _note_busy(self, conversation: Conversation) -> None:
        self._idle.pop(conversation, None)

    def _end_oldest_idle(self, would_do: Callable[[Share], bool] = lambda _: True) -> bool:
        """End the connection that has been idle for longest, of those whose share passes the test `would_do`.
        Connections of root and of the home's owner are ended only if there is no other. Returns False if no connection
        was ended.
        """
        for limited in (True, False):
            for oldest in self._idle:
                if oldest.share.limited == limited and would_do(oldest.share):
                    del self._idle[oldest]
                    self._tasks[oldest].cancel()
                    return True
        return False

    def _make_room(self) -> None:
        """Called when the process is out of descriptors: end an idle connection, and accept no other for
        ACCEPT_PAUSE_S. To accept again at once would spin, because the listening socket stays readable.
        """
        self._end_oldest_idle()
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self.start)


def _turn_away(sock: socket.socket, status: int, problem: WaypointError) -> None:
    """Send a newcomer the answer, before it has asked for anything, and close its connection."""
    with sock, contextlib.suppress(OSError):
        sock.send(closing_answer(status, problem), socket.MSG_DONTWAIT)


def _is_users(peer: Peer) -> bool:
    """Whether a client of an ordinary user's daemon is a program of that user's on the machine."""
    return peer.uid == os.geteuid() and not _is_further_in(peer)


def _is_further_in(peer: Peer) -> bool:
    """Whether it runs in a session, of whatever daemon: in a pid namespace of its own, where it may be the same user.
    Such a one gets no answer.
    """
    try:
        return procfs.is_further_in(peer.pid)
    except OSError:  # it has ended
        return True
