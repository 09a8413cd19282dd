"""What a session remembers of its last restore of files, so that the next one compares only what has changed since.

A restore writes to files, and btrfs then takes these for changed. Without this, a restore of the same capture would
compare all of them again, after 100,000 restored files for many seconds. It is kept in memory only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from waypoint.upper.views import Candidate, Touched, find_touched, touched_after

_MANY = 500  # compared entries. To make a mark takes longer than to compare fewer.
_MOST_UNSURE = 1000


class Compared(NamedTuple):
    """What a restore has compared in one overlay. `kept`: paths that it does not restore."""

    kept: frozenset[str]
    entries: Sequence[Candidate]


class SameFiles(NamedTuple):
    """`capture`: whose files the session's upper tree had when it had the `mark` (upper/contract.py). `kept`: by
    overlay, the paths for which this does not hold. `unsure`: those for which it holds while the base stays as it is.
    """

    capture: str
    mark: int
    kept: Mapping[str, frozenset[str]]
    unsure: Mapping[str, frozenset[str]]


def touched_in(
    trees: tuple[str, str], target: str, kept: frozenset[str], capture: str, same: SameFiles | None
) -> Touched | None:
    """Where the files of `capture`, in the first one of the sealed `trees`, can differ from those of the session, in
    the second one; None if that is not known.
    """
    if same is not None and same.capture == capture and same.kept.get(target) == kept:
        touched = touched_after(trees[1], same.mark, target, same.unsure[target])
        if touched is not None:
            return touched
    return find_touched(*trees, target)


def after_restore(
    capture: str, compared: Mapping[str, Compared], earlier: SameFiles | None, mark: Callable[[], int | None]
) -> SameFiles | None:
    """What to remember of a restore of the files of `capture` that has just ended. `earlier`: what was remembered when
    it began. `mark` is called if too much was compared to do so again.
    """
    kept = {target: one.kept for target, one in compared.items()}
    unsure = {
        target: frozenset(entry.path for entry in one.entries if entry.needs_base) for target, one in compared.items()
    }
    number = None
    if sum(len(one.entries) for one in compared.values()) > _MANY:
        number = mark()
    elif earlier is not None and (earlier.capture, earlier.kept) == (capture, kept):
        number = earlier.mark
        unsure = {target: paths | earlier.unsure[target] for target, paths in unsure.items()}
    if number is None or sum(map(len, unsure.values())) > _MOST_UNSURE:
        return None
    return SameFiles(capture, number, kept, unsure)
