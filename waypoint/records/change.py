"""One transaction on names.db: its checked changes to names, captures and live sessions, and its entry in the log."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from waypoint.model.conditions import Degradation
from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.records import (
    Applied,
    Aside,
    Aspect,
    BaseRef,
    Capture,
    Intent,
    Layers,
    LiveRow,
    Move,
    Operation,
    Point,
    Ref,
    Standing,
    StoreIdentity,
    Tier,
)
from waypoint.records import callers
from waypoint.records.reading import Execute, Reader


class Change(Reader):
    """A transaction, as `Names.change` yields it. An exception in the `with` block rolls the whole transaction back.
    Its reading methods see what the transaction has written so far.

    `note`: what the transaction does besides moving names and sessions, as text for its entry in the operation log.
    `degraded`: why that entry is incomplete, if it is an undo. `applied`: which files of the machine it has changed.
    `point`: the point that it makes. `number`: the number of that entry, set at the end of the transaction; None if
    there is no entry.
    """

    def __init__(self, execute: Execute, path: Path, verb: str) -> None:
        super().__init__(execute, path)
        self.number: int | None = None
        self.note = ""
        self.degraded: list[Degradation] = []
        self.applied: Applied | None = None
        self.point: Point | None = None
        self._verb = verb
        self._moves: dict[str, Move] = {}
        self._sessions: dict[str, tuple[bool, bool]] = {}
        self._aside: dict[str, Aside] = {}
        self._undoes: int | None = None

    # --- names

    def create(self, name: str, ref: Ref) -> None:
        """Create the name `name` with the value `ref`. Raises StateConflict if the name is not free."""
        self.check_free(name, ref.kind)
        self.put(name, ref)

    def put(self, name: str, ref: Ref | None) -> None:
        """Set the name to `ref`, whether or not it exists; None: remove the name."""
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

    def put_base(self, name: str, ref: BaseRef | None) -> None:
        """Set the name of a pinned base, whether or not it exists; None: remove the name."""
        if ref is None:
            self._execute("DELETE FROM bases WHERE name = ?", (name,))
        else:
            self._execute("INSERT OR REPLACE INTO bases VALUES (?, ?)", (name, msgspec.json.encode(ref)))

    # --- captures, and their left-overs on disk

    def add(self, capture: Capture) -> None:
        """Record a capture, which is no longer disposable."""
        row = (capture.id, capture.created, msgspec.json.encode(capture))
        self._execute("INSERT INTO captures VALUES (?, ?, ?)", row)
        self._execute("DELETE FROM doomed WHERE id = ?", (capture.id,))

    def add_degraded(self, capture_id: str, degraded: Iterable[Degradation]) -> Capture:
        """Record what a capture lacks, which was known after it was recorded. Returns its new record. Raises
        StoreDamaged if there is no such capture.
        """
        found = self.capture(capture_id)
        capture = msgspec.structs.replace(found, degraded=[*found.degraded, *degraded])
        self._execute("UPDATE captures SET record = ? WHERE id = ?", (msgspec.json.encode(capture), capture_id))
        return capture

    def complete(self, capture_id: str, tier: Tier, layers: Layers, degraded: Iterable[Degradation]) -> Capture:
        """Record the processes of a capture that was recorded before CRIU had dumped them. Returns its new record.
        Raises StoreDamaged if there is no such capture.
        """
        found = self.capture(capture_id)
        capture = msgspec.structs.replace(found, tier=tier, layers=layers, degraded=[*found.degraded, *degraded])
        self._execute("UPDATE captures SET record = ? WHERE id = ?", (msgspec.json.encode(capture), capture_id))
        return capture

    def set_standing(self, capture_id: str, standing: Standing) -> None:
        """Record the changed standing of a capture (model/records.py). Raises StoreDamaged if there is no such
        capture.
        """
        self.capture(capture_id)
        proof, changes = (
            None if one is None else msgspec.json.encode(one) for one in (standing.proof, standing.changes)
        )
        row = (capture_id, standing.image, standing.durable, standing.removed, proof, changes)
        self._execute("INSERT OR REPLACE INTO standings VALUES (?, ?, ?, ?, ?, ?)", row)

    def forget_captures(self, capture_ids: Iterable[str]) -> None:
        """Remove the records of captures. They must not be parents of captures whose records are kept."""
        for capture_id in capture_ids:
            self._execute("DELETE FROM captures WHERE id = ?", (capture_id,))
            self._execute("DELETE FROM standings WHERE capture = ?", (capture_id,))

    def add_disposable(self, ident: str) -> None:
        """Note that the next daemon may remove the thing with this id, if it is not recorded by then (marks.py)."""
        self._execute("INSERT OR REPLACE INTO doomed VALUES (?, ?)", (ident, time.time()))

    def begin_sweep(self) -> StoreIdentity:
        """Remove all disposable ids, and count one more opening of the database. Returns its new identity."""
        self._execute("DELETE FROM doomed", ())
        self._execute("UPDATE identity SET opened = opened + 1", ())
        return self.identity()

    # --- live sessions

    def reserve(self, row: LiveRow, *, beside: bool = False) -> None:
        """Note that a session is being started; `live` does not list the session before `ready`.

        `beside`: the session is to replace the live session of its branch. Raises StateConflict if the branch has a
        live session and not `beside`, or if no branch of this name can be made.
        """
        found = self._execute("SELECT ready FROM live WHERE branch = ?", (row.branch,)).fetchall()
        if found and not beside:
            next_step = f"stop it first: waypoint stop {row.branch}"
            raise StateConflict("start", f"branch {row.branch}", "it has a running session", next_step, code="live")
        ref = self.ref(row.branch)
        if ref is None or ref.kind != "branch":
            self.check_new(row.branch, "branch")
        self._execute("INSERT INTO live VALUES (?, ?, 0, ?)", (row.session, row.branch, msgspec.json.encode(row)))

    def ready(self, row: LiveRow, origin: str | None) -> None:
        """Note that the session `row` is live. `origin`: the capture that it continues from, which becomes the branch's
        tip; None: it began with the plain base. Makes the branch if it does not exist. The session may have been
        reserved with another branch.
        """
        ref = self.ref(row.branch)
        if ref is None or ref.kind != "branch":
            self.create(row.branch, Ref(kind="branch", capture=origin, origin=origin, created=row.started))
        elif origin is not None and ref.capture != origin:
            self.advance(row.branch, origin)
        query = "UPDATE live SET ready = 1, branch = ?, record = ? WHERE session = ?"
        self._execute(query, (row.branch, msgspec.json.encode(row), row.session))
        self._note(row.branch, after=True)

    def renew(self, row: LiveRow) -> None:
        """Record the changed setting of the live session `row`."""
        self._execute("UPDATE live SET record = ? WHERE session = ?", (msgspec.json.encode(row), row.session))

    def forget(self, row: LiveRow) -> None:
        """Remove the record of the session `row`, which has ended, or whose start was undone. Its processes, folder and
        tree become disposable. A tree that belongs to a recorded capture is kept nevertheless.
        """
        found = self._execute("SELECT ready FROM live WHERE session = ?", (row.session,)).fetchone()
        self._execute("DELETE FROM live WHERE session = ?", (row.session,))
        self.add_disposable(row.session)
        self.add_disposable(row.tree)
        if found and found[0]:
            self._note(row.branch, after=False)

    def leave(self, row: LiveRow, capture_id: str) -> None:
        """Note that the session `row` has been replaced, and stays frozen until CRIU has dumped it into the recorded
        capture. Then the caller calls `forget`; if this daemon ends before that, the next one does both.
        """
        record = msgspec.json.encode(msgspec.structs.replace(row, leaves_to=capture_id))
        self._execute("UPDATE live SET ready = 0, record = ? WHERE session = ?", (record, row.session))
        self._note(row.branch, after=False)

    def replace_session(self, branch: str, aside: str) -> None:
        """Note that the live session on `branch` is replaced by another one, or ended by an undo. `aside`: the id of
        the recorded capture of that session. The caller changes the rows of the sessions (`forget` and `ready`).
        """
        self._aside[branch] = Aside(capture=aside)

    def replace_aspect(self, branch: str, aside: str, only: Aspect) -> None:
        """Note that the aspect `only` of the session on `branch` is replaced, and that the session continues.

        `aside`: the id of the recorded capture of the session before the replacement; it becomes the branch's tip.
        """
        self.advance(branch, aside)
        self._sessions[branch] = (True, True)
        self._aside[branch] = Aside(capture=aside, only=only)

    # --- the operation log

    def expire(self, first_kept: int) -> None:
        """Note that no operation before the one with the number `first_kept` can be undone any more."""
        self._execute("UPDATE identity SET first_kept = max(first_kept, ?)", (first_kept,))

    def undo(self, number: int) -> None:
        """Note that this change undoes operation `number`."""
        self._undoes = number

    def add_intent(self, intent: Intent) -> Intent:
        """Record that an undo begins. Returns the intent with its number."""
        query = "INSERT INTO intents (record) VALUES (?)"
        return msgspec.structs.replace(
            intent, number=self._execute(query, (msgspec.json.encode(intent),)).lastrowid or 0
        )

    def take_intent(self, number: int) -> Intent | None:
        """Remove the intent. What its deeds have changed becomes part of this change. Call this before the change moves
        a name. Returns None if there is no such intent (any more).
        """
        intent = self._intent(number)
        if intent is not None:
            self._execute("DELETE FROM intents WHERE number = ?", (number,))
            self._moves.update(intent.moves)
            self._sessions.update(intent.sessions)
            self._aside.update(intent.aside)
        return intent

    def log(self) -> Operation | None:
        """Write the entry in the operation log and return it. None, and no entry, if neither a name nor a session has
        changed and there is no note, or if an undo makes the change: its intent then has the names and sessions.
        """
        has_effect = bool(self._moves or self._sessions or self.applied or self.point)
        if not has_effect and self._undoes is None and not self.note:
            return None
        if (self._moves or self._sessions) and self._add_to_intent():
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
            note=self.note,
            degraded=self.degraded,
            applied=self.applied,
            point=self.point,
        )
        query = "INSERT INTO operations (record) VALUES (?)"
        number = self.number = self._execute(query, (msgspec.json.encode(entry),)).lastrowid
        if self._undoes is not None:
            for marked, undone_by in _marks(self, self._undoes, number):
                self._execute("UPDATE operations SET undone_by = ? WHERE number = ?", (undone_by, marked))
            self._execute("UPDATE operations SET undo = number WHERE number = ?", (number,))
        return msgspec.structs.replace(entry, number=number or 0)

    def _add_to_intent(self) -> bool:
        """If an undo makes this change, add the moves and sessions to the undo's intent. Returns whether that is so."""
        number = callers.intent()
        intent = self._intent(number) if number is not None else None
        if intent is None:  # also if a task that the undo has started outlives the undo
            return False
        moves, sessions = dict(intent.moves), dict(intent.sessions)
        for name, move in self._moves.items():
            moves[name] = Move(before=moves.get(name, move).before, after=move.after)
        for branch, states in self._sessions.items():
            sessions[branch] = (sessions.get(branch, states)[0], states[1])
        aside = self._aside | intent.aside
        record = msgspec.json.encode(msgspec.structs.replace(intent, moves=moves, sessions=sessions, aside=aside))
        self._execute("UPDATE intents SET record = ? WHERE number = ?", (record, number))
        return True

    def _intent(self, number: int) -> Intent | None:
        return next((intent for intent in self.intents() if intent.number == number), None)

    def _note(self, branch: str, *, after: bool) -> None:
        before = self._sessions[branch][0] if branch in self._sessions else not after
        self._sessions[branch] = (before, after)


def _marks(log: Reader, undone: int, by: int | None) -> Iterator[tuple[int, int | None]]:
    """Yield the entries whose state changes when the undo `by` undoes the entry `undone`: the number of each, and the
    number of the undo by which it is now undone (None: it is in effect again).

    If `undone` is an undo itself, the entry that it undid is in effect again. If that entry is an undo, too, the entry
    that it undid is not in effect any more; and so on.
    """
    number: int | None = undone
    while number is not None:
        yield number, by
        entry = log.operation(number)
        number, by = entry.undoes if entry else None, None if by is not None else number
