"""Planning the change of the machine's files: the steps, and the conflicts that forbid them."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from waypoint.linux.storage import beneath
from waypoint.model.paths import is_below
from waypoint.upper import git_index
from waypoint.upper.apply_journal import ApplyPlan, Journal, Left, Mark, Step, mark_of
from waypoint.upper.comparing import Change, attributes
from waypoint.upper.views import READ_FOLDER, Entry, Pairs, Sides

Resolution = Literal["refuse", "ours", "theirs", "merge"]
"""A file that the machine has changed: nothing is done; the machine's file stays; the session's file replaces it; both
are merged.
"""

_SPECIAL = stat.S_ISUID | stat.S_ISGID
_CAPABILITIES = "security.capability"


class Conflict(NamedTuple):
    """`can_choose`: a Resolution decides about it. `path`: relative to the place `place`."""

    place: int
    path: str
    said: str
    can_choose: bool = True


class Seen:
    """Decides whether the machine's files are still those that the session has seen."""

    def __init__(self, since_ns: int, ancestry: set[str], journals: Iterable[Journal]) -> None:
        """`since_ns`: the session began then. `ancestry`: the ids of the capture that is applied and of its
        ancestors: what was applied from them, the session has made itself.
        """
        self._since_ns = since_ns
        self._known: set[tuple[int, int]] = set()  # inode and ctime of files that were applied from an ancestor
        self._came_back: dict[tuple[int, int], tuple[int, int]] = {}  # of those that were put back: the former ones
        self._indexes: dict[bytes, tuple[int, int]] = {}  # of git indexes that were applied or put back, by digest
        for journal in journals:
            try:
                capture, found = journal.capture(), journal.left()
            except ValueError:  # it cannot be decoded, so its files are not known
                continue
            for left in found if capture is not None else ():
                if left is not None and left.was is not None:
                    self._came_back[left.now] = left.was
                elif left is not None and capture in ancestry:
                    self._known.add(left.now)
                else:
                    continue
                if left.index:
                    self._indexes[left.index] = left.now

    def has(self, facts: os.stat_result, before_ns: int = 0, index: bytes = b"") -> bool:
        """`before_ns`: the session has seen what the machine did before this moment. `index`: the digest of a git
        index.
        """
        *_, key = self.formers(self._indexes.get(index, (facts.st_ino, facts.st_ctime_ns)))
        return key[1] <= self._since_ns or key[1] < before_ns or key in self._known

    def formers(self, key: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """The inode and ctime of a file, then those that it had before it was replaced and put back, each time."""
        yield key
        for _ in self._came_back:
            if key not in self._came_back:
                return
            key = self._came_back[key]
            yield key


class Rules(NamedTuple):
    """`first_changed_ns`: when the session has changed the entry at a path for the first time; 0 if that is unknown. It
    has seen the machine's entry until then. `lost_its_source`: whether the file at a path is the session's copy of a
    file that the machine no longer has; False for a new file, and for a file of the machine that the session has
    renamed. `merge`: returns the merged content of a changed file; None if it cannot be merged. `is_in_upper`: whether
    the session has its own copy of the entry at a path. `has_nothing_staged`: whether the machine's git index at a path
    says the same as the commit that is checked out. `allow_special`: set-user-ID files, files with capabilities, and
    devices are applied.
    """

    seen: Seen
    resolution: Resolution
    allow_special: bool
    first_changed_ns: Callable[[str], int]
    lost_its_source: Callable[[str], bool]
    is_in_upper: Callable[[str], bool]
    has_nothing_staged: Callable[[str], bool]
    merge: Callable[[Change], bytes | None]


class Planner:
    """Collects the steps that bring the session's changes onto the machine."""

    def __init__(self) -> None:
        self.conflicts: list[Conflict] = []
        self.changes: list[tuple[int, Change]] = []
        self.replaced: list[tuple[int, str]] = []  # files of the machine that are replaced although they have changed
        self.merged: dict[tuple[int, str], bytes] = {}  # the content of merged files
        self._removals: list[Step] = []
        self._puts: list[Step] = []
        self._folders: dict[tuple[int, str], Step] = {}

    def add_place(self, place: int, found: Iterable[Change], pairs: Pairs, rules: Rules) -> None:
        """Plan the changes of one place. `pairs`: finds entries in the session's view and on the machine."""
        planned: list[tuple[Change, list[Step], list[Step]]] = []
        stays: set[str] = set()  # paths at which the machine keeps its files, against the session's
        moved = ""  # the last folder of the machine that the session has moved
        for change in found:
            if git_index.is_index(change.path) and _says_same(*pairs.at(change.path)):
                continue
            moved = change.path if change.source else moved
            conflict = _conflict(place, change, pairs, rules) or _loses_source(place, change, moved, rules)
            if conflict is None or self._is_planned(conflict, change, rules, stays):
                planned.append((change, *self._steps(place, change, pairs.at(change.path))))
        above = {folder for path in stays for folder in _above(path)}
        for change, removals, puts in planned:
            if change.path in above and removals:  # a folder in which a file stays
                continue
            if any(folder in stays for folder in _above(change.path)):
                continue
            self._removals += removals
            self._puts += puts
            self.changes.append((place, change))

    def _is_planned(self, conflict: Conflict, change: Change, rules: Rules, stays: set[str]) -> bool:
        """Whether the change is planned in spite of the conflict. Notes what becomes of it; adds the path to `stays` if
        the machine's file stays.
        """
        if not conflict.can_choose or rules.resolution == "refuse":
            self.conflicts.append(conflict)
        elif rules.resolution == "theirs":
            self.replaced.append((conflict.place, change.path))
        elif rules.resolution == "merge":
            merged = rules.merge(change) if change.how == "changed" else None
            if merged is None:
                self.conflicts.append(conflict._replace(said=f"{conflict.said}, and cannot be merged"))
            else:
                self.merged[conflict.place, change.path] = merged
        elif change.how != "attributes" or not stat.S_ISDIR(change.wanted.st_mode if change.wanted is not None else 0):
            stays.add(change.path)  # of a folder only the attributes stay
        return rules.resolution != "ours" or not conflict.can_choose

    def _steps(self, place: int, change: Change, sides: Sides) -> tuple[list[Step], list[Step]]:
        """The removals and the puts of one change. Notes the folders whose attributes or times change."""
        path, (wanted, present) = os.fsencode(change.path), sides
        new = _mark(wanted, change.wanted)
        old = _mark(present, change.present)
        self._note_above(place, change.path, sides)
        if old is not None and new is not None and old.is_folder and new.is_folder:
            self._folders[place, change.path] = Step(place, path, old, new)
            return [], []
        if new is not None and new.is_folder:
            self._folders[place, change.path] = Step(place, path, None, new)
        if old is None or new is None or (old.is_folder or new.is_folder):
            removals = [] if old is None else [Step(place, path, old, None)]
            return removals, [] if new is None else [Step(place, path, None, new)]
        return [], [Step(place, path, old, new)]

    def _note_above(self, place: int, path: str, sides: Sides) -> None:
        """Note that the folder above gets the times that it has in the session."""
        folder = path.rpartition("/")[0]
        if sides.present is None or (place, folder) in self._folders:
            return
        facts = os.fstat(sides.present.folder)
        before = mark_of(facts, attributes(Entry(sides.present.folder, ".")))
        wanted = before
        if sides.wanted is not None:
            times = os.fstat(sides.wanted.folder)
            wanted = msgspec.structs.replace(before, times_ns=(times.st_atime_ns, times.st_mtime_ns))
        self._folders[place, folder] = Step(place, os.fsencode(folder), before, wanted)

    def steps(self) -> tuple[list[Step], list[Step]]:
        """The steps and the folders of an ApplyPlan."""
        folders = (step for step in self._removals if step.before is not None and step.before.is_folder)
        removed = {(step.place, step.name) for step in folders}
        changed = [step for key, step in sorted(self._folders.items()) if key not in removed]
        return in_order(self._removals, self._puts), changed


def in_order(removals: Iterable[Step], puts: Iterable[Step]) -> list[Step]:
    """First what is removed, the content of a folder before it; then what is put, a folder before its content."""

    def key(step: Step) -> tuple[int, bytes]:
        return step.place, step.path.replace(b"/", b"\0")

    return [*sorted(removals, key=key, reverse=True), *sorted(puts, key=key)]


def _mark(entry: Entry | None, facts: os.stat_result | None) -> Mark | None:
    if entry is None or facts is None:
        return None
    return mark_of(facts, attributes(entry) if stat.S_ISDIR(facts.st_mode) else None)


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _conflict(place: int, change: Change, pairs: Pairs, rules: Rules) -> Conflict | None:
    wanted, present = pairs.at(change.path)
    if present is not None and change.present is not None and _is_mount_point(present):
        return Conflict(place, change.path, "it is a mount point on the machine", can_choose=False)
    if wanted is not None and change.wanted is not None and not rules.allow_special:
        said = _special(wanted, change.wanted)
        if said:
            return Conflict(place, change.path, f"{said}; --allow-special applies it", can_choose=False)
    if change.present is None:
        if change.wanted is not None and not stat.S_ISDIR(change.wanted.st_mode) and present is not None:
            facts = os.fstat(present.folder)
            if not _is_seen(facts, change.path, rules) and rules.lost_its_source(change.path):
                return Conflict(place, change.path, "it was removed on the machine")
        return None
    is_removed_folder = stat.S_ISDIR(change.present.st_mode) and change.how != "attributes"
    is_seen = _is_seen(change.present, change.path, rules) or _is_seen_index(present, change, rules)
    return None if is_removed_folder or is_seen else Conflict(place, change.path, "it was changed on the machine")


def _says_same(wanted: Entry | None, present: Entry | None) -> bool:
    if wanted is None or present is None:
        return False
    digest = git_index.digest_of(wanted)
    return digest != b"" and digest == git_index.digest_of(present)


def _is_seen_index(entry: Entry | None, change: Change, rules: Rules) -> bool:
    """Whether the machine's entry is a git index without anything that the session has not seen: it says the same as
    when it was applied or put back, or nothing is staged and HEAD has not moved.
    """
    if entry is None or not git_index.is_index(change.path):
        return False
    if change.present is not None and rules.seen.has(change.present, index=git_index.digest_of(entry)):
        return True
    moves = Entry(entry.folder, "logs/HEAD").look()
    is_seen = moves is not None and _is_seen(moves, change.path, rules)
    return is_seen and rules.has_nothing_staged(change.path)


def _loses_source(place: int, change: Change, moved: str, rules: Rules) -> Conflict | None:
    """The conflict if the session shows content of the machine at another path, which the apply would remove. `moved`:
    the folder of the machine that the session has moved last.
    """
    if not moved or not is_below(change.path, moved) or rules.is_in_upper(change.path):
        return None
    said = "the session has moved its folder, and would lose it: apply the branch while its session runs"
    return Conflict(place, change.path, said, can_choose=False)


def _is_seen(facts: os.stat_result, path: str, rules: Rules) -> bool:
    return rules.seen.has(facts) or rules.seen.has(facts, rules.first_changed_ns(path))


def _special(entry: Entry, facts: os.stat_result) -> str:
    if stat.S_ISCHR(facts.st_mode) or stat.S_ISBLK(facts.st_mode):
        return "it is a device"
    if stat.S_ISREG(facts.st_mode) and facts.st_mode & _SPECIAL and facts.st_mode & 0o111:
        return "it runs with the rights of its owner or group"
    if stat.S_ISREG(facts.st_mode):
        with contextlib.suppress(OSError):  # ENODATA
            os.getxattr(f"{beneath.name_of(entry.folder)}/{entry.name}", _CAPABILITIES, follow_symlinks=False)
            return "it runs with capabilities"
    return ""


def _is_mount_point(entry: Entry) -> bool:
    try:
        with beneath.opened(entry.folder, entry.name, os.O_PATH | os.O_NOFOLLOW, across=False):
            return False
    except OSError as error:
        return error.errno == errno.EXDEV


def find_missing_folders(steps: Iterable[Step], roots: list[int]) -> list[Conflict]:
    """Conflicts for steps whose folder the machine does not have, such as below a mount point or a link."""
    made = {(step.place, step.name) for step in steps if step.wanted is not None and step.wanted.is_folder}
    found: list[Conflict] = []
    checked: dict[tuple[int, str], bool] = {}
    for step in steps:
        key = step.place, step.name.rpartition("/")[0]
        if step.wanted is None or key in made:
            continue
        if key not in checked:
            try:
                os.close(beneath.open_beneath(roots[step.place], key[1], os.O_PATH | os.O_DIRECTORY, across=False))
                checked[key] = True
            except OSError:
                checked[key] = False
        if not checked[key]:
            said = "its folder does not exist on the machine, or is another mount there"
            found.append(Conflict(step.place, step.name, said, can_choose=False))
    return found


class Reversal(NamedTuple):
    """`kept`: folders, made by the change, that stay because other files are in them now, by place and path."""

    steps: list[Step]
    folders: list[Step]
    conflicts: list[Conflict]
    kept: set[tuple[int, bytes]]


def plan_reversal(
    plan: ApplyPlan, left: list[Left | None], roots: list[int], seen: Seen, *, force: bool = False
) -> Reversal:
    """Plan to take back a change that was made by `plan` and that has left the files as in `left`. `seen`: knows which
    files were put back since. `force`: replace files that were changed after that.
    """
    removals: list[Step] = []
    puts: list[Step] = []
    conflicts: list[Conflict] = []
    folders = list(_former_folders(plan, left[len(plan.steps) :], roots))
    put = {(step.place, step.path) for step in plan.steps if step.wanted is not None}
    kept = _folders_to_keep(plan, roots)
    for number, step in enumerate(plan.steps):
        key = step.place, step.path
        now = None if step.wanted is None and key in put else _mark_at(roots[step.place], step.name)
        if step.before is None and (now is None or key in kept):
            continue
        if step.wanted is None and _are_folders(step.before, now):
            continue
        said = (
            "it is a folder with other files now"
            if key in kept
            else _change_since(step, now, left[number], roots, seen)
        )
        if said:
            marks = (now, step.before, step.wanted)
            can_choose = key not in kept and not any(mark is not None and mark.is_folder for mark in marks)
            conflicts += [] if force and can_choose else [Conflict(step.place, step.name, said, can_choose)]
        if step.before is None:
            removals.append(Step(step.place, step.path, now, None))
            continue
        puts.append(Step(step.place, step.path, now, step.before, number))
        if step.before.is_folder:
            folders.append(Step(step.place, step.path, None, step.before))
    steps = in_order(removals, puts)
    return Reversal(steps, folders, conflicts + find_missing_folders(steps, roots), kept)


def _former_folders(plan: ApplyPlan, left: Iterable[Left | None], roots: list[int]) -> Iterator[Step]:
    """Steps that give folders their former attributes and times, of those that are still there."""
    for step, mark in zip(plan.folders, left, strict=True):
        now = _mark_at(roots[step.place], step.name)
        if step.before is not None and step.wanted is not None and now is not None and now.is_folder:
            is_same = mark is not None and _is_as_left(now, step.wanted, mark)
            yield Step(step.place, step.path, step.wanted, step.before, 0 if is_same else -1)


def _folders_to_keep(plan: ApplyPlan, roots: list[int]) -> set[tuple[int, bytes]]:
    """The folders that the plan has made and in which there are files now that it has not made, by place and path."""
    made = {(step.place, step.path) for step in plan.steps if step.wanted is not None}
    kept: set[tuple[int, bytes]] = set()
    for step in reversed(plan.steps):  # a folder after its content
        if step.wanted is None or not step.wanted.is_folder:
            continue
        with contextlib.suppress(OSError), beneath.opened(roots[step.place], step.name, READ_FOLDER) as fd:
            paths = {(step.place, step.path + b"/" + os.fsencode(name)) for name in os.listdir(fd)}
            if paths - made or paths & kept:
                kept.add((step.place, step.path))
    return kept


def _are_folders(*marks: Mark | None) -> bool:
    return all(mark is not None and mark.is_folder for mark in marks)


def _change_since(step: Step, now: Mark | None, left: Left | None, roots: list[int], seen: Seen) -> str:
    """How the entry has changed since the step has left it, in words; "" if it has not."""
    if step.wanted is None:
        return "there is another file now" if now is not None else ""
    if now is None:
        return "it was removed after that"
    if _is_as_left(now, step.wanted, left):
        return ""
    if left is not None and left.now in seen.formers((now.inode, now.changed_ns)):
        return ""
    if left is not None and left.index:
        with beneath.parent_of(roots[step.place], step.name) as (folder, name):
            if git_index.digest_of(Entry(folder, name)) == left.index:
                return ""
    return "it was changed after that"


def _mark_at(root: int, path: str) -> Mark | None:
    try:
        with beneath.parent_of(root, path) as (folder, name):
            entry = Entry(folder, name)
            return _mark(entry, entry.look())
    except OSError:  # its folder is gone, or a link
        return None


def _is_as_left(now: Mark | None, wanted: Mark, left: Left | None) -> bool:
    if now is None or stat.S_IFMT(now.mode) != stat.S_IFMT(wanted.mode):
        return False
    return left is None or (now.inode, now.changed_ns) == left.now
