"""Marks: escape sequences in the terminal's output by which the shell's hooks report to the daemon.

docs/protocol.md, section 3, has their meanings. A mark is an OSC sequence with an unused number, so terminals ignore
it. The scanner must keep up with fast output: it searches for the prefix, and matches a regular expression only there.
"""

import re
from typing import NamedTuple

PREFIX = b"\x1b]7717;"
KEY = b"\x1b[7717~"
ACCEPT = b"\x1b[7718~"
# Most bytes of a mark; the hooks write shorter ones. A prefix without an end within so many bytes is ordinary output.
LONGEST = 1024
_MARK = re.compile(rb"\x1b\]7717;([A-Z])((?:;[ -:<-~]*)*)\x07")
_BEGUN = re.compile(rb"\x1b\]7717;[ -~]*\Z")


class Mark(NamedTuple):
    """One mark, from byte `start` up to (not including) byte `end` of the stream.

    Any program can print a mark, so the reader of a mark must check the id and nonce in its fields.
    """

    kind: str
    fields: tuple[str, ...]
    start: int
    end: int


def format_mark(kind: str, *fields: str) -> bytes:
    """The bytes of a mark. The fields must be printable ASCII without semicolons."""
    return b"\x1b]7717;" + ";".join((kind, *fields)).encode("ascii") + b"\x07"


class MarkScanner:
    """Finds marks in a stream of bytes that is fed in pieces of any size."""

    def __init__(self, position: int = 0) -> None:
        """`position`: the stream position of the first byte that will be fed."""
        self._carry = b""
        self.position = position

    @property
    def settled(self) -> int:
        """The position up to which all marks are found: from there on, the bytes may belong to an unfinished mark."""
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
    """The index at which the end of `data` may be the beginning of PREFIX; the length of `data` if it is not."""
    at = data.rfind(PREFIX[:1], max(0, len(data) - len(PREFIX) + 1))
    return at if at >= 0 and PREFIX.startswith(data[at:]) else len(data)
