"""One exchange with the shell's hooks: collects the marks that answer one request. These marks contain the request's id
and nonce, which no other output contains.
"""

import asyncio
import contextlib
from types import TracebackType

from shellwrap.marks import Mark
from waypoint.terminal.terminal import Terminal


class HookExchange:
    """Collects the marks of one request from byte `position` of the terminal's output on. Use as a context manager."""

    def __init__(self, terminal: Terminal, ident: str, nonce: str, position: int) -> None:
        self.ident = ident
        self.nonce = nonce
        self._terminal = terminal
        self._heard: dict[str, Mark] = {}
        self._news = asyncio.Event()
        self._interrupted = False
        for mark in terminal.marks(position):
            self._hear(mark)

    def __enter__(self) -> "HookExchange":
        self._terminal.on_mark.append(self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._terminal.on_mark.remove(self._hear)

    def heard(self, *kinds: str) -> Mark | None:
        """Return the received mark whose kind is the first in `kinds`, or None if no mark of these kinds was received.
        If several marks of that kind were received, return the last.
        """
        return next((self._heard[kind] for kind in kinds if kind in self._heard), None)

    def forget(self, *kinds: str) -> None:
        """Forget the marks of these kinds, so that an earlier answer is not taken for the answer to a new request."""
        for kind in kinds:
            self._heard.pop(kind, None)

    async def wait(self, *kinds: str, timeout_s: float) -> Mark | None:
        """Wait for a mark whose kind is in `kinds`, and return it. Return None after `timeout_s`, or when `interrupt`
        is called.
        """
        self._interrupted = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.heard(*kinds) is None and not self._interrupted:
                    self._news.clear()
                    await self._news.wait()
        return self.heard(*kinds)

    def interrupt(self) -> None:
        """Make a running `wait` return at once."""
        self._interrupted = True
        self._news.set()

    def _hear(self, mark: Mark) -> None:
        if mark.fields[:2] == (self.ident, self.nonce):
            self._heard[mark.kind] = mark
            self._news.set()
