"""Moving names within one transaction on names.db, with a note of each move for the operation log."""

from pathlib import Path

import msgspec

from waypoint.model.errors import UnknownName
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
