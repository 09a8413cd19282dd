"""Bounded output: the beginning and the end of a long output, and its rest, page by page, by a cursor."""

import codecs
import secrets
import tempfile
import threading
from collections import OrderedDict
from typing import IO

from waypoint.agents.mcp.results import Output, Page
from waypoint.model.errors import UnknownName

DEFAULT_BYTES, MOST_BYTES = 16 << 10, 1 << 20  # of output in one result
KEPT_BYTES = 32 << 20  # of one output
ALL_KEPT_BYTES, MOST_KEPT = 256 << 20, 200  # of all outputs


class Kept:
    """The beginning of one output, in a file without a name. `size`: bytes in the file; `lost`: bytes after these."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the output is dropped
        self.size = self.lost = 0

    def add(self, data: bytes | memoryview) -> None:
        part = data[: KEPT_BYTES - self.size]
        self._file.write(part)
        self.size += len(part)
        self.lost += len(data) - len(part)

    def read(self, start: int, size: int) -> bytes:
        self._file.seek(start)
        return self._file.read(size)

    def close(self) -> None:
        self._file.close()


class Outputs:
    """The outputs that cursors point into. The oldest are dropped when there are more than MOST_KEPT, or when they take
    more than ALL_KEPT_BYTES.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, kept: Kept, offset: int) -> str:
        """Keep an output; return a cursor that points to `offset`."""
        key = secrets.token_hex(8)
        with self._lock:
            self._kept[key] = kept
            while len(self._kept) > MOST_KEPT or self._size() > max(ALL_KEPT_BYTES, kept.size):
                self._kept.popitem(last=False)[1].close()
        return f"{key}-{offset}"

    def _size(self) -> int:
        return sum(one.size for one in self._kept.values())

    def page(self, cursor: str, max_bytes: int) -> Page:
        """The output from `cursor` on. Raises UnknownName if the cursor is unknown or its output was dropped."""
        key, _, offset = cursor.partition("-")
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or not (offset.isascii() and offset.isdigit() and len(offset) <= 12):
                said = "no output has it, or the output was dropped because newer outputs need its place"
                raise UnknownName("read on from", f"cursor {cursor[:60]}", said, "run the command again")
            self._kept.move_to_end(key)
            start = int(offset)
            data = kept.read(start, max_bytes)
        text, used = decoded(data, is_end=start + len(data) >= kept.size)
        end = start + used
        more = f"{key}-{end}" if end < kept.size else None
        return Page(text=text, cursor=more, left_bytes=max(kept.size - end, 0), lost_bytes=kept.lost)


class Recorder:
    """Receives one output. `finish` returns what of it fits in a result."""

    def __init__(self, outputs: Outputs, max_bytes: int) -> None:
        self._outputs, self._max_bytes = outputs, max_bytes
        self._half = max_bytes // 2
        self._begun, self._tail = bytearray(), bytearray()
        self._kept: Kept | None = None
        self.total = 0

    def __call__(self, view: memoryview) -> None:
        self.total += len(view)
        if self._kept is None:
            self._begun += view
            if self.total <= self._max_bytes:
                return
            self._kept = Kept()
            view = memoryview(bytes(self._begun))
            del self._begun[self._half :]
        self._kept.add(view)
        self._tail += view[-self._half :]
        del self._tail[: -self._half]

    @property
    def last_line(self) -> str:
        """The last line so far, as far as it is kept."""
        lines = bytes(self._tail or self._begun)[-400:].decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "").strip()

    def finish(self) -> Output:
        if self._kept is None:
            return Output(text=self._begun.decode(errors="replace"), total_bytes=self.total)
        text, used = decoded(bytes(self._begun), is_end=False)
        tail = bytes(self._tail)
        tail = tail[next((place for place in range(min(4, len(tail))) if tail[place] & 0xC0 != 0x80), 0) :]
        cursor = self._outputs.keep(self._kept, used)
        left = self.total - used - len(tail)
        return Output(
            text=text,
            total_bytes=self.total,
            omitted_bytes=left,
            tail=tail.decode(errors="replace"),
            cursor=cursor,
        )


def decoded(data: bytes, *, is_end: bool) -> tuple[str, int]:
    """The bytes as text, and how many bytes the text stands for: a character that is cut at the end is left out, unless
    `is_end`. Bytes that are not UTF-8 are replaced.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=is_end)
    return text, len(data) - len(decoder.getstate()[0])
