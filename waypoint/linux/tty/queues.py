"""Taking the unread bytes out of a pseudo-terminal, and putting them back so that no reader can tell the difference.

The bytes between master and slave are in four places: output in the master's line discipline (4095 bytes) and before
it (16 KiB), input in the slave's line discipline (4095 bytes) and before it. Output has been processed already (OPOST),
so it is put back with OPOST off. Input in the line discipline has been echoed and edited already, so it is put back
without echo and editing. Input before the line discipline is unprocessed, and is put back there.

All processes that have the terminal open must be frozen. Sources: drivers/tty/n_tty.c, pty.c and tty_buffer.c of
Linux 6.18; ioctl_tty(2), termios(3).
"""

import contextlib
import errno
import fcntl
import os
import select
import struct
import termios
import time
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.tty import ptys
from waypoint.linux.tty.terminals import attributes, read_now, set_attributes, unread_bytes

_TIOCGPKT, _TIOCGPTN, _TIOCGETD = 0x80045438, 0x80045430, 0x5424  # asm-generic/ioctls.h
_N_TTY = 0
_IFLAG, _OFLAG, _LFLAG = 0, 1, 3  # in the attributes
_EXTPROC = 0o200000  # asm-generic/termbits.h
_FULL = 4095  # bytes that a line discipline holds (N_TTY_BUF_SIZE)
_ALMOST_FULL = 4093  # bytes from which on, with PARMRK, the line discipline takes no more
# A piece of this size fills a buffer of the kernel exactly, so that as many bytes fit in as were there before. The last
# piece can be as long as the longest buffer, since the kernel checks its limit before it allocates one.
_PIECE, _LAST_PIECE = 256, 1792
_PATIENCE_S = 1.0  # how long the kernel's worker may need to move bytes on to the line discipline
# The input flags that replace typed bytes by other bytes, and the local flags that echo typed bytes or act on them.
_CHANGES_INPUT = termios.ISTRIP | termios.INLCR | termios.IGNCR | termios.ICRNL | termios.IUCLC | termios.PARMRK
_ACTS_ON_INPUT = termios.ECHO | termios.ECHONL | termios.ISIG
_EDITS = (termios.VERASE, termios.VKILL, termios.VWERASE, termios.VLNEXT)


class Queues(NamedTuple):
    """The unread bytes of the terminal /dev/pts/`number`, and the state that belongs to them.

    `output`: for the master. `typed`: input that the slave's line discipline has processed. In line mode, a line that
    was ended by ^D ends with that character. `behind`: input that has not been processed, because the line discipline
    is full. `status`: the status of packet mode that nobody has read (TIOCPKT). `stopped`: how output was stopped:
    `call` (TCOOFF), `key` (^S), or "". `is_closed`: whether the slave was opened and is closed now.
    """

    number: int
    output: bytes = b""
    typed: bytes = b""
    behind: bytes = b""
    status: int = 0
    stopped: str = ""
    is_closed: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether a terminal that was made anew is in this state."""
        return self == Queues(self.number)


def number_of(master: int) -> int:
    """Return N of the slave /dev/pts/N. Raises OSError ENOTTY if `master` is no master, which a descriptor from another
    process need not be.
    """
    ptys.check_master(master)
    return _get_int(master, _TIOCGPTN)


def take(master: int, *, is_slave_open: bool) -> Queues | None:
    """Take all unread bytes out of the terminal. None if they stay there: the terminal has another line discipline, or
    its slave was never opened.

    `is_slave_open`: whether a process has the slave open. To open a slave that was never opened would change what the
    master's reader gets.
    """
    number = number_of(master)
    is_closed = bool(_events(master) & select.POLLHUP)
    with contextlib.ExitStack() as opened:
        try:
            if not (is_closed or is_slave_open) or _get_int(master, _TIOCGETD) != _N_TTY:
                return None
            slave = opened.enter_context(_opened_slave(master))
            if _get_int(slave, _TIOCGETD) != _N_TTY:
                return None
        except OSError:  # locked, or hung up
            return None
        status = _take_status(master)
        typed, behind = _take_input(slave)
        output = _take_output(master, slave)
        stopped = _how_stopped(slave)
        _take_status(master)  # CRIU would take it for output
        return Queues(number, output, typed, behind, status, stopped, is_closed)


def stop_output(master: int) -> None:
    """Stop output until `put_back`, so that programs that happen to run before it do not fill the terminal."""
    with _opened_slave(master) as slave:
        termios.tcflow(slave, termios.TCOOFF)
    _take_status(master)


def put_back(master: int, queues: Queues) -> None:
    """Put the bytes back into the terminal, which must be empty or have a part of them, or bytes that came after them.

    Nothing is echoed or changed, and no signal is raised. Raises OSError.
    """
    found = take(master, is_slave_open=True)
    if found is not None:
        queues = _merged(queues, found)
    with _opened_slave(master) as slave:
        if found is not None and found.stopped and not queues.stopped:  # by `stop_output`
            _start(slave, found.stopped)
            _take_status(master)
        _set_status(slave, queues.status)
        if queues.output:
            _put_output(master, slave, queues)
        if queues.typed or queues.behind:
            _put_input(master, slave, queues)
        if queues.stopped:
            if queues.status & termios.TIOCPKT_STOP:
                _start(slave, queues.stopped)  # so that the master's reader learns of the stop again
            _stop(slave, queues.stopped)


def _merged(first: Queues, then: Queues) -> Queues:
    """The bytes of `first`, followed by those of `then`. If `then` begins like `first`, it has what an earlier,
    unfinished `put_back` of `first` has put back.
    """
    output, typed, behind = (
        old if old.startswith(new) else old + new
        for old, new in ((first.output, then.output), (first.typed, then.typed), (first.behind, then.behind))
    )
    return Queues(first.number, output, typed, behind, first.status | then.status, first.stopped, first.is_closed)


@contextlib.contextmanager
def _opened_slave(master: int) -> Iterator[int]:
    slave = ptys.open_slave(master)
    try:
        os.set_blocking(slave, False)
        yield slave
    finally:
        os.close(slave)


def _get_int(fd: int, request: int) -> int:
    (number,) = struct.unpack("i", fcntl.ioctl(fd, request, bytes(4)))
    return int(number)


def _events(fd: int, wanted: int = select.POLLIN | select.POLLPRI) -> int:
    """The events of poll(2). If it finds no input, it waits until the kernel's worker has moved on all bytes."""
    poll = select.poll()
    poll.register(fd, wanted)
    return next((events for _fd, events in poll.poll(0)), 0)


