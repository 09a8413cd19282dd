"""Whether what the machine has may be replaced by what a session has made."""

import errno
import os
import stat
from typing import NamedTuple

from waypoint.branch.applying.choice import Choice
from waypoint.branch.applying.own_changes import Known, Name
from waypoint.upper.comparing.stack import below
from waypoint.upper.writing.content import NO_FOLDER, Roots, ShownEntry, all_in, opened
from waypoint.upper.writing.file_marks import Attributes, FileMark, is_alike, is_same, mark
from waypoint.upper.writing.making import is_same_folder

_UNKNOWN_NS = 1  # when the branch began elsewhere, or nobody has kept when it did


class BothSides(NamedTuple):
    """A folder that is on both sides. `path`: below the root of the mount."""

    path: str
    upper: int
    machine: int


class PlaceJudge:
    """Of one place. `machine`: the path of its root. `since_ns`: when the branch began (`ApplyOrder.since_ns`)."""

    def __init__(self, roots: Roots, choice: Choice, machine: str, known: Known, since_ns: int) -> None:
        self._roots = roots
        self._choice = choice
        self._machine = machine
        self._known = known
        self.since_ns = since_ns
        self._own: list[str] = []  # folders that are as the session has put them there

    def _name(self, folder: BothSides, entry: ShownEntry) -> Name:
        return self._machine, os.fsencode(folder.path), os.fsencode(entry.name)

    def is_put(self, folder: BothSides, entry: ShownEntry) -> bool:
        """Whether the machine has the folder as an earlier change of the session has put it there. What is in it may be
        replaced then.
        """
        try:
            present = mark(folder.machine, entry.name)
        except OSError:
            return False
        if present is None or not stat.S_ISDIR(present.mode) or self._seen(folder, entry, present) is not None:
            return False
        self._own.append(below(folder.path, entry.name))
        return True

    def changed_since(self, folder: BothSides, entry: ShownEntry, before: FileMark) -> str:
        """In words, that what the machine has at the name is not what the session has seen; "" if it is, or if it is
        what the session has made of it.
        """
        path = below(folder.path, entry.name)
        seen = self._seen(folder, entry, before)
        if seen is None or any(path.startswith(f"{own}/") for own in self._own):
            return ""
        if max(seen.ctime_ns, seen.newest_ns) > self.since_ns:
            if is_alike((folder.machine, entry.name), (entry.folder, entry.name)):
                return ""  # one that has several names
            what = "it, or something in it," if stat.S_ISDIR(before.mode) else "it"
            if self.since_ns <= _UNKNOWN_NS:
                return f"{what} is another one on the machine, and the session may never have seen that"
            return f"{what} was changed on the machine since the branch began"
        return ""

    def _seen(self, folder: BothSides, entry: ShownEntry, present: FileMark) -> FileMark | None:
        name = self._name(folder, entry)
        return self._known.as_seen(name, self._known.as_left(name, present, (folder.machine, entry.name)))

    def has_left(self, folder: BothSides, attributes: Attributes) -> bool:
        """Whether the folder has attributes that a change of ours has found or given to it."""
        return self._known.has_left((self._machine, os.fsencode(folder.path)), attributes)

    def is_same(self, folder: BothSides, entry: ShownEntry, present: os.stat_result) -> bool:
        """Whether the machine has the very file. A time alone counts only if the machine has not set it later."""
        is_later = present.st_ctime_ns > self.since_ns
        if not is_later and present.st_mtime_ns != entry.facts.st_mtime_ns:
            return False
        return is_same((folder.machine, entry.name), (entry.folder, entry.name))

    def has_same(self, folder: BothSides, entry: ShownEntry) -> bool:
        """Whether the machine has the very folder, with the same in it."""
        try:
            with opened(folder.machine, entry.name) as fd:
                return self._choice.is_whole(below(folder.path, entry.name)) and is_same_folder(self._roots, entry, fd)
        except OSError as error:
            if error.errno not in (*NO_FOLDER, errno.EXDEV):
                raise
            return False

    def has_own(self, entry: ShownEntry, path: str) -> bool:
        """Whether a folder has anything but ways to what is none of the machine's."""
        choice = self._choice
        return any(
            choice.concerns(inside) and not (inner.is_folder and choice.is_hollow(inside))
            for inside, inner in all_in(self._roots, entry, path)
        )
