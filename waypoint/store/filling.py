"""Writing the parts of long files to their places, by several threads: one reads while another one waits for the disk,
and hashing and decompressing release Python's lock.
"""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from queue import LifoQueue

from waypoint.linux.storage.files import write_all_at
from waypoint.store import trees
from waypoint.store.entries import Row
from waypoint.store.store import Reader

_THREADS = 2
_STEP_BYTES = 2 << 20
_MANY_BYTES = 4 << 20
"""Shorter files are not worth it."""


class Filling:
    """Writes content from the store. Of one thread; close it."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._executor: ThreadPoolExecutor | None = None
        self._idle: LifoQueue[Reader] = LifoQueue()

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()
            while not self._idle.empty():
                reader = self._idle.get()
                reader.close()
                reader.index.close()

    def write(self, fd: int, rows: Sequence[Row]) -> None:
        """Write the parts of a file, which is empty. Raises StoreDamaged, OSError."""
        if sum(length for _, length in rows) < _MANY_BYTES:
            _write(self.reader, fd, 0, rows)
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(_THREADS)
            for _ in range(_THREADS):
                self._idle.put(self.reader.another())
        waiting = [self._executor.submit(self._step, fd, place, step) for place, step in _steps(rows)]
        _, left = wait(waiting, return_when=FIRST_EXCEPTION)
        for future in left:
            future.cancel()
        wait(left)  # they use `fd`
        for future in waiting:
            if not future.cancelled():
                future.result()

    def _step(self, fd: int, place: int, rows: Sequence[Row]) -> None:
        reader = self._idle.get()
        try:
            _write(reader, fd, place, rows)
        finally:
            self._idle.put(reader)


def _write(reader: Reader, fd: int, place: int, rows: Sequence[Row]) -> None:
    """Write consecutive parts, the first of them at `place`."""
    parts = trees.read_parts(reader, rows)
    for digest, length in rows:
        if digest is not None:
            write_all_at(fd, next(parts), place)
        place += length


def _steps(rows: Sequence[Row]) -> Iterator[tuple[int, list[Row]]]:
    ends = itertools.accumulate(length for _, length in rows)
    placed = [(end - length, (digest, length)) for end, (digest, length) in zip(ends, rows, strict=True)]
    for _, group in itertools.groupby(placed, lambda one: one[0] // _STEP_BYTES):
        step = list(group)
        yield step[0][0], [row for _, row in step]