def _take_status(master: int) -> int:
    """Take the unread status of packet mode, which comes as a read of one byte. 0: there is none."""
    if _events(master) & select.POLLPRI and _get_int(master, _TIOCGPKT):
        return os.read(master, 1)[0]
    return 0


def _take_output(master: int, slave: int) -> bytes:
    """Read all output. Each read is announced by poll, because the master may be blocking."""
    start = 1 if _get_int(master, _TIOCGPKT) else 0  # in packet mode, each read begins with a byte for the status
    parts = []
    while _events(master) & select.POLLIN:
        while _events(master) & select.POLLIN:
            parts.append(os.read(master, 1 << 16)[start:])
        os.write(slave, b"")  # makes the line discipline send the echoes for which there was no room
    return b"".join(parts)


def _take_input(slave: int) -> tuple[bytes, bytes]:
    """Take `typed` and `behind` of `Queues`."""
    is_readable = _events(slave) & select.POLLIN  # this also lets bytes on the way be processed
    ready = unread_bytes(slave)  # in line mode, those of finished lines
    numbers, characters = attributes(slave)
    plain = [*numbers[:_LFLAG], numbers[_LFLAG] & ~termios.ICANON, *numbers[_LFLAG + 1 :]]
    if plain != numbers:  # without ICANON, reads also return the unfinished line
        set_attributes(slave, plain, characters)
    number = unread_bytes(slave)
    is_full = number >= _ALMOST_FULL
    if is_full:  # the bytes behind must not be processed when they move up
        set_attributes(slave, *_quiet(plain, characters))
    typed = b""
    while len(typed) < number and (part := read_now(slave, number - len(typed))):
        typed += part
    rest = b"".join(iter(lambda: read_now(slave, _FULL + 1), b""))
    if is_full or plain != numbers:
        set_attributes(slave, numbers, characters)
    if is_readable and numbers[_LFLAG] & (termios.ICANON | _EXTPROC) == termios.ICANON:
        typed = _with_ends(typed, ready, characters)
    return (typed, rest) if is_full else (typed + rest, b"")


def _with_ends(typed: bytes, ready: int, characters: list[bytes | int]) -> bytes:
    """The bytes that were read without ICANON, with ^D in place of each mark. `ready`: the number of bytes in finished
    lines, without marks.

    The mark is a NUL. A NUL counts as typed only if `ready` has no other explanation. A finished line without an end
    was typed before the terminal came into line mode; ^D ends such a line, too.
    """
    ended = marks = 0
    while ended < len(typed) and (ended - marks < ready or typed[ended] == 0):
        marks += typed[ended] == 0
        ended += 1
    finished = typed[:ended]
    if ended - marks == ready:
        finished = finished.replace(b"\0", _end_of_file(characters))
    else:
        ended, finished = ready, typed[:ready]
    ends = [b"\n", _end_of_file(characters), *(_byte(characters[place]) for place in (termios.VEOL, termios.VEOL2))]
    if finished and finished[-1:] not in ends:
        finished += _end_of_file(characters)
    return finished + typed[ended:]


def _end_of_file(characters: list[bytes | int]) -> bytes:
    """The terminal's character for ^D; the usual one if ^D is disabled."""
    end = _byte(characters[termios.VEOF])
    return end if end != b"\0" else bytes([termios.CEOF])


def _byte(value: bytes | int) -> bytes:
    return bytes([value]) if isinstance(value, int) else value


