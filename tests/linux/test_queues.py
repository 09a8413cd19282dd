"""Taking the unread bytes out of a terminal and putting them back: no reader notices it, here or in a copy."""

import contextlib
import fcntl
import itertools
import os
import random
import select
import struct
import termios
import tty
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.terminals import open_pair
from waypoint.linux.tty import ptys, queues, terminals
from waypoint.linux.tty.queues import Queues

pytestmark = pytest.mark.privileged  # TIOCSTI

_EXTPROC, _TIOCGPKT = 0o200000, 0x80045438
_OF_EXTPROC = 64  # TIOCPKT_IOCTL: with EXTPROC, each change of modes is reported


class Pair(NamedTuple):
    master: int
    slave: int

    def type(self, keys: bytes) -> None:
        """Type keys so that the line discipline has processed them on return, unlike after a write to the master."""
        for key in keys:
            fcntl.ioctl(self.slave, termios.TIOCSTI, bytes([key]))

    def print(self, text: bytes) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self.slave, text)

    def flag(self, place: int, bits: int, *, on: bool) -> None:
        numbers, characters = terminals.attributes(self.slave)
        numbers[place] = numbers[place] | bits if on else numbers[place] & ~bits
        terminals.set_attributes(self.slave, numbers, characters)


Make = Callable[[], Pair]


@contextlib.contextmanager
def making() -> Iterator[Make]:
    """Yields a function that makes pairs that do not block. They are closed after the block."""
    with contextlib.ExitStack() as closing:

        def make() -> Pair:
            pair = Pair(*open_pair())
            os.set_blocking(pair.slave, False)
            for fd in pair:
                closing.callback(os.close, fd)
            return pair

        yield make


def reads(fd: int) -> list[bytes]:
    """What single reads return, until nothing is left or the terminal is closed (b"closed")."""
    found: list[bytes] = []
    while True:
        try:
            found.append(os.read(fd, 1 << 16))
        except BlockingIOError:
            return found
        except OSError:
            return [*found, b"closed"]


def output(pair: Pair) -> tuple[bytes, int]:
    """All output, and the status that packet mode has reported."""
    found = reads(pair.master)
    if not struct.unpack("i", fcntl.ioctl(pair.master, _TIOCGPKT, bytes(4)))[0]:
        return b"".join(found), 0
    status = sum({one[0] for one in found})
    return b"".join(one[1:] for one in found), status


def take(pair: Pair) -> Queues:
    taken = queues.take(pair.master, is_slave_open=True)
    assert taken is not None
    assert select.select(pair, [], [], 0)[0] == []
    return taken


def copy_of(pair: Pair, make: Make) -> Pair:
    """A new terminal as CRIU makes it: with the modes of `pair` and packet mode, without its bytes."""
    copy = make()
    terminals.set_attributes(copy.slave, *terminals.attributes(pair.slave))
    fcntl.ioctl(copy.master, termios.TIOCPKT, fcntl.ioctl(pair.master, _TIOCGPKT, bytes(4)))
    return copy


TYPED = (
    *(b"", b"one\r", b"one\rtwo\rthe thi", b"unfinished", b"one\x04two", b"\x04", b"\x04\x04end", b"hello\nwor"),
    *(b"a\x16\x15b\0c\r", b"gone\x15k\x7fept\r", b"x\x04\x04y\rz\x04", b"\xc3\xa9\xe2\x82\xac\r\xc3", b"a;b"),
)
LATER = (b" end\r", b"\x7f\x7fx\r", b"\x15new\r", b"\x04")


@pytest.mark.parametrize("is_copy", [False, True])
def test_lines_typed_ahead_are_read_as_they_were_typed(*, is_copy: bool) -> None:
    for typed, later in itertools.product(TYPED, LATER):
        with making() as make:
            plain, pair = make(), make()
            for each in (plain, pair):
                numbers, characters = terminals.attributes(each.slave)
                characters[termios.VEOL] = b";"
                terminals.set_attributes(each.slave, numbers, characters)
                each.type(typed)
            taken = take(pair)
            pair = copy_of(pair, make) if is_copy else pair
            queues.put_back(pair.master, taken)
            plain.type(later)
            pair.type(later)
            assert output(pair) == output(plain), (typed, later)
            assert reads(pair.slave) == reads(plain.slave), (typed, later)


