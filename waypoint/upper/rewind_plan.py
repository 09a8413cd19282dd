"""Which entries a restore of files must change: those that differ between the wanted and the present view.

Here times count, and so does which names are hard links of one file. A folder that one view lacks is one difference,
with all its content.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from waypoint.model.paths import is_below
from waypoint.upper.comparing import How, Scope, attributes, compare_one, has_same_blocks, look, names_in
from waypoint.upper.views import Candidate, Pairs, Sides

_Key = tuple[int, int]  # device and inode
_SPECIAL, _CAPABILITY = stat.S_ISUID | stat.S_ISGID, "security.capability"  # which a write removes


class Difference(NamedTuple):
    """`how` as in comparing.py, but `attributes` includes the time of the last change, and a name of a file with
    several hard links is `changed` if it must become a name of another file. `is_content`: the present file differs
    only in content and time, and can get those of the wanted one: it is in the upper directory, with one name. The
    content of such a file may be the same, if it is in other blocks and the time differs.
    """

    path: str
    how: How
    is_content: bool = False


class Plan(NamedTuple):
    """`differences`: folders before their content. `anchors`: of files that stay, and whose hard links may be among the
    differences, one name each.
    """

    differences: list[Difference]
    anchors: list[str]


def make_plan(differing: Iterable[Candidate], pairs: Pairs, scope: Scope) -> Plan:
    """Compare the candidates. Reads files of the same size and time if that is needed. Raises OSError."""
    links = _Links()
    found = list(_differences(differing, pairs, scope, links))
    return Plan(found, links.anchors())


def compare_used(plan: Plan, pairs: Pairs, is_used: Callable[[str], bool]) -> Plan:
    """The plan after the files that `is_used` and may have the same content were read: of these only the times differ.
    Raises OSError.
    """
    return plan._replace(
        differences=[
            Difference(one.path, "attributes") if one.is_content and is_used(one.path) and _is_same(one, pairs) else one
            for one in plan.differences
        ]
    )


def _is_same(difference: Difference, pairs: Pairs) -> bool:
    sides = pairs.at(difference.path)
    return compare_one(sides, *look(sides)) is None


def merge(earlier: Plan, later: Plan, examined: set[str]) -> Plan:
    """The plan after some entries have changed since `earlier` was made. `later`: the plan of these, which are
    `examined`.
    """
    kept = [one for one in earlier.differences if one.path not in examined]
    # "/" sorts as the lowest character, so that each folder comes directly before its content.
    both = sorted([*kept, *later.differences], key=lambda one: one.path.replace("/", "\0"))
    return Plan(both, [*(one for one in earlier.anchors if one not in examined), *later.anchors])


def _differences(differing: Iterable[Candidate], pairs: Pairs, scope: Scope, links: "_Links") -> Iterator[Difference]:
    whole = None  # the last entry that is one difference with all its content
    for candidate in differing:
        if candidate.is_same and not candidate.is_folder:
            continue
        waiting = [(candidate.path, candidate.is_whole)]
        while waiting:  # no recursion: the session chooses how deep its folders are
            path, is_deep = waiting.pop()
            if whole is not None and is_below(path, whole):
                continue
            sides = pairs.at(path)
            wanted, present = look(sides)
            if _is_rewritten(sides, wanted, present):
                yield Difference(path, "changed", is_content=True)
                continue
            how = _compare(path, sides, (wanted, present), links)
            if how is not None:
                yield Difference(path, how, how == "changed" and _is_content(sides, wanted, present))
            if how not in (None, "attributes"):
                whole = path
            elif is_deep:
                names = {*names_in(sides.wanted, wanted), *names_in(sides.present, present)}
                below = (f"{path}/{name}" for name in sorted(names, reverse=True))
                waiting += [(one, True) for one in below if scope.concerns(one)]


def _compare(
    path: str, sides: Sides, facts: tuple[os.stat_result | None, os.stat_result | None], links: "_Links"
) -> How | None:
    wanted, present = facts
    how = compare_one(sides, wanted, present)
    if wanted is None or present is None:
        links.add_changed(wanted)
        return how
    if how is None and wanted.st_mtime_ns != present.st_mtime_ns:
        how = "attributes"
    if how in (None, "attributes") and not stat.S_ISDIR(wanted.st_mode) and not links.stays(path, wanted, present):
        how = "changed"
    if how in ("changed", "type"):
        links.add_changed(wanted)
    return how


def _is_rewritten(sides: Sides, wanted: os.stat_result | None, present: os.stat_result | None) -> bool:
    """Whether a file that can get other content in place has other blocks and another time. Its content on the same
    btrfs is written again faster than the two files are read.
    """
    if wanted is None or present is None or wanted.st_mtime_ns == present.st_mtime_ns:
        return False
    if sides.wanted is None or sides.wanted.upper == -1 or sides.present is None or wanted.st_size != present.st_size:
        return False
    return _is_content(sides, wanted, present) and not has_same_blocks(sides.wanted, sides.present, wanted, present)


def _is_content(sides: Sides, wanted: os.stat_result | None, present: os.stat_result | None) -> bool:
    if sides.wanted is None or sides.present is None or sides.present.upper == -1 or wanted is None or present is None:
        return False
    facts = [(one.st_mode, one.st_uid, one.st_gid, one.st_nlink) for one in (wanted, present)]
    if facts[0] != facts[1] or not stat.S_ISREG(wanted.st_mode) or wanted.st_nlink > 1 or wanted.st_mode & _SPECIAL:
        return False
    found = attributes(sides.wanted)
    return _CAPABILITY not in found and found == attributes(sides.present)


class _Links:
    """Which files of the two views are the same file, of those with several hard links."""

    def __init__(self) -> None:
        self._present_of: dict[_Key, _Key] = {}
        self._wanted_of: dict[_Key, _Key] = {}
        self._names: dict[_Key, str] = {}  # of files that stay, by those of the wanted view
        self._changed = set[_Key]()  # files of the wanted view
        self._may_have_any = False  # a folder with unknown content is to be made

    def stays(self, path: str, wanted: os.stat_result, present: os.stat_result) -> bool:
        """Whether the name `path` of a file can stay: all names of its file are names of one file in the other view."""
        if wanted.st_nlink == 1 and present.st_nlink == 1:
            return True
        one, other = (wanted.st_dev, wanted.st_ino), (present.st_dev, present.st_ino)
        if self._present_of.setdefault(one, other) != other or self._wanted_of.setdefault(other, one) != one:
            return False
        self._names.setdefault(one, path)
        return True

    def add_changed(self, wanted: os.stat_result | None) -> None:
        if wanted is not None and stat.S_ISDIR(wanted.st_mode):
            self._may_have_any = True
        elif wanted is not None and wanted.st_nlink > 1:
            self._changed.add((wanted.st_dev, wanted.st_ino))

    def anchors(self) -> list[str]:
        return [path for key, path in self._names.items() if self._may_have_any or key in self._changed]
