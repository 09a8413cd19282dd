"""Choosing a point on the terminal by the arrow keys. Draws on stderr, so stdout stays for the result."""

import os
import select
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from waypoint.cli.output import write_all
from waypoint.model.errors import cleaned
from waypoint.model.facts import PointFacts
from waypoint.model.rendering import age, point_title, what_followed

_SHOWN = 10
_UP, _DOWN, _ENTER, _LEAVE = "up", "down", "enter", "leave"
_KEYS = {
    **dict.fromkeys((b"\x1b[A", b"\x1bOA", b"k", b"\x10"), _UP),
    **dict.fromkeys((b"\x1b[B", b"\x1bOB", b"j", b"\x0e"), _DOWN),
    **dict.fromkeys((b"\r", b"\n"), _ENTER),
    **dict.fromkeys((b"q", b"\x1b", b"\x03", b"\x04", b""), _LEAVE),
}


def pick(branch: str, points: Sequence[PointFacts]) -> PointFacts | None:
    """Let the user choose one of `points`, which are at least one; None if they leave."""
    place, drawn = 0, 0
    with _keys() as read:
        while True:
            drawn = _draw([*_lines(branch, points, place)], drawn)
            match _KEYS.get(read()):
                case "up":
                    place = max(0, place - 1)
                case "down":
                    place = min(len(points) - 1, place + 1)
                case "enter":
                    _draw([], drawn)
                    return points[place]
                case "leave":
                    _draw([], drawn)
                    return None
                case _:
                    continue


def _lines(branch: str, points: Sequence[PointFacts], place: int) -> Iterator[str]:
    yield f"Rewind {branch} to before: (Up, Down, Enter; q leaves everything as it is)"
    first = max(0, min(place - _SHOWN // 2, len(points) - _SHOWN))
    for number, one in enumerate(points[first : first + _SHOWN], first):
        line = f"{one.number:>4}  {age(one.at):>6} ago  {point_title(one)}"
        yield f"\x1b[7m{line}\x1b[m" if number == place else line
    undone = points[: place + 1]
    yield f"This takes back {'one step' if len(undone) == 1 else f'{len(undone)} steps'}:"
    for one in reversed(undone[-3:]):
        yield f"  {point_title(one)}: {what_followed(one)}"
    if len(undone) > 3:
        yield f"  and {len(undone) - 3} more"


def _draw(lines: Sequence[str], drawn: int) -> int:
    """Draw `lines` in place of the last `drawn` lines."""
    width = os.get_terminal_size(2).columns
    text = f"\x1b[{drawn}A\r\x1b[J" if drawn else ""
    for line in lines:
        is_chosen = line.startswith("\x1b[7m")
        plain = cleaned(line.removeprefix("\x1b[7m").removesuffix("\x1b[m"))[: width - 1]
        text += f"\x1b[7m{plain}\x1b[m\r\n" if is_chosen else f"{plain}\r\n"
    write_all(2, memoryview(text.encode(errors="backslashreplace")))
    return len(lines)


@contextmanager
def _keys() -> Iterator[Callable[[], bytes]]:
    """Yield a function that returns the bytes of the next key; b"" at the end of the input."""
    before = termios.tcgetattr(0)

    def read() -> bytes:
        key = os.read(0, 1)
        while key.startswith(b"\x1b") and len(key) < 3 and select.select([0], [], [], 0.05)[0]:
            key += os.read(0, 1)
        return key

    try:
        tty.setraw(0)
        yield read
    finally:
        termios.tcsetattr(0, termios.TCSAFLUSH, before)
