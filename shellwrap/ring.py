"""The scrollback ring: a mapped file that holds the last megabytes a terminal printed, and survives its reader's
death.

The format is in docs/protocol.md, section 4. One writer at a time; readers in other processes may map the same file.

Bytes come straight from the terminal into the mapping. Whoever reads a terminal takes the bytes out of the kernel, so
a reader killed between the system call and the header's update would lose them. Hence the space ahead of `end` is
filled with BLANK before the call: what differs from it in a ring found after a crash was read but not counted, and
`open` counts it. BLANK never occurs in UTF-8; binary output that ends in it at the very moment of a crash loses those
last bytes.
"""

import contextlib
import errno
import mmap
import os
import sys
from collections.abc import Callable

DEFAULT_SIZE = 2 << 20
SMALLEST_SIZE = 1 << 14
HEADER_SIZE = 4096
MAGIC = b"WPRING1\0"
NO_FLOOR = 2**64 - 1
BLANK = 0xC1

_COPY_CHUNK = 1 << 16
_LOOK = 1 << 10  # of what may be blank, at a time

# Positions in the header, in 8-byte words.
_SIZE, _END, _FLOOR, _MODES, _ALTERNATE = 1, 2, 3, 4, 5


class Ring:
    """Positions are byte numbers since the terminal's start; they only grow."""

    def __init__(self, mapping: mmap.mmap) -> None:
        """Use `create` or `open`."""
        if sys.byteorder != "little":  # the header is little endian and written in place
            raise RuntimeError("the ring needs a little-endian machine")
        self._mapping = mapping
        whole = memoryview(mapping)
        self._words = whole[:HEADER_SIZE].cast("Q")
        self._bytes = whole[HEADER_SIZE:]
        self.size: int = self._words[_SIZE]
        # The most one system call reads. A terminal mostly gives 4095 bytes, but up to 64 KiB when the kernel refills
        # while it copies.
        self.read_max = min(self.size // 8, 1 << 16)
        # Blanking twice as much at a time as one read needs halves the number of fills.
        self._ahead = 2 * self.read_max
        self.capacity = self.size - self._ahead
        self._fill = bytes([BLANK]) * self._ahead
        self._end: int = self._words[_END]
        self._blank_until = self._end

    @classmethod
    def create(cls, path: str, size: int = DEFAULT_SIZE) -> "Ring":
        """Make the file (mode 0600) with all its space and map it.

        `size`: bytes of data, a power of two, at least SMALLEST_SIZE. Raises FileExistsError, or OSError (ENOSPC:
        nothing is left behind).
        """
        if size < SMALLEST_SIZE or size & (size - 1):
            raise ValueError(f"the size of a ring is a power of two from {SMALLEST_SIZE} up, not {size}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, HEADER_SIZE + size)
            mapping = mmap.mmap(fd, HEADER_SIZE + size)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        words = memoryview(mapping)[:HEADER_SIZE].cast("Q")
        words[_SIZE], words[_FLOOR] = size, NO_FLOOR
        words.release()
        ring = cls(mapping)
        ring._blank()
        mapping[: len(MAGIC)] = MAGIC  # last: a file without it is not a ring yet
        return ring

    @classmethod
    def open(cls, path: str) -> "Ring":
        """Map an existing ring as its next writer; bytes that the last writer read but did not count are counted now.

        Raises FileNotFoundError, or ValueError if the file is not a whole ring.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            length = os.fstat(fd).st_size
            head = os.pread(fd, 16, 0)
            size = int.from_bytes(head[8:], "little")
            if head[:8] != MAGIC or length != HEADER_SIZE + size or size < SMALLEST_SIZE or size & (size - 1):
                raise ValueError(f"{path} is not a terminal's ring")
            ring = cls(mmap.mmap(fd, length))
            ring._count_uncounted(fd)
        finally:
            os.close(fd)
        return ring

    @property
    def end(self) -> int:
        """How many bytes were ever written."""
        return self._end

    @property
    def start(self) -> int:
        """The oldest byte that is still there."""
        return max(0, self._end - self.capacity)

    @property
    def floor(self) -> int | None:
        """Bytes from here on may not be overwritten; None: all may."""
        floor: int = self._words[_FLOOR]
        return None if floor == NO_FLOOR else floor

    @floor.setter
    def floor(self, position: int | None) -> None:
        self._words[_FLOOR] = NO_FLOOR if position is None else position

    @property
    def room(self) -> int:
        """How many bytes `read_from` may take before it would overwrite the floor."""
        floor: int = self._words[_FLOOR]
        return self.capacity if floor == NO_FLOOR else max(0, floor + self.capacity - self._end)

    @property
    def modes(self) -> int:
        """Which modes the programs on the terminal have switched on (bits of shellwrap.modes): more than the ring's
        bytes may tell.
        """
        modes: int = self._words[_MODES]
        return modes

    @modes.setter
    def modes(self, bits: int) -> None:
        self._words[_MODES] = bits

    @property
    def alternate_from(self) -> int:
        """Where the alternate screen was last entered."""
        position: int = self._words[_ALTERNATE]
        return position

    @alternate_from.setter
    def alternate_from(self, position: int) -> None:
        self._words[_ALTERNATE] = position

    def read_from(self, fd: int, budget: int = 1 << 18, more: Callable[[int], bool] = lambda _: True) -> int:
        """Read from the non-blocking `fd` until it has no more, or about `budget` bytes, or there is no room. Returns
        how many.

        `more`: asked after each read, with its length, whether to go on. Raises EOFError at the end of the stream (for
        a terminal: EIO, nobody has it open any more), when nothing was read before it.
        """
        total = 0
        budget = min(budget, self.room)
        while total < budget:
            try:
                count = os.readv(fd, self._space(min(budget - total, self.read_max)))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                count = 0
            if count == 0:
                if total:
                    break
                raise EOFError
            self._advance(count)
            total += count
            if not more(count):
                break
        return total

    def append(self, data: bytes) -> None:
        """Write bytes of one's own; regardless of the floor, so keep them few."""
        rest = memoryview(data)
        while rest:
            count = 0
            for part in self._space(min(len(rest), self.read_max)):
                part[:] = rest[count : count + len(part)]
                count += len(part)
            self._advance(count)
            rest = rest[count:]

    def save(self, path: str, more: bytes = b"") -> int:
        """Write a ring file (mode 0600) with the same content, `more` behind it and no floor; its size on disk.

        Raises FileExistsError, or OSError (ENOSPC). What was never written to takes no space.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, HEADER_SIZE + self.size)
            header = bytearray(self._mapping[:64])
            header[8 * _FLOOR : 8 * _FLOOR + 8] = NO_FLOOR.to_bytes(8, "little")
            used = min(self.size, self._blank_until)
            for part, place in ((header, 0), (self._bytes[:used], HEADER_SIZE)):
                if os.pwrite(fd, part, place) != len(part):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        finally:
            os.close(fd)
        if more:
            ring = Ring.open(path)
            ring.append(more)
            ring.close()
        return HEADER_SIZE + used

    def view(self, position: int, limit: int) -> memoryview:
        """At most `limit` bytes from `position`, in place: fewer at the ring's seam, none at the end.

        Valid until the bytes are overwritten: under a floor, or until the next read. Raises LookupError for bytes
        that are gone or to come.
        """
        if not self.start <= position <= self._end:
            raise LookupError(f"byte {position} is not among {self.start}..{self._end}")
        at = position % self.size
        return self._bytes[at : at + min(limit, self._end - position, self.size - at)].toreadonly()

    def copy(self, position: int, stop: int) -> bytes:
        """The bytes from `position` up to `stop`. Raises LookupError as `view`."""
        parts = []
        while position < stop:
            part = self.view(position, stop - position)
            if not part:
                raise LookupError(f"byte {stop} is not there yet, the end is {self._end}")
            parts.append(bytes(part))
            position += len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Let go of the mapping. Views that are still held keep it until they are released."""
        self._words.release()
        self._bytes.release()
        with contextlib.suppress(BufferError):  # someone's view is alive; the mapping goes with it
            self._mapping.close()

    def _space(self, count: int) -> list[memoryview]:
        at = self._end % self.size
        if at + count <= self.size:
            return [self._bytes[at : at + count]]
        return [self._bytes[at:], self._bytes[: at + count - self.size]]

    def _advance(self, count: int) -> None:
        self._end += count
        if self._blank_until < self._end + self.read_max:
            self._blank()  # before the header says so: a crash in between must not find old bytes behind the end
        self._words[_END] = self._end

    def _blank(self) -> None:
        begin = max(self._blank_until, self._end)
        count = self._end + self._ahead - begin
        at = begin % self.size
        first = min(count, self.size - at)
        self._bytes[at : at + first] = self._fill[:first]
        self._bytes[: count - first] = self._fill[: count - first]
        self._blank_until = begin + count

    def _count_uncounted(self, fd: int) -> None:
        """`fd`: of the file. It is read and not looked at, which would map page after page."""
        at = self._end % self.size
        ahead = os.pread(fd, min(self._ahead, self.size - at), HEADER_SIZE + at)
        ahead += os.pread(fd, self._ahead - len(ahead), HEADER_SIZE)
        blank = 0  # bytes of it that are: to blank them again would touch each of their pages
        while blank < len(ahead) and ahead.startswith(self._fill[:_LOOK], blank):
            blank += _LOOK
        if blank >= self.read_max:
            self._blank_until = self._end + blank
            return
        self._blank_until = self._end
        self._advance(len(ahead[: self.read_max].rstrip(self._fill[:1])))


def copy_ring(source: str, path: str) -> None:
    """Make the ring file `path` with all its space, and the content of the ring file `source`, which has no floor.

    Raises FileExistsError, or OSError (ENOSPC).
    """
    origin = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        length = os.fstat(origin).st_size
        os.posix_fallocate(fd, 0, length)
        place = 0
        while place < length:
            place = _next_data(origin, place, length)
            data = os.pread(origin, min(_COPY_CHUNK, length - place), place)
            os.pwrite(fd, data, place)
            place += len(data)
    finally:
        os.close(origin)
        os.close(fd)


def _next_data(fd: int, place: int, length: int) -> int:
    """Where the next data begins in a file with holes; `length` if there is none."""
    try:
        return os.lseek(fd, place, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return length