KEYS = (
    *(b"abc", b"\r", b"\n", b"x\r\ny", b"\x04", b"\x7f", b"\x15", b"\x16\x15", b"\xc3\xa9", b";", b"\xff", b"\x11"),
)
TEXTS = (b"line\n", b"no end", b"\r", b"\x1b[31m\xe2\x82\xac\n", b"z" * 900 + b"\n", b"\0\n")
# Flags by their places in the attributes. Those of the first group change how bytes that are in the terminal are read.
_FIRST = ((0, termios.IXON), (3, termios.ICANON), (3, termios.ICANON), (3, termios.IEXTEN), (3, _EXTPROC))
_LATER = (
    *((0, bit) for bit in (termios.ICRNL, termios.INLCR, termios.IGNCR, termios.ISTRIP, termios.IXANY)),
    *((1, bit) for bit in (termios.OPOST, termios.ONLCR, termios.OCRNL)),
    *((3, bit) for bit in (termios.ECHO, termios.ECHONL, termios.ECHOCTL)),
)


def act(pair: Pair, chance: random.Random, *, stops: bool) -> None:
    """One thing that a program or a person does with a terminal."""
    what = chance.randrange(8)
    if what < 3:
        pair.type(chance.choice(KEYS))
    elif what < 5:
        pair.print(chance.choice(TEXTS))
    elif what == 5:
        with contextlib.suppress(BlockingIOError):
            os.read(pair.slave, chance.choice([1, 3, 5000]))
    elif what == 6:
        pair.flag(*chance.choice(_LATER), on=chance.random() < 0.5)
    elif stops:
        stop, go = chance.choice([(b"\x13", b"\x11"), (None, None)])
        for key, call in ((stop, termios.TCOOFF), (go, termios.TCOON))[: chance.choice([1, 2])]:
            termios.tcflow(pair.slave, call) if key is None else pair.type(key)


def lived(make: Make, seed: int, *, is_taken: bool, is_copy: bool) -> tuple[bytes, int, list[bytes]]:
    """A short life of a terminal. Returns all output, the status of packet mode, and what single reads of input got."""
    pair, chance = make(), random.Random(seed)
    if chance.random() < 0.3:
        fcntl.ioctl(pair.master, termios.TIOCPKT, struct.pack("i", 1))
    for place, bits in _FIRST:
        if chance.random() < 0.2:
            pair.flag(place, bits, on=bits == _EXTPROC)
    for _ in range(chance.randrange(1, 12)):
        act(pair, chance, stops=not is_copy)
    if is_taken:
        modes = terminals.attributes(pair.slave)
        taken = take(pair)
        pair = copy_of(pair, make) if is_copy else pair
        queues.put_back(pair.master, taken)
        assert terminals.attributes(pair.slave) == modes
    first, status = output(pair)
    for _ in range(chance.randrange(5)):
        act(pair, chance, stops=False)
    termios.tcflow(pair.slave, termios.TCOON)
    pair.type(b"\x11\r")
    pair.print(b"end\n")
    then, later = output(pair)
    return first + then, (status | later) & ~_OF_EXTPROC, reads(pair.slave)


@pytest.mark.parametrize("is_copy", [False, True])
def test_no_reader_notices_in_any_mode(*, is_copy: bool) -> None:
    for seed in range(200):
        with making() as make:
            before = lived(make, seed, is_taken=False, is_copy=is_copy)
            assert lived(make, seed, is_taken=True, is_copy=is_copy) == before, f"seed {seed}"


def fill(fd: int, piece: bytes) -> bytes:
    """Write `piece` again and again, until the terminal is full. Returns all bytes that were written."""
    written, room = b"", select.poll()
    room.register(fd, select.POLLOUT)
    while room.poll(20):
        with contextlib.suppress(BlockingIOError):
            rest = piece[len(written) % len(piece) :]
            written += rest[: os.write(fd, rest)]
    return written


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_full_terminal_is_emptied_and_filled_again(*, is_copy: bool) -> None:
    for piece in (b"y\n", b"some more words\r\n" * 100, bytes(range(256))):
        with making() as make:
            pair = make()
            tty.setraw(pair.slave)
            output, keys = fill(pair.slave, piece), fill(pair.master, piece)
            assert min(len(output), len(keys)) > 4095
            taken = take(pair)
            pair = copy_of(pair, make) if is_copy else pair
            queues.put_back(pair.master, taken)
            assert (b"".join(reads(pair.master)), b"".join(reads(pair.slave))) == (output, keys)


