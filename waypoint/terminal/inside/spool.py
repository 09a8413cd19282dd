"""Serves the requests of `waypoint` commands inside a session (docs/protocol.md, section 3).

A session can make its files slow to read, and can send requests without end. The event loop and other sessions must not
wait for this. So a spool reads files in its own thread, does nothing for a while after each check of the folder, limits
how many requests it serves at a time and in a second, and never blocks in a write.
"""

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from waypoint.model import plainjson
from waypoint.model.errors import Failed, UsageProblem, WaypointError
from waypoint.model.verbs.inside import wants_json
from waypoint.terminal.hooks.run_folder import RunFolder
from waypoint.terminal.inside.inbox import MAX_REQUEST_BYTES, Inbox, TakenRequest

T = TypeVar("T")

BELL = "bell"
_BELL_BYTES = 1 << 16  # how many bytes of the FIFO are read at a time: the usual capacity of a pipe
_MAX_ANSWER_BYTES = 1 << 20
_MAX_ANSWERED = 64  # how many captured or interrupted requests are answered when the spool opens
_TAKE_S = 10.0  # how many seconds a client may pause while it reads an answer that is longer than its FIFO's capacity
_MAX_SERVED = 8
"""How many requests of a session are served at a time. Further requests wait, since the daemon serves all sessions."""
_PLACES = 2
"""How many requests of a session are carried out at a time. The others of _MAX_SERVED wait, so a session does not use
up the daemon's threads.
"""
_BURST, _PER_S = 64, 20.0
"""A session may make _BURST requests at once. Beyond that, _PER_S requests a second are served."""
_REST = 20.0
"""After a check of the folder, the spool does nothing for this many times the processor time that the check took, even
if the session writes into the FIFO `bell` again.
"""
_AFTER_FAILURE_S = 1.0  # seconds until a folder that could not be read is read again
# A client opens its answer FIFO after it has written its request. Until then the daemon tries to open the FIFO, at
# intervals that grow from the first to the last value, for _OPEN_S seconds in total.
_FIRST_PAUSE_S, _LAST_PAUSE_S, _OPEN_S = 0.005, 0.1, 2.0


class Answer(NamedTuple):
    """The answer to a request: what the client prints, and its exit status."""

    exit: int
    text: str


def refusal(words: Sequence[str], error: WaypointError) -> Answer:
    """Return the answer to the request `words`, which failed with `error`: a text, or one JSON value with `--json`."""
    if wants_json(words):
        return Answer(error.exit_code, f"{plainjson.encode({'error': error.to_json()})}\n")
    return Answer(error.exit_code, f"waypoint: {error}\n")


OnRequest = Callable[[list[str]], Awaitable[Answer]]


class Spool:
    """Serves the requests of one session. A client announces a request by a byte in the FIFO `bell`, so an idle session
    costs nothing.

    `moving`: the lock to hold while a request is served that moves the session's branch. `places`: one is to be held
    while a request is served.
    """

    def __init__(self, folder: RunFolder, tidy: Callable[[RunFolder], None]) -> None:
        """`tidy`: removes old files from the folder. It is called once, in the spool's thread, and may take long, since
        only the session's own requests wait for it.
        """
        self._folder = folder
        self._tidy = tidy
        self._bell = -1
        self._on_request: OnRequest | None = None
        self._attending: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_served = asyncio.Event()
        self._pace = _Pace()
        self.moving = asyncio.Lock()
        self.places = asyncio.Semaphore(_PLACES)

    def open(self, on_request: OnRequest, restored: Answer | None = None) -> None:
        """Begin to serve requests. A request that an earlier daemon had begun to serve is answered with a failure.

        `restored`: if the session was restored from a capture, the answer to every captured request
        (`inbox.mark_captured`).
        """
        self._on_request = on_request
        self._bell = self._folder.open_fifo(BELL)
        # The inbox gets its own descriptor, because the session's may be closed while the thread still works.
        self._thread = InboxThread(Inbox(RunFolder(os.dup(self._folder.fd), self._folder.spare)))
        self._attending = asyncio.ensure_future(self._begin_with(restored))

    def close(self) -> None:
        """Stop serving. The next daemon answers the clients whose requests are being served."""
        if self._bell < 0:
            return
        asyncio.get_running_loop().remove_reader(self._bell)
        os.close(self._bell)
        self._bell = -1
        thread = self._thread
        tasks = [task for task in (self._attending, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        asyncio.gather(*tasks, return_exceptions=True).add_done_callback(lambda _: thread.close())

    def reopen(self) -> None:
        """Serve the requests in the folder that has replaced a removed one. Raises OSError."""
        if self._bell >= 0 and self._on_request is not None:
            self.close()
            self.open(self._on_request)

    def _listen(self) -> None:
        if self._bell >= 0:
            asyncio.get_running_loop().add_reader(self._bell, self._rung)

    def _rung(self) -> None:
        asyncio.get_running_loop().remove_reader(self._bell)
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell, _BELL_BYTES)
        self._attending = asyncio.ensure_future(self._attend())

    async def _begin_with(self, restored: Answer | None) -> None:
        """Answer the clients that were waiting when the session was captured or the earlier daemon died. Then serve new
        requests.
        """
        with contextlib.suppress(OSError):  # the session's user has removed the folder
            if restored is not None:
                for ident in (await self._thread.do(lambda inbox: inbox.waiting("c")))[:_MAX_ANSWERED]:
                    self._begin(self._give(ident, restored))
            for ident in (await self._thread.do(lambda inbox: inbox.waiting("w")))[:_MAX_ANSWERED]:
                begun = await self._thread.do(functools.partial(Inbox.read_begun, ident=ident))
                self._begin(self._give(ident, _cut_off(begun)))
            await self._thread.do(lambda inbox: self._tidy(inbox.folder))
        await self._attend()

    async def _attend(self) -> None:
        """Serve the waiting requests. Then, also after an error, do nothing for a while before waiting for the next
        byte in `bell`.
        """
        rest_s = _AFTER_FAILURE_S
        try:
            try:
                rest_s = await self._serve_waiting()
            except OSError:  # a temporary error such as EMFILE, or the session's user has removed the folder
                await asyncio.sleep(_AFTER_FAILURE_S)
                with contextlib.suppress(OSError):
                    rest_s = await self._serve_waiting()
        finally:
            asyncio.get_running_loop().call_later(rest_s, self._listen)

    async def _serve_waiting(self) -> float:
        """Begin to serve all waiting requests, as fast as the limits above allow. Return how many seconds to wait
        before the next check of the folder.
        """
        cost_s, are_more = 0.0, True
        while are_more:
            await asyncio.sleep(_REST * cost_s)
            while (places := _MAX_SERVED - len(self._tasks)) <= 0:
                self._one_served.clear()
                await self._one_served.wait()
            requests, are_more, cost_s = await self._thread.do(functools.partial(Inbox.take, most=places))
            for request in requests:
                self._begin(self._serve(request))
            await self._pace.keep(len(requests))
        return _REST * cost_s

    async def _serve(self, request: TakenRequest) -> None:
        assert self._on_request is not None
        words: list[str] = []
        try:
            if isinstance(request.text, OSError):
                raise request.text
            words = _words(request.text)
            _check_length(request.text)
            answer = await self._on_request(words)
        except WaypointError as error:
            answer = refusal(words, error)
        except OSError as error:
            answer = refusal(words, Failed("read", "the request", error.strerror or str(error), "try again"))
        await self._give(request.ident, answer)

    async def _give(self, ident: str, answer: Answer) -> None:
        """Write the answer into the client's FIFO when the client has opened it, then remove the request. The answer is
        discarded if the client has left, or does not open the FIFO within _OPEN_S.
        """
        data = f"{answer.exit}\n{answer.text}".encode(errors="surrogateescape")[:_MAX_ANSWER_BYTES]
        with contextlib.suppress(OSError, TimeoutError):  # the client has left, or does not read
            fd = await self._opened(ident)
            if fd is not None:
                try:
                    await _pour(fd, data)
                finally:
                    self._thread.inbox.close_answer(fd)
        with contextlib.suppress(OSError):
            await self._thread.do(lambda inbox: inbox.remove(ident))

    async def _opened(self, ident: str) -> int | None:
        """Return a descriptor of the client's FIFO, or None if the client does not open the FIFO."""
        end, pause_s = time.monotonic() + _OPEN_S, _FIRST_PAUSE_S
        while (fd := await self._thread.do(lambda inbox: inbox.open_answer(ident))) is None and time.monotonic() < end:
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LAST_PAUSE_S)
        return fd

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._one_served.set()


