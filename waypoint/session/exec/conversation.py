"""One exchange with the shell's hooks: what they say to one request, told by its id and nonce from everything else on
the terminal.
"""

import asyncio
import contextlib
from types import TracebackType

from shellwrap.marks import Mark
from waypoint.session.terminal.terminal import Terminal


class Conversation:
    """Hears the marks of one request from byte `position` of the terminal's output on. Use as a context manager."""

    def __init__(self, terminal: Terminal, ident: str, nonce: str, position: int) -> None:
        self.ident = ident
        self.nonce = nonce
        self._terminal = terminal
        self._heard: dict[str, Mark] = {}
        self._news = asyncio.Event()
        self._interrupted = False
        for mark in terminal.marks(position):
            self._hear(mark)

    def __enter__(self) -> "Conversation":
        self._terminal.on_mark.append(self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._terminal.on_mark.remove(self._hear)

    def heard(self, *kinds: str) -> Mark | None:
        """The first of `kinds` that was said; of several of one kind the last."""
        return next((self._heard[kind] for kind in kinds if kind in self._heard), None)

    def forget(self, *kinds: str) -> None:
        """As if they had not been said: before asking again."""
        for kind in kinds:
            self._heard.pop(kind, None)

    async def wait(self, *kinds: str, timeout_s: float) -> Mark | None:
        """The first of `kinds` that was or will be said; None after `timeout_s`, or when `interrupt` is called."""
        self._interrupted = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.heard(*kinds) is None and not self._interrupted:
                    self._news.clear()
                    await self._news.wait()
        return self.heard(*kinds)

    def interrupt(self) -> None:
        """Make everyone who waits look at something else."""
        self._interrupted = True
        self._news.set()

    def _hear(self, mark: Mark) -> None:
        if mark.fields[:2] == (self.ident, self.nonce):
            self._heard[mark.kind] = mark
            self._news.set()
