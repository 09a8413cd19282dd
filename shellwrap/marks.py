"""Marks: what the shell's hooks say to the daemon, as escape sequences in the terminal's output. Their meaning:
docs/protocol.md, 3.

Terminals ignore them (OSC with a number nobody uses). Scanning must keep up with floods, so it is a search for the
prefix and nothing else; only where the prefix is found does an expression look closer.
"""

import re
from typing import NamedTuple

PREFIX = b"\x1b]7717;"
KEY = b"\x1b[7717~"
# A candidate that has not ended within so many bytes is output like any other. Longer than any mark that is ever
# written.
LONGEST = 1024
_MARK = re.compile(rb"\x1b\]7717;([A-Z])((?:;[ -:<-~]*)*)\x07")
_BEGUN = re.compile(rb"\x1b\]7717;[ -~]*\Z")


class Mark(NamedTuple):
    """One mark, from byte `start` up to (not including) byte `end`. Its fields are only words: whoever cares checks
    id and nonce.
    """

    kind: str
    fields: tuple[str, ...]
    start: int
    end: int


def format_mark(kind: str, *fields: str) -> bytes:
    """The bytes of a mark. The fields must be printable ASCII without semicolons."""
    return b"\x1b]7717;" + ";".join((kind, *fields)).encode("ascii") + b"\x07"


class MarkScanner:
    """Finds marks in a stream that comes in arbitrary pieces."""

    def __init__(self, position: int = 0) -> None:
        """`position`: the number of the first byte that will be fed."""
        self._carry = b""
        self.position = position

    @property
    def settled(self) -> int:
        """Bytes before this position are in no unfinished mark."""
        return self.position - len(self._carry)

    def feed(self, data: bytes) -> list[Mark]:
        """The marks that end in `data`, in order."""
        self.position += len(data)
        if self._carry:
            data = self._carry + data
        base = self.position - len(data)
        marks = []
        at = data.find(PREFIX) if b"\x1b" in data else -1
        while at >= 0:
            match = _MARK.match(data, at, at + LONGEST)
            if match:
                fields = tuple(match[2].decode("ascii").split(";")[1:])
                marks.append(Mark(match[1].decode("ascii"), fields, base + at, base + match.end()))
            elif unfinished(data, at):
                break
            at = data.find(PREFIX, match.end() if match else at + 1)
        self._carry = data[at:] if at >= 0 else data[partial_prefix(data) :]
        return marks


def unfinished(data: bytes, at: int) -> bool:
    """True if the prefix at `at` may still become a mark when more bytes come."""
    return len(data) - at < LONGEST and _BEGUN.match(data, at) is not None


def partial_prefix(data: bytes) -> int:
    """Where a prefix begins that the end of `data` cuts; the length of `data` if there is none."""
    at = data.rfind(PREFIX[:1], max(0, len(data) - len(PREFIX) + 1))
    return at if at >= 0 and PREFIX.startswith(data[at:]) else len(data)
