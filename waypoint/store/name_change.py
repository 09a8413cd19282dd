"""Moving names within one transaction on names.db, with a note of each move for the operation log."""

from pathlib import Path

import msgspec

from waypoint.model.errors import StateConflict, UnknownName, UsageProblem
from waypoint.model.ids import is_id, is_id_prefix
from waypoint.model.records import Move, Ref
from waypoint.store.log import LogReader
from waypoint.store.reading import Execute


class NameChange(LogReader):
    """The half of `Change` that moves names. Its reading methods see what the transaction has written so far."""

    def __init__(self, execute: Execute, path: Path) -> None:
        super().__init__(execute, path)
        self._moves: dict[str, Move] = {}
        self.note = (
            ""  # what the transaction does besides moving names and sessions, in words, for its entry in the log
        )

    def create(self, name: str, ref: Ref) -> None:
        """Make the new name `name`, for `ref`. Raises StateConflict if the name is taken, or if a name that exists
        excludes it (`a` excludes `a/b`, and `a/b` excludes `a`).
        """
        self.check_free(name, ref.kind)
        self.put(name, ref)

    def check_new(self, name: str, kind: str) -> None:
        """Raise StateConflict if `create` would, or if a capture could not be reached any more by the beginning of its
        id; UsageProblem for a name that is like a whole id, of which one may be made later. As with git, a name that
        could be the beginning of an id is taken if there is no such id.
        """
        on = f"{kind} {name}"
        if is_id(name):
            raise UsageProblem("create", on, "a name may not look like the id of a capture", "choose another name")
        if is_id_prefix(name):
            row = self._execute("SELECT id FROM captures WHERE id GLOB ? LIMIT 1", (f"{name}*",)).fetchone()
            if row is not None:
                said = "it is the beginning of a capture's id"
                raise StateConflict("create", on, said, "choose another name")
        self.check_free(name, kind)

    def check_free(self, name: str, kind: str) -> None:
        """Raise StateConflict if `create` would."""
        taken = self.ref(name)
        on = f"{kind} {name}"
        if taken is not None:
            raise StateConflict("create", on, f"there is a {taken.kind} of this name", "choose another name")
        above = [name[:place] for place, character in enumerate(name) if character == "/"]
        # The names below `name` sort between "name/" and "name0": "0" is the character after "/".
        query = f"SELECT name FROM refs WHERE name IN ({', '.join('?' * len(above))}) OR name > ? AND name < ? LIMIT 1"
        row = self._execute(query, (*above, f"{name}/", f"{name}0")).fetchone()
        if row is not None:
            found = self.ref(row[0])
            said = f"the {found.kind if found else 'name'} {row[0]} exists"
            raise StateConflict("create", on, said, "choose another name")

    def put(self, name: str, ref: Ref | None) -> None:
        """Let the name stand for `ref`, whatever it stood for before; None: remove the name."""
        before = self._moves[name].before if name in self._moves else self.ref(name)
        if ref is None:
            self._execute("DELETE FROM refs WHERE name = ?", (name,))
        else:
            self._execute("INSERT OR REPLACE INTO refs VALUES (?, ?, ?)", (name, ref.capture, msgspec.json.encode(ref)))
        self._moves[name] = Move(before=before, after=ref)

    def advance(self, branch: str, capture_id: str) -> None:
        """Make the capture the branch's tip. Raises UnknownName if there is no such branch (any more)."""
        ref = self.ref(branch)
        if ref is None or ref.kind != "branch":
            raise UnknownName("move", f"branch {branch}", "there is no such branch", "'waypoint branch' lists them")
        self.put(branch, msgspec.structs.replace(ref, capture=capture_id))
