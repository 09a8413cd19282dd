"""A file's change as a unified text diff, as diff(1) and git write it."""

import os
import stat
from collections.abc import Iterator, Sequence

from waypoint.linux.storage import beneath
from waypoint.linux.storage.access import Looking
from waypoint.model.paths import quoted_path
from waypoint.upper.comparing.differing import EntryChange
from waypoint.upper.comparing.stack import Spot

MOST_PATCHED = 1 << 20
"""Bytes of a file of which a patch is made."""

_MOST_PAIRS = 4_000_000
"""Lines that differ on one side, times those on the other: of more no lines are looked for that both have."""
_CONTEXT = 3
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NO_NEWLINE = "\\ No newline at end of file"


class NoPatch(Exception):
    """There is no patch of a change: why, in words."""


def patch_of(change: EntryChange, looking: Looking) -> str:
    """The unified diff of one change, "" if there is none to be told, as of a folder. `looking`: with whose rights
    content is read. Raises NoPatch.
    """
    if change.is_whole or not any(_has_text(facts) for facts in (change.was, change.now)):
        return ""
    old = _text(change.was, change.was_at, looking)
    new = _text(change.now, change.now_at, looking)
    if old == new:
        return ""
    name = os.fsdecode(change.path)
    heads = [
        f"--- {quoted_path(f'a{name}') if old is not None else '/dev/null'}",
        f"+++ {quoted_path(f'b{name}') if new is not None else '/dev/null'}",
    ]
    lines = unified(_lines(old or ""), _lines(new or ""))
    return "".join(f"{line}\n" for line in (*heads, *lines))


def _has_text(facts: os.stat_result | None) -> bool:
    return facts is not None and (stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode))


def _text(facts: os.stat_result | None, spot: Spot | None, looking: Looking) -> str | None:
    """The text of a file, or where a link leads; None if there is neither. Raises NoPatch."""
    if facts is None or spot is None or not _has_text(facts):
        return None
    if facts.st_size > MOST_PATCHED:
        raise NoPatch(f"more than {MOST_PATCHED >> 20} MiB")
    try:
        content = _content(facts, spot, looking)
    except OSError as error:
        raise NoPatch(error.strerror or str(error)) from error
    if len(content) > MOST_PATCHED:
        raise NoPatch(f"more than {MOST_PATCHED >> 20} MiB")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise NoPatch("binary") from None
    if "\0" in text:
        raise NoPatch("binary")
    return text


def _content(facts: os.stat_result, spot: Spot, looking: Looking) -> bytes:
    with beneath.parent_of(spot.root, spot.path) as (folder, name):
        if stat.S_ISLNK(facts.st_mode):
            return os.readlink(os.fsencode(name), dir_fd=folder)
        with looking():
            fd = os.open(name, _READ | os.O_CLOEXEC, dir_fd=folder)
        with open(fd, "rb") as file:
            return file.read(MOST_PATCHED + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else b""


def _lines(text: str) -> list[str]:
    """The lines, each with its end, by line feeds alone."""
    lines = text.split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def unified(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """The hunks between two files, line by line, without line ends. Takes a time that grows with their size at most, or
    with _MOST_PAIRS: somebody else has written them.
    """
    start, most = 0, min(len(old), len(new))
    while start < most and old[start] == new[start]:
        start += 1
    end = 0
    while end < most - start and old[-1 - end] == new[-1 - end]:
        end += 1
    if (len(old) - start - end) * (len(new) - start - end) > _MOST_PAIRS:
        yield from _replaced(old, new, start, end)
        return
    import difflib  # loads `re`, which takes as long as a walk over a thousand files

    first = max(0, start - _CONTEXT)
    kept = max(0, end - _CONTEXT)
    one, other = old[first : len(old) - kept], new[first : len(new) - kept]
    for group in difflib.SequenceMatcher(None, one, other, autojunk=True).get_grouped_opcodes(_CONTEXT):
        yield _range(first, group[0][1], group[-1][2], group[0][3], group[-1][4])
        for tag, low, high, new_low, new_high in group:
            if tag == "equal":
                yield from _marked(" ", one[low:high])
                continue
            yield from _marked("-", one[low:high])
            yield from _marked("+", other[new_low:new_high])


def _replaced(old: Sequence[str], new: Sequence[str], start: int, end: int) -> Iterator[str]:
    """One hunk that takes all away that differs, and puts the other in its place."""
    first, behind = max(0, start - _CONTEXT), min(end, _CONTEXT)
    old_end, new_end = len(old) - end, len(new) - end
    yield _range(0, first, old_end + behind, first, new_end + behind)
    yield from _marked(" ", old[first:start])
    yield from _marked("-", old[start:old_end])
    yield from _marked("+", new[start:new_end])
    yield from _marked(" ", old[old_end : old_end + behind])


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield _NO_NEWLINE


def _range(first: int, low: int, high: int, new_low: int, new_high: int) -> str:
    def side(start: int, end: int) -> str:
        length = end - start
        begin = first + start + (1 if length else 0)
        return f"{begin}" if length == 1 else f"{begin},{length}"

    return f"@@ -{side(low, high)} +{side(new_low, new_high)} @@"
