"""The daemon's end of a terminal: it reads all output, stops for a slow client, and types without blocking."""

import asyncio
import os
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from shellwrap.marks import Mark, format_mark
from shellwrap.ring import SMALLEST_SIZE, Ring
from tests.terminals import open_pair
from waypoint.linux.tty import terminals
from waypoint.terminal.reader import TerminalReader
from waypoint.terminal.terminal import Terminal


class Pair:
    """A new terminal. Data written to `slave` are the output of its programs."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.path = str(folder / "ring")
        self.size = 1 << 20
        self.master, self.slave = open_pair()
        tty.setraw(self.slave)
        self._stack = stack
        for fd in (self.master, self.slave):
            stack.callback(os.close, fd)

    def open(self) -> Terminal:
        ring = Ring.open(self.path) if os.path.exists(self.path) else Ring.create(self.path, self.size)
        terminal = Terminal(os.dup(self.master), ring)
        self._stack.callback(terminal.close)
        return terminal

    async def print(self, data: bytes) -> None:
        """Write in another thread, since a terminal that nobody reads blocks its writer."""
        await asyncio.to_thread(os.writev, self.slave, [data])


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


async def test_each_mark_is_reported_once_even_if_the_reader_changes(pair: Pair) -> None:
    heard: list[Mark] = []
    first = pair.open()
    first.on_mark.append(heard.append)
    first.start()
    mark = format_mark("P", "1", "nonce", "bash")
    await pair.print(b"before" + mark + b"between" + mark[:9])
    while first.ring.end < 22 + len(mark):
        await asyncio.sleep(0)
    first.close()
    second = pair.open()
    second.on_mark.append(heard.append)
    second.start()
    await pair.print(mark[9:])
    begun = 13 + len(mark)  # the position of the second mark
    while second.settled <= begun:
        await second.wait_more(begun)
    assert [(found.kind, found.fields) for found in heard] == [("P", ("1", "nonce", "bash"))] * 2
    assert second.marks(0) == heard


async def test_output_behind_a_slow_reader_stops_the_writer(pair: Pair) -> None:
    pair.size = SMALLEST_SIZE
    terminal = pair.open()
    terminal.set_floor(0)
    terminal.start()
    data = bytes(range(256)) * 400
    writing = asyncio.create_task(pair.print(data))
    got = b""
    while len(got) < len(data):
        await terminal.wait_more(len(got))
        assert terminal.ring.start <= len(got)
        got += terminal.ring.copy(len(got), terminal.ring.end)
        terminal.set_floor(len(got))
    assert got == data
    await writing


@pytest.mark.soak(part="timing")
async def test_the_reader_rests_after_costly_output_even_if_a_command_waits(pair: Pair) -> None:
    turns: list[float] = []

    def cost(_data: bytes) -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.005:
            pass
        turns.append(time.monotonic())

    reader = TerminalReader(pair.master, Ring.create(pair.path, pair.size), cost, lambda: None)
    os.set_blocking(pair.slave, False)
    reader.start()
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        with suppress(BlockingIOError):
            os.write(pair.slave, bytes(4096))
        reader.room_grew()  # every command that waits for output calls this
        await asyncio.sleep(0)
    reader.close()
    assert 2 < len(turns) <= 0.6 / (0.005 + 5 * 0.005) + 2


async def test_typing_does_not_block_and_arrives_in_order(pair: Pair) -> None:
    terminal = pair.open()
    terminal.start()
    data = b"".join(b"%07d " % number for number in range(40_000))
    for place in range(0, len(data), 10_000):
        terminal.typed.write(data[place : place + 10_000])
    waiting = asyncio.create_task(terminal.typed.wait_written())
    await asyncio.sleep(0)
    assert not waiting.done()
    got = b""
    while len(got) < len(data):
        got += await asyncio.to_thread(os.read, pair.slave, 65536)
    assert got == data
    await waiting


async def test_the_end_of_the_terminal_is_reported(tmp_path: Path) -> None:
    master, slave = open_pair()
    terminal = Terminal(master, Ring.create(str(tmp_path / "ring")))
    terminal.start()
    os.write(slave, b"last words")
    os.close(slave)
    await terminal.closed.wait()
    assert terminal.ring.copy(0, terminal.ring.end) == b"last words"
    await terminal.wait_more(10)
    terminal.typed.write(b"nobody reads this")
    terminal.window.resize(10, 10)
    terminal.close()


async def test_modes_are_known_after_a_change_of_readers(pair: Pair) -> None:
    pair.size = SMALLEST_SIZE
    first = pair.open()
    first.start()
    await pair.print(b"\x1b[?1049h\x1b[?2004h" + bytes(2 * SMALLEST_SIZE))
    while first.ring.end < 2 * SMALLEST_SIZE + 16:
        await first.wait_more(first.ring.end)
    bits = first.modes.bits
    first.close()
    second = pair.open()
    assert second.modes.alternate
    assert second.modes.bits == bits


async def test_output_stays_raw_until_it_is_released(pair: Pair) -> None:
    def processes() -> bool:
        return bool(terminals.modes(pair.master).oflag & termios.OPOST)

    terminals.release_output(pair.master)
    assert processes()
    terminals.hold_output_raw(pair.master)
    assert not processes()
    if os.geteuid() == 0:  # only root may lock the modes
        attributes = termios.tcgetattr(pair.slave)
        attributes[1] |= termios.OPOST
        termios.tcsetattr(pair.slave, termios.TCSANOW, attributes)
        assert not processes()
    terminals.release_output(pair.master)
    assert processes()
