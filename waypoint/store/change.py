"""One transaction on names.db: what moves in it, checked, and its entry in the operation log."""

import sqlite3
import time

import msgspec

from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.records import Aspect, Capture, LiveRow, Move, Operation, Ref


class Change:
    """Made by `Names.change`. Whatever raises takes all of it back."""

    def __init__(self, db: sqlite3.Connection, verb: str) -> None:
        self._db = db
        self._verb = verb
        self._moves: dict[str, Move] = {}
        self.sessions: dict[str, tuple[bool, bool]] = {}
        self.replaced: str | None = None
        self.only: Aspect | None = None
        self.undoes: int | None = None
        self.carried: list[int] = []

    def add(self, capture: Capture) -> None:
        """Record a capture."""
        self._db.execute(
            "INSERT INTO captures VALUES (?, ?, ?)", (capture.id, capture.created, msgspec.json.encode(capture))
        )

    def ref(self, name: str) -> Ref | None:
        row = self._db.execute("SELECT record FROM refs WHERE name = ?", (name,)).fetchone()
        return msgspec.json.decode(row[0], type=Ref) if row else None

    def create(self, name: str, ref: Ref) -> None:
        """Raises StateConflict if the name is taken, or excluded by one (`a` excludes `a/b`)."""
        self.check_free(name, ref.kind)
        self.put(name, ref)

    def check_free(self, name: str, kind: str) -> None:
        """Raises StateConflict as `create`."""
        taken = self.ref(name)
        on = f"{kind} {name}"
        if taken is not None:
            next_step = "choose another name" if taken.kind == "branch" else "choose another name, or give --force"
            raise StateConflict("create", on, f"there is a {taken.kind} of this name", next_step)
        above = [name[:place] for place, character in enumerate(name) if character == "/"]
        # Those below it: "0" is what comes behind "/".
        query = f"SELECT name FROM refs WHERE name IN ({', '.join('?' * len(above))}) OR name > ? AND name < ? LIMIT 1"
        row = self._db.execute(query, (*above, f"{name}/", f"{name}0")).fetchone()
        if row is not None:
            found = self.ref(row[0])
            said = f"the {found.kind if found else 'name'} {row[0]} exists"
            raise StateConflict("create", on, said, "choose another name")

    def put(self, name: str, ref: Ref | None) -> None:
        """Let the name stand for `ref`, whatever it stood for; None: remove it."""
        before = self._moves[name].before if name in self._moves else self.ref(name)
        if ref is None:
            self._db.execute("DELETE FROM refs WHERE name = ?", (name,))
        else:
            self._db.execute(
                "INSERT OR REPLACE INTO refs VALUES (?, ?, ?)", (name, ref.capture, msgspec.json.encode(ref))
            )
        self._moves[name] = Move(before=before, after=ref)

    def advance(self, branch: str, capture_id: str) -> None:
        """Move the branch's tip. Raises UnknownName if there is no such branch (any more)."""
        ref = self.ref(branch)
        if ref is None or ref.kind != "branch":
            raise UnknownName("move", f"branch {branch}", "there is no such branch")
        self.put(branch, msgspec.structs.replace(ref, capture=capture_id))

    def reserve(self, row: LiveRow, *, beside: bool = False) -> None:
        """Note that a session is being started; nobody sees it before `ready`. `beside`: it is to replace the live one.

        Raises StateConflict if the branch has a live session, or its name cannot be a branch.
        """
        found = self._db.execute("SELECT ready FROM live WHERE branch = ?", (row.branch,)).fetchall()
        if found and not beside:
            raise StateConflict("start", f"branch {row.branch}", "it has a live session", "attach to it")
        ref = self.ref(row.branch)
        if ref is None or ref.kind != "branch":
            self.check_free(row.branch, "branch")
        self._db.execute("INSERT INTO live VALUES (?, ?, 0, ?)", (row.session, row.branch, msgspec.json.encode(row)))

    def ready(self, row: LiveRow, origin: str | None) -> None:
        """The session is there, and goes on from `origin`, now its branch's tip. Makes the branch if need be."""
        ref = self.ref(row.branch)
        if ref is None or ref.kind != "branch":
            self.create(row.branch, Ref(kind="branch", capture=origin, origin=origin, created=row.started))
        elif origin is not None and ref.capture != origin:
            self.advance(row.branch, origin)
        self._db.execute("UPDATE live SET ready = 1 WHERE session = ?", (row.session,))
        self._note(row.branch, after=True)

    def forget(self, row: LiveRow) -> None:
        """The session is there no more."""
        found = self._db.execute("SELECT ready FROM live WHERE session = ?", (row.session,)).fetchone()
        self._db.execute("DELETE FROM live WHERE session = ?", (row.session,))
        if found and found[0]:
            self._note(row.branch, after=False)

    def replace_aspect(self, branch: str, aside: str, only: Aspect) -> None:
        """The branch's session goes on, with one aspect of it replaced. `aside`: the capture, on record, of before.
        That is what the session goes on from, and becomes the branch's tip.
        """
        self.advance(branch, aside)
        self.sessions[branch] = (True, True)
        self.replaced, self.only = aside, only

    def log(self) -> None:
        """Write the entry of the operation log; none if neither a name nor a session changed."""
        if not self._moves and not self.sessions and self.undoes is None:
            return
        entry = Operation(
            number=0,
            at=time.time(),
            verb=self._verb,
            moves=self._moves,
            sessions=self.sessions,
            replaced=self.replaced,
            only=self.only,
            undoes=self.undoes,
            carried=self.carried,
        )
        number = self._db.execute("INSERT INTO operations (record) VALUES (?)", (msgspec.json.encode(entry),)).lastrowid
        if self.undoes is not None:
            self._db.execute("UPDATE operations SET undone_by = ? WHERE number = ?", (number, self.undoes))
            # An undo that was undone leaves what it had undone as it was.
            self._db.execute("UPDATE operations SET undone_by = NULL WHERE undone_by = ?", (self.undoes,))

    def _note(self, branch: str, *, after: bool) -> None:
        before = self.sessions[branch][0] if branch in self.sessions else not after
        self.sessions[branch] = (before, after)