def test_lines_that_wait_behind_a_full_line_discipline_are_echoed_once() -> None:
    with making() as make:
        master, slave = pair = make()
        typed = b"0123456\r" * 1000
        assert os.write(master, typed) == len(typed)
        while terminals.unread_bytes(slave) < 4095 // 8 * 8:
            os.sched_yield()
        queues.put_back(master, take(pair))
        got, echo = list[bytes](), b""
        while len(got) < 1000:
            got += reads(slave)
            echo += b"".join(reads(master))
        while len(echo) < 9000:
            echo += b"".join(reads(master))
        assert got == [b"0123456\n"] * 1000
        assert echo == b"0123456\r\n" * 1000


def test_a_stopped_terminal_stays_stopped_in_a_copy() -> None:
    for stop in (b"\x13", b""):
        with making() as make:
            pair = make()
            pair.print(b"before\n")
            pair.type(stop) if stop else termios.tcflow(pair.slave, termios.TCOOFF)
            copy = copy_of(pair, make)
            queues.put_back(copy.master, take(pair))
            with pytest.raises(BlockingIOError):
                os.write(copy.slave, b"stopped")
            assert output(copy) == (b"before\r\n", 0)
            copy.type(b"\x11") if stop else termios.tcflow(copy.slave, termios.TCOON)
            copy.print(b"after\n")
            assert output(copy) == (b"after\r\n", 0)


def test_the_end_of_output_is_found_in_a_copy_too() -> None:
    """If all programs have closed the slave, the master's reader gets the rest, then EIO."""
    master, slave = open_pair()
    os.write(slave, b"last words\n")
    os.close(slave)
    taken = queues.take(master, is_slave_open=False)
    copy = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    ptys.unlock_slave(copy)
    assert queues.take(copy, is_slave_open=False) is None  # its slave was never opened: then a read waits
    assert reads(copy) == []
    for each in (master, copy):
        assert taken is not None
        queues.put_back(each, taken)
        assert reads(each) == [b"last words\r\n", b"closed"]
        os.close(each)


def test_an_unfinished_attempt_to_put_bytes_back_is_continued() -> None:
    """A daemon that is killed may have put back a part; processes that ran meanwhile may have added bytes."""
    for part, later in ((0, b""), (3, b""), (0, b"!\n")):
        with making() as make:
            pair = make()
            pair.flag(3, termios.ECHO, on=False)
            pair.print(b"text\n")
            pair.type(b"keys\rmore")
            taken = take(pair)
            queues.put_back(pair.master, taken._replace(output=taken.output[:part], typed=taken.typed[:part]))
            pair.print(later)
            pair.type(later)
            queues.put_back(pair.master, taken)
            assert output(pair) == (b"text\r\n" + later.replace(b"\n", b"\r\n"), 0)
            pair.type(b"\r")
            assert reads(pair.slave) == [b"keys\n", *([b"more!\n", b"\n"] if later else [b"more\n"])]


@pytest.mark.parametrize("is_packet", [False, True])
def test_programs_that_run_before_bytes_are_put_back_print_nothing(*, is_packet: bool) -> None:
    """They run if CRIU is killed. They could fill the terminal, so that not all bytes could be put back."""
    with making() as make:
        pair = make()
        fcntl.ioctl(pair.master, termios.TIOCPKT, struct.pack("i", is_packet))
        pair.print(b"text\n")
        taken = take(pair)
        queues.stop_output(pair.master)
        with pytest.raises(BlockingIOError):
            os.write(pair.slave, b"early\n")
        queues.put_back(pair.master, taken)
        pair.print(b"later\n")
        assert output(pair) == (b"text\r\nlater\r\n", 0)
