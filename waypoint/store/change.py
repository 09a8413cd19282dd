"""One transaction on names.db: its checked changes to names, captures and live sessions, and its entry in the log."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from waypoint.model.details.applied_record import Applied
from waypoint.model.errors import StateConflict
from waypoint.model.records import Aside, Aspect, Capture, LiveRow, Operation, Ref, Standing
from waypoint.store import callers
from waypoint.store.belonging import BelongingChange
from waypoint.store.log import LogReader
from waypoint.store.reading import Execute


class Change(BelongingChange):
    """A transaction, as `Names.change` yields it. An exception in the `with` block takes the whole transaction back.

    `number`: the number of its entry in the operation log, set at the end of the transaction; None if it has no entry.
    """

    def __init__(self, execute: Execute, path: Path, verb: str) -> None:
        super().__init__(execute, path)
        self.number: int | None = None
        self._verb = verb
        self._sessions: dict[str, tuple[bool, bool]] = {}
        self._aside: dict[str, Aside] = {}
        self._applied: Applied | None = None
        self._undoes: int | None = None
        self._parts: list[int] = []

    def add(self, capture: Capture) -> None:
        """Record a capture. Takes back the doom of its id."""
        self._execute(
            "INSERT INTO captures VALUES (?, ?, ?)", (capture.id, capture.created, msgspec.json.encode(capture))
        )
        self.spare(capture.id)

    def set_standing(self, capture_id: str, standing: Standing) -> None:
        """Record what has become of a capture. Raises StoreDamaged if there is no such capture."""
        self.capture(capture_id)
        parts = msgspec.json.encode(standing.parts)
        row = (capture_id, standing.image, standing.durable, standing.removed, parts)
        self._execute("INSERT OR REPLACE INTO standings VALUES (?, ?, ?, ?, ?)", row)

    def reserve(self, row: LiveRow, *, beside: bool = False) -> None:
        """Note that a session is being started; `live` does not list the session before `ready`.

        `beside`: the session is to replace the live session of its branch. Raises StateConflict if the branch has a
        live session and not `beside`, or if no branch of this name can be made.
        """
        found = self._execute("SELECT ready FROM live WHERE branch = ?", (row.branch,)).fetchall()
        if found and not beside:
            next_step = f"park it first, which keeps its programs: waypoint checkpoint NAME -b {row.branch} --park"
            raise StateConflict("start", f"branch {row.branch}", "it has a live session", next_step)
        ref = self.ref(row.branch)
        if ref is None or ref.kind != "branch":
            self.check_new(row.branch, "branch")
        self._execute("INSERT INTO live VALUES (?, ?, 0, ?)", (row.session, row.branch, msgspec.json.encode(row)))

    def ready(self, row: LiveRow, origin: str | None) -> None:
        """Note that the session `row` is live. `origin`: the capture that it goes on from, which becomes the branch's
        tip; None: it began with the plain base. Makes the branch if it does not exist.
        """
        ref = self.ref(row.branch)
        if ref is None or ref.kind != "branch":
            self.create(row.branch, Ref(kind="branch", capture=origin, origin=origin, created=row.started))
        elif origin is not None and ref.capture != origin:
            self.advance(row.branch, origin)
        self._execute("UPDATE live SET ready = 1 WHERE session = ?", (row.session,))
        self._note(row.branch, after=True)

    def forget(self, row: LiveRow) -> None:
        """Remove the session `row` from the record: it has ended, or its start was taken back. Its processes, its
        folder and its tree are doomed; a tree that belongs to a recorded capture is kept all the same.
        """
        found = self._execute("SELECT ready FROM live WHERE session = ?", (row.session,)).fetchone()
        self._execute("DELETE FROM live WHERE session = ?", (row.session,))
        self.doom(row.session)
        self.doom(row.tree)
        if found and found[0]:
            self._note(row.branch, after=False)

    def replace_session(self, branch: str, aside: str) -> None:
        """Note that the live session on `branch` is replaced by another one. `aside`: the id of the recorded capture of
        the replaced session. The caller changes the rows of both sessions (`forget` and `ready`).
        """
        self._aside[branch] = Aside(capture=aside)

    def replace_aspect(self, branch: str, aside: str, only: Aspect) -> None:
        """Note that the aspect `only` of the session on `branch` is replaced, and that the session goes on.

        `aside`: the id of the recorded capture of the session before the replacement; it becomes the branch's tip.
        """
        self.advance(branch, aside)
        self._sessions[branch] = (True, True)
        self._aside[branch] = Aside(capture=aside, only=only)

    def apply(self, applied: Applied) -> None:
        """Note that this change has changed files of the machine."""
        self._applied = applied

    def undo(self, number: int, parts: Sequence[Operation]) -> None:
        """Note that this change takes back operation `number`. To be called before this change moves a name.

        `parts`: the operations that ended, started or restored sessions for this undo. They are marked as parts of it,
        and its entry tells what they have done, too, so that all of it can be taken back at once. `aside` of each says
        what was kept of all sessions that it has ended or replaced.
        """
        self._undoes = number
        self.gather(parts)

    def gather(self, parts: Sequence[Operation]) -> None:
        """Note that this change is, as one, what `parts` have done, so that all of it can be taken back at once: they
        are marked as its parts.
        """
        self._parts = [part.number for part in parts]
        for part in parts:
            self._moves.update(part.moves)
            self._sessions.update(part.sessions)
            self._aside.update(part.aside)

    def log(self) -> Operation | None:
        """Write the entry in the operation log and return it. None, and no entry, if neither a name nor a session has
        changed and there is no note.
        """
        has_done = self._moves or self._sessions or self._applied is not None
        if not has_done and self._undoes is None and not self.note:
            return None
        entry = Operation(
            number=0,
            at=time.time(),
            verb=self._verb,
            moves={name: move for name, move in self._moves.items() if move.before != move.after},
            sessions=self._sessions,
            aside=self._aside,
            by=callers.current(),
            undoes=self._undoes,
            applied=self._applied,
            note=self.note,
        )
        query = "INSERT INTO operations (record) VALUES (?)"
        number = self.number = self._execute(query, (msgspec.json.encode(entry),)).lastrowid
        if self._undoes is not None:
            for marked, undone_by in _marks(self, self._undoes, number):
                self._execute("UPDATE operations SET undone_by = ? WHERE number = ?", (undone_by, marked))
            self._execute("UPDATE operations SET undo = number WHERE number = ?", (number,))
        for part in self._parts:
            self._execute("UPDATE operations SET undo = ? WHERE number = ?", (number, part))
        return msgspec.structs.replace(entry, number=number or 0)

    def _note(self, branch: str, *, after: bool) -> None:
        before = self._sessions[branch][0] if branch in self._sessions else not after
        self._sessions[branch] = (before, after)


def _marks(log: LogReader, undone: int, by: int | None) -> Iterator[tuple[int, int | None]]:
    """The number of each entry that is taken back or in effect again since the undo `by` has taken back the entry
    `undone`, and the number of the undo that has taken it back.

    If `undone` is an undo itself, what that took back is in effect again; if this one is an undo, what it took back is
    not; and so on.
    """
    number: int | None = undone
    while number is not None:
        yield number, by
        entry = log.operation(number)
        number, by = entry.undoes if entry else None, None if by is not None else number
