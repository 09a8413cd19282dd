"""Removing captures that no name stands for and that no undo needs.

A capture is kept by a branch whose tip it is, by a checkpoint, by an operation whose undo would need it, by one of the
last points of its branch, by a policy
(`--keep-last`, `--keep-daily`), and by a reader (`Captures.hold`). The ancestors of a kept capture are not kept: their
content may be removed; their records stay, so that the history is whole. Sessions keep no capture: a live one has a
tree of its own, and a parked one is the tip of its branch.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from waypoint.capture.captures import Captures
from waypoint.model.records import NO_BASE, Capture, Intent, Operation, pinned_id
from waypoint.records.change import Change
from waypoint.records.names import Names
from waypoint.records.reading import Link, Reader

VERB = "gc"
MOST_POINTS = 100
"""So many points of each branch (Point) are kept as long as operations can be undone."""


Why = Literal["name", "undo", "last", "daily", "base"]
"""Why a capture is kept: a name stands for it, an undo needs it, the policy keeps it, or it is a base that has a
name, or is below a session or a kept capture.
"""


class Policy(NamedTuple):
    """What is kept of each branch, with or without a name, as in restic: the `last` captures; and of the last `daily`
    days on which captures were taken, the last capture each (days of the machine's time zone).
    """

    last: int = 0
    daily: int = 0


NO_POLICY = Policy()


class Survey(NamedTuple):
    """What could be removed. `removable`: the ids of captures whose content nothing keeps, the oldest first. `kept`:
    why others are kept, by id; some may have no record.

    `first_kept`: the number of the first operation that is kept. `parents`: of each recorded capture, by id. `removed`:
    the ids of captures whose content was removed before. `last_undo`: the number of the last operation whose undo needs
    a capture, by the capture's id; captures that an unfinished undo needs are not in it.
    """

    removable: list[str]
    kept: Mapping[str, set[Why]]
    first_kept: int
    parents: Mapping[str, list[str]]
    removed: set[str]
    last_undo: Mapping[str, int]

    def only_undo(self) -> list[str]:
        """The ids of the captures that only the undo of operations needs, those of the last operations first. Captures
        that an unfinished undo needs are left out.
        """
        found = [one for one in self.last_undo if self.kept[one] == {"undo"} and one not in self.removed]
        return sorted(found, key=lambda one: self.last_undo[one], reverse=True)


def survey(names: Reader, since: float, policy: Policy = NO_POLICY, first: int = 0) -> Survey:
    """Find the captures that could be removed. `since`: keep the operations from this moment on, in seconds since the
    epoch. `first`: but none before the one with this number.

    Decodes all names, these operations and the links of all captures.
    """
    first = max(first, names.first_kept(), names.first_since(since))
    kept, last_undo = defaultdict[str, set[Why]](set), _last_undo(names, first)

    def keep(captures: Iterable[str], why: Why) -> None:
        for capture in captures:
            kept[capture].add(why)

    for refs in names.iter_refs():
        keep((ref.capture for ref in refs.values() if ref.capture), "name")
    keep(last_undo, "undo")
    for intent in names.intents():
        needed = _needed(intent)
        keep(needed, "undo")
        for capture in needed:
            last_undo.pop(capture, None)
    links: list[Link] = []
    for piece in names.iter_links():
        links += piece
    removed = names.removed()
    for capture, why in _kept_by(policy, [one for one in links if one.id not in removed and one.base != NO_BASE]):
        keep([capture], why)
    keep((base.capture for base in names.bases().values()), "base")
    below = {pinned_id(link.base) for link in links if link.id in kept and link.id not in removed} - {None}
    keep(names.bases_in_use() | {one for one in below if one}, "base")
    gone = [link for link in reversed(links) if link.id not in kept and link.id not in removed]
    gone.sort(key=lambda link: link.base == NO_BASE)  # a base after the captures on it
    removable = [link.id for link in gone]
    return Survey(removable, kept, first, {link.id: link.parents for link in links}, removed, last_undo)


def _kept_by(policy: Policy, links: Iterable[Link]) -> Iterator[tuple[str, Why]]:
    """The captures that the policy keeps. `links`: the newest first."""
    counts, days = Counter[str | float](), defaultdict[str | float, set[tuple[int, ...]]](set)
    for link in links:
        if counts[link.branch] < policy.last:
            counts[link.branch] += 1
            yield link.id, "last"
        day = time.localtime(link.created)[:3]
        if day not in days[link.branch] and len(days[link.branch]) < policy.daily:
            days[link.branch].add(day)
            yield link.id, "daily"


def _last_undo(names: Reader, first: int) -> dict[str, int]:
    """By the ids of the captures that an undo could restore, the number of the last operation whose undo does. `first`:
    the number of the first operation that is kept.
    """
    found, points = dict[str, int](), Counter[float]()
    for operations in names.iter_operations():
        for operation in operations:
            for capture in _brought_back(operation, points) if operation.number >= first else ():
                found.setdefault(capture, operation.number)
        if operations[-1].number <= first:
            break
    return found


def _brought_back(operation: Operation, points: Counter[float]) -> set[str]:
    """Return the captures that an undo of the operation would restore; of a point, the capture to which `rewind` goes
    back. `points`: counts the points of each branch, the newest first, of which MOST_POINTS are kept.
    """
    if operation.point is not None:
        points[operation.point.branch_created] += 1
        return {operation.point.capture} if points[operation.point.branch_created] <= MOST_POINTS else set()
    if operation.verb == "discard":  # it cannot be undone
        return set()
    before = {move.before.capture for move in operation.moves.values() if move.before and move.before.capture}
    return before | {aside.capture for aside in operation.aside.values()}


def _needed(intent: Intent) -> set[str]:
    """Return the captures that an unfinished undo, or an undo of what it has done, would restore."""
    refs = [*intent.names.values(), *intent.seen.values(), *(move.before for move in intent.moves.values())]
    found = {ref.capture for ref in refs if ref and ref.capture} | {aside.capture for aside in intent.aside.values()}
    return found | {deed.capture for deed in intent.deeds if deed.capture}


def remove(
    captures: Captures,
    names: Names,
    since: float,
    limit: int | None = None,
    policy: Policy = NO_POLICY,
    first: int = 0,
) -> list[Capture]:
    """Record the oldest captures that nothing keeps as removed, at most `limit` (None: all), and return them.

    Writes one transaction, with an entry in the operation log. Operations before `since`, or before the one with the
    number `first`, can no longer be undone afterwards, unless there is a `limit` and no capture was removed. Raises
    Failed if the transaction cannot be written; then nothing has changed.

    The caller removes the captures' content from disk (`Captures.drop`). If the caller is killed before that, the next
    daemon removes it.
    """
    # The survey is made before the transaction, since a transaction blocks all other writers. If the log has a new
    # entry or the intents differ by then, the survey is repeated inside. All data that a survey reads changes only with
    # one of these or by a removal, and only one removal runs at a time.
    seen = names.last_number(), names.intents()
    found = survey(names, since, policy, first)
    with captures.removing() as take, names.change(VERB) as change:
        if (change.last_number(), change.intents()) != seen:
            found = survey(change, since, policy, first)
        free = take(_not_below(change, found.removable[:limit]))
        chosen = _mark_removed(captures, change, [capture for capture in found.removable if capture in free])
        forgotten = found.parents.keys() - _ancestry(found.parents, found.parents.keys() - found.removed - free)
        change.forget_captures(forgotten)
        if chosen or limit is None:
            change.note = _note(change, chosen, found.first_kept)
            change.expire(found.first_kept)
    return chosen


def give_up(
    captures: Captures, names: Names, choose: Callable[[Survey], Collection[str]], since: float, policy: Policy
) -> list[Capture]:
    """Record those captures as removed that `choose` names and that at most undo needs, and return them. The operations
    that need them can no longer be undone. Otherwise like `remove`.
    """
    seen = names.last_number(), names.intents()
    found = survey(names, since, policy)
    with captures.removing() as take, names.change(VERB) as change:
        if (change.last_number(), change.intents()) != seen:
            found = survey(change, since, policy)
        may_go = {*found.removable, *found.only_undo()}
        chosen = _mark_removed(captures, change, sorted(take(_not_below(change, may_go.intersection(choose(found))))))
        change.note = _note(change, chosen, 0)
    return chosen


def _not_below(change: Change, captures: Iterable[str]) -> list[str]:
    """The captures without bases of sessions that have been reserved since the survey, which is no entry of the log."""
    below = change.bases_in_use()
    return [one for one in captures if one not in below]


def _mark_removed(captures: Captures, change: Change, ids: Sequence[str]) -> list[Capture]:
    chosen = list(change.captures_of(ids).values())
    for capture in chosen:
        standing = change.standing(capture.id)
        change.set_standing(capture.id, msgspec.structs.replace(standing, removed=True))
    captures.add_disposable(change, chosen)
    return chosen


def _ancestry(parents: Mapping[str, list[str]], captures: Iterable[str]) -> Collection[str]:
    """The captures and all their ancestors."""
    seen: set[str] = set()
    waiting = list(captures)
    while waiting:
        capture = waiting.pop()
        if capture in parents and capture not in seen:
            seen.add(capture)
            waiting += parents[capture]
    return seen


def _note(change: Change, chosen: Collection[Capture], first_kept: int) -> str:
    said = [f"removed {len(chosen)} {'capture' if len(chosen) == 1 else 'captures'}"] if chosen else []
    if first_kept > max(1, change.first_kept()) and change.last_number():
        said.append(f"operations before {first_kept} can no longer be undone")
    return ", ".join(said)