class InboxThread:
    """Calls functions on an inbox in one thread, one after the other. The thread exists only while a call runs or
    waits.
    """

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._threads: ThreadPoolExecutor | None = None
        self._works = 0

    async def do(self, work: Callable[[Inbox], T]) -> T:
        """Call `work` in the thread, and return or raise what `work` does. If the caller is cancelled, the call
        continues.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "inside")
        loop = asyncio.get_running_loop()

        def done(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(self._one_done)

        begun = self._threads.submit(work, self.inbox)
        self._works += 1
        begun.add_done_callback(done)
        return await asyncio.wrap_future(begun)

    def _one_done(self) -> None:
        self._works -= 1
        if not self._works and self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def close(self) -> None:
        """Close the inbox after all calls have ended."""
        threads, self._threads = self._threads or ThreadPoolExecutor(1, "inside"), None
        threads.submit(self.inbox.close)
        threads.shutdown(wait=False)


class _Pace:
    """Limits the rate of requests: _BURST at once, and _PER_S per second on average."""

    def __init__(self) -> None:
        self._paid_until = float("-inf")

    async def keep(self, count: int) -> None:
        """Count `count` requests that have begun. Return when the next request may begin."""
        now = time.monotonic()
        self._paid_until = max(self._paid_until, now - _BURST / _PER_S) + count / _PER_S
        await asyncio.sleep(max(0.0, self._paid_until - now))


def _cut_off(request: TakenRequest) -> Answer:
    """Return the answer to a request that an earlier daemon had begun to serve. The answer is text, not JSON, if the
    request cannot be read.
    """
    words = [] if isinstance(request.text, OSError) else _words(request.text)
    said = "the daemon was replaced while it carried out the request"
    return refusal(words, Failed("answer", "the request", said, "see whether it was done: waypoint op log"))


def _words(text: bytes) -> list[str]:
    """Split a request into words. A NUL ends each word. In requests from scripts of earlier versions, a newline
    does.
    """
    end = "\0" if b"\0" in text else "\n"
    words = text.decode(errors="backslashreplace")
    return words.removesuffix(end).split(end) if words else []


def _check_length(text: bytes) -> None:
    """Raise UsageProblem if the request was not read to its end."""
    if len(text) > MAX_REQUEST_BYTES:
        said = f"it is longer than {MAX_REQUEST_BYTES} bytes"
        raise UsageProblem("read", "the request", said, "shorten it, or run the command outside the session")


async def _pour(fd: int, data: bytes) -> None:
    """Write `data` into the FIFO as fast as its reader reads. Raises OSError if the reader has closed the FIFO,
    TimeoutError if it reads nothing for _TAKE_S seconds.
    """
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            writable = asyncio.Event()
            loop.add_writer(fd, writable.set)
            try:
                await asyncio.wait_for(writable.wait(), _TAKE_S)
            finally:
                loop.remove_writer(fd)
