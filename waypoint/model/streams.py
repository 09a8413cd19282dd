"""The two ends of a client's stream, as the session sees them. The daemon's connection is the real implementation.

Kinds of frames are those of docs/protocol.md, section 2.
"""

from typing import NamedTuple, Protocol


class Frame(NamedTuple):
    """One frame from a client: kind `i`, `w` or `k`."""

    kind: str
    payload: bytes


class Inlet(Protocol):
    """What one client sends, in order."""

    async def receive(self) -> Frame | None:
        """The next frame; None when the client is gone (closed, or broke the protocol). Safe to cancel: no frame is
        lost.
        """
        ...


class Outlet(Protocol):
    """Where the frames for one client go. Each call returns when the socket has taken the bytes: this is the
    back-pressure.
    """

    async def output(self, data: bytes | memoryview) -> None:
        """An `o` frame (split by the implementation if over 1 MiB). Raises ConnectionError when the client is gone."""
        ...

    async def errors(self, data: bytes | memoryview) -> None:
        """An `e` frame."""
        ...

    async def note(self, facts: dict[str, object]) -> None:
        """An `n` frame."""
        ...
