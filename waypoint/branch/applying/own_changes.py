"""What earlier changes of ours have left on the machine: files that were changed since the branch began, and yet are
what the session has seen.

A file is known by its mark or, if somebody has touched it, or has written the same once more, by its digest.
"""

from collections.abc import Sequence

from waypoint.branch.applying.apply_records import Action, ApplyPlan
from waypoint.branch.applying.journal import Journal, journals_in
from waypoint.upper.writing.file_marks import Attributes, FileMark, differ, may_be_same
from waypoint.upper.writing.whole_digest import digest_of

Name = tuple[str, bytes, bytes]
"""The machine's folder of a place, a folder in it, and a name in that."""


class Known:
    """`seen`: journals of what the session has made itself. `reverts`: those of what was taken back: what is there
    since is what was there before, though it was renamed. So it is with changes that have failed (`void`).
    """

    def __init__(self, journals: str, seen: Sequence[str], reverts: Sequence[str]) -> None:
        # Lists that are shorter than the plan are those of a journal that gc is removing: it has none.
        self._left: set[tuple[Name, FileMark]] = set()
        self._back: dict[tuple[Name, FileMark], FileMark] = {}
        self._digests: dict[Name, dict[bytes, FileMark]] = {}
        self._folders: dict[tuple[str, bytes], list[Attributes]] = {}
        for one in seen:
            journal = Journal(journals, one)
            plan = journal.plan()
            if plan is not None:
                marks = zip(plan.actions, journal.left(), strict=False)
                self._left |= {(name_in(plan, action), left) for action, left in marks if left is not None}
                self._note_digests(journal, plan)
                self._note_folders(plan)
        for one in reverts:
            plan = Journal(journals, one).plan()
            undone = Journal(journals, plan.of).plan() if plan is not None else None
            if plan is not None and undone is not None:  # else gc has removed them, with their operations
                self._note_back(Journal(journals, one), plan, undone)
        for journal in journals_in(journals):
            plan = journal.plan() if journal.has("void") else None
            if plan is not None:
                self._note_back(journal, plan, None)

    def _note_back(self, journal: Journal, plan: ApplyPlan, undone: ApplyPlan | None) -> None:
        """What the journal has left is what the plan `undone` has found; None: what its own plan has found."""
        for action, left in zip(plan.actions, journal.left(), strict=False):
            found = action if undone is None or action.kept is None else undone.actions[action.kept]
            if left is not None and found.before is not None and left != found.before:
                self._back[name_in(plan, action), left] = found.before
        if undone is not None:
            self._note_digests(journal, plan)
        self._note_folders(plan)

    def _note_digests(self, journal: Journal, plan: ApplyPlan) -> None:
        """What the journal has put, by its digests."""
        for action, waited, left in zip(plan.actions, journal.staged() or [], journal.left(), strict=False):
            if waited.digest and left is not None:
                self._digests.setdefault(name_in(plan, action), {})[waited.digest] = left

    def _note_folders(self, plan: ApplyPlan) -> None:
        for change in plan.folders:
            attributes = self._folders.setdefault((plan.machines[change.place], change.folder), [])
            attributes += [change.before, change.wanted]

    def as_left(self, name: Name, present: FileMark, at: tuple[int, str]) -> FileMark:
        """The mark with which a change of ours has left the very content that has the mark `present` now; `present` if
        there is none. `at`: the open folder with the name, and the name there, which is read if the mark is unknown.
        """
        digests = self._digests.get(name, {})
        if (name, present) in self._left or (name, present) in self._back:
            return present
        if not any(may_be_same(left, present) for left in digests.values()):
            return present
        try:
            return digests.get(digest_of(*at), present)
        except OSError:  # what cannot be read is not known
            return present

    def as_seen(self, name: Name, mark: FileMark) -> FileMark | None:
        """The mark that the session has seen at the name, if all that happened since is that changes were taken back.
        None: what is there is what the session has made itself.
        """
        while (name, mark) not in self._left:
            if (name, mark) not in self._back:
                return mark
            mark = self._back[name, mark]
        return None

    def is_still(self, name: Name, mark: FileMark | None, then: FileMark | None) -> bool:
        """Whether what has the mark now is what had the mark `then`."""
        while mark != then and mark is not None and (name, mark) in self._back:
            mark = self._back[name, mark]
        return mark == then

    def has_left(self, folder: tuple[str, bytes], attributes: Attributes) -> bool:
        """Whether the folder has attributes that a change of ours has found or given to it."""
        return any(not differ(one, attributes) for one in self._folders.get(folder, ()))


def name_in(plan: ApplyPlan, action: Action) -> Name:
    return plan.machines[action.place], action.folder, action.name
