"""How many files a session has changed: quickly, however many there are."""

import contextlib
import stat
from collections.abc import Iterable, Iterator

from waypoint.upper.changes import Changes, count_changes
from waypoint.upper.comparing.differing import EntryChange, changes
from waypoint.upper.comparing.stack import opened_stacks

_MOST_READ = 200
"""Pairs of files of which the content is compared, a MiB each at most: of others the time of change decides."""


def count_differing(tree: str, base: str, hidden: Iterable[str] = (), skipped: Iterable[str] = ()) -> Changes:
    """As `count_changes`, without what was copied up and is as it is in `base`, if there are no more names than that
    looks at. `hidden`, `skipped`: as of `opened_stacks`. Raises OSError.
    """
    counted = count_changes(tree)
    if counted.are_more:
        return counted
    left = _MOST_READ

    @contextlib.contextmanager
    def looking() -> Iterator[None]:
        nonlocal left
        left -= 1
        if left < 0:
            raise PermissionError
        yield

    with opened_stacks(tree, base, hidden, skipped) as stacks:
        found = sum(_is_file(change) for stack in stacks for change in changes(stack, (), looking))
    return Changes(found, are_more=False)


def _is_file(change: EntryChange) -> bool:
    """Whether the change counts: that of a folder does so only if it is gone."""
    return change.now is None or not stat.S_ISDIR(change.now.st_mode) or change.source != b""