def _how_stopped(slave: int) -> str:
    """`stopped` of `Queues`. Without unread output, only a stopped terminal takes no output."""
    if _events(slave, select.POLLOUT) & select.POLLOUT:
        return ""
    termios.tcflow(slave, termios.TCOON)  # does nothing after ^S
    if not _events(slave, select.POLLOUT) & select.POLLOUT:
        return "key"
    termios.tcflow(slave, termios.TCOOFF)
    return "call"


def _stop(slave: int, how: str) -> None:
    if how == "call" or not _press(slave, termios.VSTOP):
        termios.tcflow(slave, termios.TCOOFF)


def _start(slave: int, how: str) -> None:
    """Undo `_stop`."""
    if how == "call" or not _press(slave, termios.VSTART):
        termios.tcflow(slave, termios.TCOON)


def _press(slave: int, place: int) -> bool:
    """Type ^S or ^Q, if the terminal has that key."""
    numbers, characters = attributes(slave)
    key = _byte(characters[place])
    has_key = bool(numbers[_IFLAG] & termios.IXON) and key != b"\0"
    if has_key:
        _insert(slave, key)
    return has_key


def _set_status(slave: int, status: int) -> None:
    """Make the master's reader find `status`, apart from TIOCPKT_STOP, by doing what causes it. With EXTPROC,
    TIOCPKT_IOCTL comes from the change of modes.
    """
    if status & termios.TIOCPKT_FLUSHREAD:
        termios.tcflush(slave, termios.TCIFLUSH)
    if status & termios.TIOCPKT_FLUSHWRITE:
        termios.tcflush(slave, termios.TCOFLUSH)
    if status & termios.TIOCPKT_START:
        termios.tcflow(slave, termios.TCOOFF)
        termios.tcflow(slave, termios.TCOON)
    if status & (termios.TIOCPKT_DOSTOP | termios.TIOCPKT_NOSTOP):
        numbers, characters = attributes(slave)
        set_attributes(slave, [numbers[_IFLAG] ^ termios.IXON, *numbers[1:]], characters)
        set_attributes(slave, numbers, characters)


def _put_output(master: int, slave: int, queues: Queues) -> None:
    output = queues.output
    if queues.stopped:  # a stopped terminal takes output from nobody
        _insert(master, output[:_FULL])
        output = output[_FULL:]
        if output:
            _start(slave, queues.stopped)
    numbers, characters = attributes(slave)
    with _changed(slave, [numbers[0], numbers[_OFLAG] & ~termios.OPOST, *numbers[2:]], characters):
        _fill(slave, output)


def _put_input(master: int, slave: int, queues: Queues) -> None:
    numbers, characters = _quiet(*attributes(slave))
    if not queues.stopped and not _get_int(master, _TIOCGPKT):  # IXON off would start the terminal, or be reported
        numbers[_IFLAG] &= ~termios.IXON
    characters[termios.VEOF] = _end_of_file(characters)
    with _changed(slave, numbers, characters):
        _insert(slave, queues.typed[:_FULL])
        _fill(master, queues.typed[_FULL:] + queues.behind)


def _quiet(numbers: list[int], characters: list[bytes | int]) -> tuple[list[int], list[bytes | int]]:
    """Copies of the attributes, changed so that input is neither echoed, nor edited, nor raises a signal."""
    numbers, characters = numbers.copy(), characters.copy()
    numbers[_IFLAG] &= ~(_CHANGES_INPUT | termios.IXANY)
    numbers[_LFLAG] &= ~_ACTS_ON_INPUT
    for place in _EDITS:
        characters[place] = b"\0"
    return numbers, characters


@contextlib.contextmanager
def _changed(slave: int, numbers: list[int], characters: list[bytes | int]) -> Iterator[None]:
    """Give the slave other attributes for the `with` block."""
    before = attributes(slave)
    set_attributes(slave, numbers, characters)
    try:
        yield
    finally:
        set_attributes(slave, *before)


def _insert(fd: int, data: bytes) -> None:
    """Give `data` to the line discipline of `fd`, master or slave. It is processed on return, unlike after a write to
    the other side, which a worker of the kernel passes on.
    """
    for byte in data:
        fcntl.ioctl(fd, termios.TIOCSTI, bytes([byte]))


def _fill(fd: int, data: bytes) -> None:
    """Write `data`, for which there is enough room when the kernel's worker has moved on what it can. Never blocks."""
    until = time.monotonic() + _PATIENCE_S
    while data:
        size = len(data) if len(data) <= _LAST_PIECE else _PIECE
        count = 0
        if not os.get_blocking(fd) or _events(fd, select.POLLOUT) & select.POLLOUT:
            with contextlib.suppress(BlockingIOError):
                count = os.write(fd, data[: min(size, _PIECE) if os.get_blocking(fd) else size])
        data = data[count:]
        if not count:
            if time.monotonic() > until:
                raise OSError(errno.EAGAIN, f"the terminal has no room for {len(data)} bytes", f"fd {fd}")
            os.sched_yield()
