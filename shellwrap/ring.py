"""The scrollback ring: a mapped file with the last megabytes of a terminal's output, which survives its writer's death.

docs/protocol.md, section 4, has the format. One process writes at a time; others may map the file and read it.

Output is read from the terminal straight into the mapping. Reading removes the bytes from the kernel, so a writer that
is killed between the read and the update of the header would lose them. Therefore the space after `end` is filled with
BLANK before each read. In a ring found after a crash, bytes there that are not BLANK were read but not counted; `open`
counts them. BLANK never occurs in UTF-8. Only binary output that ends in BLANK at the moment of a crash loses its last
bytes.
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
_COMPARE_CHUNK = 1 << 10  # how many bytes are compared with BLANK at a time

# Positions in the header, in 8-byte words.
_SIZE, _END, _FLOOR, _MODES, _ALTERNATE = 1, 2, 3, 4, 5


class Ring:
    """An open ring. A position is a byte's number in the terminal's output since the session's start."""

    def __init__(self, mapping: mmap.mmap) -> None:
        """Use `create` or `open`."""
        if sys.byteorder != "little":  # the header is little endian and written in place
            raise RuntimeError("the ring needs a little-endian machine")
        self._mapping = mapping
        whole = memoryview(mapping)
        self._words = whole[:HEADER_SIZE].cast("Q")
        self._bytes = whole[HEADER_SIZE:]
        self.size: int = self._words[_SIZE]
        # Most bytes that one system call reads. A read of a terminal mostly returns 4095 bytes, but up to 64 KiB if the
        # kernel refills the terminal's buffer while it copies.
        self.read_max = min(self.size // 8, 1 << 16)
        # Twice as much as one read needs is blanked at a time, for half as many fills.
        self._ahead = 2 * self.read_max
        self.capacity = self.size - self._ahead
        self._fill = bytes([BLANK]) * self._ahead
        self._end: int = self._words[_END]
        self._blank_until = self._end

    @classmethod
    def create(cls, path: str, size: int = DEFAULT_SIZE) -> "Ring":
        """Create the file (mode 0600), allocate its whole disk space and map it.

        `size`: bytes of data, a power of two, at least SMALLEST_SIZE; otherwise ValueError is raised. Raises
        FileExistsError, or OSError such as ENOSPC; the file is removed then.
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
        mapping[: len(MAGIC)] = MAGIC  # last: a file without MAGIC is not a ring yet
        return ring

    @classmethod
    def open(cls, path: str, *, private: bool = False) -> "Ring":
        """Map an existing ring as its next writer. Bytes that the last writer read but did not count are counted now.
        `private`: the file stays as it is; changes are made in this process's memory only.

        Raises FileNotFoundError, or ValueError if the file is not a complete ring.
        """
        fd = os.open(path, (os.O_RDONLY if private else os.O_RDWR) | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            length = os.fstat(fd).st_size
            head = os.pread(fd, 16, 0)
            size = int.from_bytes(head[8:], "little")
            if head[:8] != MAGIC or length != HEADER_SIZE + size or size < SMALLEST_SIZE or size & (size - 1):
                raise ValueError(f"{path} is not a terminal's ring")
            ring = cls(mmap.mmap(fd, length, access=mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE))
            ring._count_uncounted(fd)
        finally:
            os.close(fd)
        return ring

    @property
    def end(self) -> int:
        """The position after the last byte: how many bytes were written since the session's start."""
        return self._end

    @property
    def start(self) -> int:
        """The position of the oldest byte in the ring."""
        return max(0, self._end - self.capacity)

    @property
    def floor(self) -> int | None:
        """The position from which on bytes may not be overwritten; None if all bytes may."""
        floor: int = self._words[_FLOOR]
        return None if floor == NO_FLOOR else floor

    @floor.setter
    def floor(self, position: int | None) -> None:
        self._words[_FLOOR] = NO_FLOOR if position is None else position

    @property
    def room(self) -> int:
        """How many bytes can be read into the ring without overwriting the byte at the floor."""
        floor: int = self._words[_FLOOR]
        return self.capacity if floor == NO_FLOOR else max(0, floor + self.capacity - self._end)

    @property
    def modes(self) -> int:
        """The modes that programs have switched on in the terminal, as bits of shellwrap.modes.

        They are stored because the sequences that switched them on may have been overwritten.
        """
        modes: int = self._words[_MODES]
        return modes

    @modes.setter
    def modes(self, bits: int) -> None:
        self._words[_MODES] = bits

    @property
    def alternate_from(self) -> int:
        """The position at which the alternate screen was last entered."""
        position: int = self._words[_ALTERNATE]
        return position

    @alternate_from.setter
    def alternate_from(self, position: int) -> None:
        self._words[_ALTERNATE] = position

    def read_from(self, fd: int, budget: int = 1 << 18, more: Callable[[int], bool] = lambda _: True) -> int:
        """Read from the non-blocking `fd` until it is empty, `budget` bytes were read, or there is no room.

        `more`: called after each read with the number of its bytes; False ends the reading. Returns the number of all
        bytes. Raises EOFError if this call has read nothing and the stream has ended (for a terminal: EIO, no process
        has its slave open).
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
        """Write `data`, which did not come from a terminal. The floor is ignored, so `data` should be short."""
        rest = memoryview(data)
        while rest:
            count = 0
            for part in self._space(min(len(rest), self.read_max)):
                part[:] = rest[count : count + len(part)]
                count += len(part)
            self._advance(count)
            rest = rest[count:]

    def save(self, path: str, more: bytes = b"") -> int:
        """Write a copy of the ring to the new file `path` (mode 0600), with `more` appended and without a floor.

        Returns the copy's size on disk: the part of the ring that was never written to takes no space. Raises
        FileExistsError, or OSError such as ENOSPC; an incomplete file is left then.
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
        """At most `limit` bytes from `position`, without copying: fewer before the ring's wrap-around, none at `end`.

        The view is valid until the bytes are overwritten: the next read may do so unless a floor protects the bytes.
        Raises LookupError if `position` is before `start` or after `end`.
        """
        if not self.start <= position <= self._end:
            raise LookupError(f"byte {position} is not among {self.start}..{self._end}")
        at = position % self.size
        return self._bytes[at : at + min(limit, self._end - position, self.size - at)].toreadonly()

    def copy(self, position: int, stop: int) -> bytes:
        """The bytes from `position` up to (not including) `stop`. Raises LookupError if the ring lacks one of them."""
        parts = []
        while position < stop:
            part = self.view(position, stop - position)
            if not part:
                raise LookupError(f"byte {stop} is not there yet, the end is {self._end}")
            parts.append(bytes(part))
            position += len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Unmap the file. While views of the ring exist, the mapping stays until the last one is released."""
        self._words.release()
        self._bytes.release()
        with contextlib.suppress(BufferError):  # a view exists
            self._mapping.close()

    def _space(self, count: int) -> list[memoryview]:
        at = self._end % self.size
        if at + count <= self.size:
            return [self._bytes[at : at + count]]
        return [self._bytes[at:], self._bytes[: at + count - self.size]]

    def _advance(self, count: int) -> None:
        self._end += count
        if self._blank_until < self._end + self.read_max:
            self._blank()  # before the header's update: after a crash no old bytes may follow the new end
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
        """Count the bytes after `end` that are not BLANK. `fd`: the ring's file.

        The bytes are read by pread(2), as touching them in the mapping would cause a page fault for each page.
        """
        at = self._end % self.size
        ahead = os.pread(fd, min(self._ahead, self.size - at), HEADER_SIZE + at)
        ahead += os.pread(fd, self._ahead - len(ahead), HEADER_SIZE)
        blank = 0  # how many bytes are blank already; blanking them again would touch each of their pages
        while blank < len(ahead) and ahead.startswith(self._fill[:_COMPARE_CHUNK], blank):
            blank += _COMPARE_CHUNK
        if blank >= self.read_max:
            self._blank_until = self._end + blank
            return
        self._blank_until = self._end
        self._advance(len(ahead[: self.read_max].rstrip(self._fill[:1])))


def copy_ring(source: str, path: str) -> None:
    """Copy the ring file `source`, which must have no floor, to the new file `path`, and allocate its whole disk space.

    Raises FileExistsError, or OSError such as ENOSPC; an incomplete file is left then.
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
    """The offset at or after `place` at which the next data of a file with holes begins; `length` if there is none."""
    try:
        return os.lseek(fd, place, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return length
