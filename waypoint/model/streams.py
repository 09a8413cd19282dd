"""Interfaces of the two directions of a client's stream. A session is written against them; the daemon implements them.

docs/protocol.md, section 2, has the kinds of frames.
"""

from typing import NamedTuple, Protocol


class Frame(NamedTuple):
    """One frame from a client: kind `i` (input), `w` (window size) or `k` (signal)."""

    kind: str
    payload: bytes


class StreamDeserted(ConnectionError):
    """Raised by what serves a stream when it sees that the client has gone: nobody is left to be told anything."""


class Inlet(Protocol):
    """The frames that one client sends, in order."""

    async def receive(self) -> Frame | None:
        """Wait for the next frame and return it; None if the client has closed or broken the protocol.

        A cancelled call loses no frame.
        """
        ...


class Outlet(Protocol):
    """Sends frames to one client. Each call returns when the socket has taken the bytes: this is the back-pressure.

    Every method raises ConnectionError if the client is gone.
    """

    async def output(self, data: bytes | memoryview) -> None:
        """Send output as an `o` frame, or as several if `data` has more than 1 MiB."""
        ...

    async def errors(self, data: bytes | memoryview) -> None:
        """Send the output of stderr as an `e` frame."""
        ...

    async def note(self, facts: dict[str, object]) -> None:
        """Send facts about the stream as an `n` frame (JSON)."""
        ...
