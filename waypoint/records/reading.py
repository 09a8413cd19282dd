"""Reading names, captures, live sessions and the operation log."""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from waypoint.model.errors import StateConflict, StoreDamaged, UnknownName, UsageProblem
from waypoint.model.ids import is_id, is_id_prefix, is_image_prefix
from waypoint.model.names import in_order, is_name
from waypoint.model.records import (
    BaseRef,
    Capture,
    ChangeCount,
    FilesLayer,
    Id,
    Intent,
    LiveRow,
    Operation,
    Proof,
    Ref,
    RefKind,
    Standing,
    StoreIdentity,
)
from waypoint.model.verbs import did_you_mean
from waypoint.records import callers
from waypoint.records.failures import damaged_record

PIECE = 64
"""Rows per query of a listing that may be long."""

Stored = TypeVar("Stored")
Execute = Callable[[str, Sequence[object]], sqlite3.Cursor]

_OPERATIONS = "SELECT number, undone_by, number < (SELECT first_kept FROM identity), record FROM operations"
_AS_TAKEN = Standing()
_MOST_COMPARED = 500  # names, with one that nobody has: 10 us each
_ANOTHER_CAPTURE = "choose another capture ('waypoint log --all' lists them)"


class Link(NamedTuple):
    """A capture in the graph of captures: its id, the time when it was taken, the ids of its parents, and a key of the
    branch on which it was taken, which stays the same when the branch is renamed; and `Setting.base`.
    """

    id: str
    created: float
    parents: list[str]
    branch: str | float
    base: str


class _Below(msgspec.Struct):
    base: str


class _Place(msgspec.Struct):
    """The part of a capture's record that `Link` needs. msgspec skips the other fields, which is faster."""

    parents: list[Id]
    branch: str
    setting: _Below
    branch_created: float = 0.0

    def link(self, capture_id: str, created: float) -> Link:
        return Link(capture_id, created, self.parents, self.branch_created or self.branch, self.setting.base)


class Reader:
    """Reads records. The base of `Names`, which sees committed records only, and of `Change`, which also sees what its
    own transaction has written. Every method raises StoreDamaged if a record is not what Waypoint wrote.
    """

    def __init__(self, execute: Execute, path: Path) -> None:
        """`path`: the database, for messages."""
        self._execute = execute
        self.path = path

    def _decoded(self, record: bytes | str, kind: type[Stored], what: str) -> Stored:
        """`what`: what the record describes, for the error."""
        try:
            return msgspec.json.decode(record, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # the latter: a string in the JSON is not UTF-8
            raise damaged_record(what, self.path, str(error)) from error

    def _ids(self, rows: Iterable[tuple[str, ...]], what: str) -> list[str]:
        """The ids in the first column of `rows`. Raises StoreDamaged if one is none: ids become names of files."""
        found = [row[0] for row in rows]
        wrong = next((one for one in found if not (isinstance(one, str) and is_id(one))), None)
        if wrong is not None:
            raise damaged_record(what, self.path, f"{wrong!r} is not an id")
        return found

    def _rows_of(self, query: str, captures: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """The rows of `query` with the ids `captures` in place of its `{}`. One query for each PIECE ids."""
        for start in range(0, len(captures), PIECE):
            piece = captures[start : start + PIECE]
            yield from self._execute(query.format(", ".join("?" * len(piece))), piece).fetchall()

    # --- captures

    def capture(self, capture_id: str) -> Capture:
        """The capture with this id. Raises StoreDamaged if there is none, since ids come from other records."""
        return self.captures_of([capture_id])[capture_id]

    def captures_of(self, capture_ids: Sequence[str], *, may_lack: bool = False) -> dict[str, Capture]:
        """The captures with these ids, by id. Raises StoreDamaged if one is missing.

        `may_lack`: leave out missing ones. For ids that were read earlier: a `gc` may have removed the records since.
        """
        query = "SELECT id, record FROM captures WHERE id IN ({})"
        records = {found: record for found, record in self._rows_of(query, capture_ids)}
        missing = next((capture_id for capture_id in capture_ids if capture_id not in records), None)
        if missing is not None and not may_lack:
            raise _no_such_capture(missing)
        return {
            capture_id: self._capture(records[capture_id], capture_id)
            for capture_id in capture_ids
            if capture_id in records
        }

    def _capture(self, record: bytes | str, capture_id: str) -> Capture:
        found = self._decoded(record, Capture, f"capture {capture_id}")
        tree = found.layers.get(FilesLayer.KIND, {}).get("tree")  # the records of layers have no types yet
        if not (isinstance(tree, str) and is_id(tree)):
            raise damaged_record(f"capture {capture_id}", self.path, "the tree of its files is missing")
        return found

    def parents_of(self, capture: Capture, known: Collection[str] = ()) -> list[Capture]:
        """The parents of `capture`, without those whose ids are `known`. Empty if a `gc` has removed the records of
        `capture` and its parents since `capture` was read. Raises StoreDamaged if a parent is missing otherwise.
        """
        ids = [parent for parent in capture.parents if parent not in known]
        found = self.captures_of(ids, may_lack=True)
        if len(found) < len(set(ids)) and self.captures_of([capture.id], may_lack=True):
            raise _no_such_capture(next(parent for parent in ids if parent not in found))
        return list(found.values())

    def captures(self) -> list[Capture]:
        """All captures, the oldest first."""
        rows = self._execute("SELECT id, record FROM captures ORDER BY created", ()).fetchall()
        return [self._capture(record, capture_id) for capture_id, record in rows]

    def iter_links(self) -> Iterator[list[Link]]:
        """The links of all captures, the newest first, in lists of at most PIECE. A capture may come after its parents:
        the clock may have been set back.

        Each list is one query, made when the caller requests it. Captures that are added meanwhile are left out.
        """
        query = (
            "SELECT created, id, record FROM captures WHERE created <= ? AND (created < ? OR id > ?)"
            " ORDER BY created DESC, id LIMIT ?"
        )
        created, last = float("inf"), ""
        while rows := self._execute(query, (created, created, last, PIECE)).fetchall():
            self._ids([row[1:] for row in rows], "the captures")
            yield [
                self._decoded(record, _Place, f"capture {capture}").link(capture, at) for at, capture, record in rows
            ]
            created, last, _ = rows[-1]

    def standing(self, capture_id: str) -> Standing:
        """Return what has changed about the capture since it was taken: image, durability, removal."""
        return self.standings([capture_id])[capture_id]

    def standings(self, captures: Sequence[str]) -> dict[str, Standing]:
        """The standings of these captures, by id."""
        query = "SELECT capture, image, durable, removed, proof, changes FROM standings WHERE capture IN ({})"
        found = {
            capture: Standing(
                image=image,
                durable=bool(durable),
                removed=bool(removed),
                proof=self._decoded(proof, Proof, f"the proof of capture {capture}") if proof is not None else None,
                changes=None if changes is None else self._decoded(changes, ChangeCount, f"capture {capture}"),
            )
            for capture, image, durable, removed, proof, changes in self._rows_of(query, captures)
        }
        return {capture: found.get(capture, _AS_TAKEN) for capture in captures}

    def images(self) -> dict[str, str]:
        """The ids of the images of all captures that are in the store and whose content was not removed, by capture."""
        query = "SELECT capture, image FROM standings WHERE image NOTNULL AND NOT removed"
        rows = self._execute(query, ()).fetchall()
        self._ids(rows, "the captures in the store")
        return dict(rows)

    def removed(self) -> set[str]:
        """The ids of the captures whose content was removed from the disk."""
        rows = self._execute("SELECT capture FROM standings WHERE removed", ()).fetchall()
        return set(self._ids(rows, "the removed captures"))

    # --- names

    def ref(self, name: str) -> Ref | None:
        """What the name stands for; None if there is no such name."""
        row = self._execute("SELECT record FROM refs WHERE name = ?", (name,)).fetchone()
        return self._decoded(row[0], Ref, f"the name {name}") if row else None

    def bases(self) -> dict[str, BaseRef]:
        """The pinned bases that have names, by name, sorted as `in_order` says."""
        rows = sorted(self._execute("SELECT name, record FROM bases", ()).fetchall(), key=lambda row: in_order(row[0]))
        wrong = next((name for name, _ in rows if not is_name(name)), None)
        if wrong is not None:
            raise damaged_record("the bases", self.path, f"{wrong!r} is not a name")
        return {name: self._decoded(record, BaseRef, f"the base {name}") for name, record in rows}

    def bases_in_use(self) -> set[str]:
        """The ids of the pinned bases of all live sessions, and of those that are being started."""
        rows = (row.setting.pinned for is_ready in (True, False) for row in self.live(ready=is_ready))
        return {pinned for pinned in rows if pinned is not None}

    def refs_below(self, beginning: str) -> dict[str, Ref]:
        """The names that are `beginning` and a number, with their refs. `beginning` has only characters of names."""
        rows = self._execute("SELECT name, record FROM refs WHERE name GLOB ?", (f"{beginning}[0-9]*",)).fetchall()
        numbered = [(name, record) for name, record in rows if name[len(beginning) :].isdecimal()]
        return {name: self._decoded(record, Ref, f"the name {name}") for name, record in numbered}

    def refs(self) -> dict[str, Ref]:
        """All names with their refs, sorted as `in_order` says."""
        return {name: ref for piece in self.iter_refs() for name, ref in piece.items()}

    def iter_refs(self) -> Iterator[dict[str, Ref]]:
        """Yield all names with their refs, sorted as `in_order` says, in dicts of at most PIECE names.

        The first step reads all rows, so all names are from the same moment. Each step decodes the rows of its dict.
        """
        rows = self._execute("SELECT name, record FROM refs", ()).fetchall()
        rows.sort(key=lambda row: in_order(row[0]))
        wrong = next((name for name, _ in rows if not is_name(name)), None)
        if wrong is not None:
            raise damaged_record("the names", self.path, f"{wrong!r} is not a name")
        for start in range(0, len(rows), PIECE):
            piece = rows[start : start + PIECE]
            yield {name: self._decoded(record, Ref, f"the name {name}") for name, record in piece}

    def tips_of(self, refs: Mapping[str, Ref]) -> dict[str, Capture]:
        """The captures that the names `refs` stand for, by name. Left out: names that stand for nothing, and names that
        were moved since `refs` was read and whose old capture a `gc` has forgotten.
        """
        ids = {name: ref.capture for name, ref in refs.items() if ref.capture}
        found = self.captures_of(list(ids.values()), may_lack=True)
        for name, capture_id in ids.items():
            if capture_id not in found and self.ref(name) == refs[name]:
                raise _no_such_capture(capture_id)
        return {name: found[capture_id] for name, capture_id in ids.items() if capture_id in found}

    def names_of(self, capture_id: str) -> list[str]:
        """The names that stand for the capture: branches whose tip it is, and checkpoints."""
        return self.names_of_all([capture_id])[capture_id]

    def names_of_all(self, captures: Sequence[str]) -> dict[str, list[str]]:
        """The names of each of these captures, by the capture's id."""
        found: dict[str, list[str]] = {capture: [] for capture in captures}
        query = "SELECT capture, name FROM refs WHERE capture IN ({})"
        for capture, name in sorted(self._rows_of(query, captures), key=lambda row: in_order(row[1])):
            found[capture].append(name)
        return found

    def names_with_bases(self, captures: Sequence[str]) -> dict[str, list[str]]:
        """Like `names_of_all`, with the names of bases."""
        found = self.names_of_all(captures)
        for name, base in self.bases().items():
            if base.capture in found:
                found[base.capture].append(name)
        return found

    def check_new(self, name: str, kind: str) -> None:
        """Check a new name that a user has chosen. Raises UsageProblem if the name looks like a whole id, StateConflict
        if `check_free` does or if a capture's id begins with the name: that prefix would no longer find the capture.
        """
        on = f"{kind} {name}"
        if is_id(name):
            raise UsageProblem("create", on, "a name must not look like the id of a capture", "choose another name")
        if is_id_prefix(name):
            row = self._execute("SELECT id FROM captures WHERE id GLOB ? LIMIT 1", (f"{name}*",)).fetchone()
            if row is not None:
                said = "an existing capture has an id that begins with this"
                raise StateConflict("create", on, said, "choose another name", code="name-taken")
        self.check_free(name, kind)

    def check_free(self, name: str, kind: str) -> None:
        """Raise StateConflict if the name is taken, or if a name that exists excludes it: `a` excludes `a/b`, and `a/b`
        excludes `a`, unless `a` is a branch and `a/b` a checkpoint.
        """
        taken = self.ref(name)
        on = f"{kind} {name}"
        if taken is not None:
            raise StateConflict(
                "create", on, f"there is a {taken.kind} of this name", "choose another name", code="name-taken"
            )
        above = [name[:place] for place, character in enumerate(name) if character == "/"]
        # The names below `name` sort between "name/" and "name0": "0" is the character after "/".
        query = f"SELECT name, record FROM refs WHERE name IN ({', '.join('?' * len(above))}) OR name > ? AND name < ?"
        for other, record in self._execute(query, (*above, f"{name}/", f"{name}0")):
            found = self._decoded(record, Ref, f"the name {other}")
            upper, lower = (found.kind, kind) if other in above else (kind, found.kind)
            if (upper, lower) != ("branch", "checkpoint"):
                said = f"the {found.kind} {other} exists"
                raise StateConflict("create", on, said, "choose another name", code="name-taken")

    def meant(self, text: str, branch: str | None = None) -> str:
        """The existing name that `text` means; `text` itself if there is none.

        On `branch` (None: the caller's), `warm` means the checkpoint `warm` of this branch, or else its checkpoint
        `branch/warm`. `a/warm` means the checkpoint `warm`, if it is one of the branch `a` and nothing has the name
        `a/warm`. Branches and ids mean themselves.
        """
        if branch is None and (caller := callers.current()) is not None:
            branch = caller.branch
        ref = self.ref(text)
        is_open = not is_image_prefix(text) if ref is None else ref.kind == "checkpoint"
        if branch is not None and is_open and not (ref is not None and belongs_to(self, ref, branch)):
            below = f"{branch}/{text}"
            if self._is_checkpoint_of(branch, below):
                return below
        if ref is None and is_name(text):
            for place in (place for place, character in enumerate(text) if character == "/"):
                if self._is_checkpoint_of(text[:place], text[place + 1 :]):
                    return text[place + 1 :]
        return text

    def _is_checkpoint_of(self, branch: str, name: str) -> bool:
        """A checkpoint that was taken on another branch does not count, whatever its name is: other users and programs
        in sessions choose names, too.
        """
        ref = self.ref(name)
        return ref is not None and ref.kind == "checkpoint" and belongs_to(self, ref, branch)

    def resolve(self, text: str, branch: str | None = None) -> Capture:
        """Return the capture that `find` finds. Raises UnknownName if there is none or its content was removed."""
        capture = self.find(text, branch)
        if self.standing(capture.id).removed:
            raise content_removed(capture.id)
        return capture

    def find(self, text: str, branch: str | None = None) -> Capture:
        """The capture that `text` stands for: a name (`meant`), the id of a capture or of its image, or a unique prefix
        of one. If several captures have the same image, the newest. Raises UnknownName.
        """
        name = self.meant(text, branch)
        ref = self.ref(name)
        if ref and ref.capture:
            tips = self.tips_of({name: ref})
            return tips[name] if tips else self.find(text, branch)  # the name has just been moved
        ids: list[str] = []
        if is_id_prefix(text):
            ids = [i for (i,) in self._execute("SELECT id FROM captures WHERE id GLOB ? LIMIT 3", (f"{text}*",))]
        if is_image_prefix(text):
            query = (
                "SELECT capture FROM standings JOIN captures ON id = capture WHERE image GLOB ?"
                " GROUP BY image HAVING max(created) LIMIT 3"
            )
            ids += [one for (one,) in self._execute(query, (f"{text}*",)) if one not in ids]
        if len(ids) == 1 and (found := self.captures_of(ids, may_lack=True)):
            if found[ids[0]].is_base:
                next_step = "'waypoint base list' shows its name; 'waypoint shell --base NAME' starts a session on it"
                raise UnknownName("use", f"capture {text}", "it is a base, not a state of a session", next_step)
            return found[ids[0]]
        if len(ids) > 1:
            raise UnknownName(
                "find",
                repr(text),
                "several captures or images have ids that begin with this",
                "give more digits",
                code="ambiguous",
            )
        if ref:
            next_step = f"make a checkpoint of it: waypoint checkpoint NAME -b {text}"
            raise UnknownName(
                "use", repr(text), "nothing has been captured on this branch yet", next_step, code="no-capture"
            )
        said = f"nothing has this name{self.did_you_mean(text)}"
        raise UnknownName("find", repr(text), said, "'waypoint log --all' lists all names")

    def did_you_mean(self, text: str, kind: RefKind | None = None) -> str:
        """Return a question that suggests the most similar name, of those of the `kind` (None: of any); "" if none is
        similar.
        """
        known = [name for piece in self.iter_refs() for name, ref in piece.items() if kind in (None, ref.kind)]
        return did_you_mean(text, known[:_MOST_COMPARED])

    # --- live sessions, and the database itself

    def live(self, *, ready: bool = True) -> list[LiveRow]:
        """The live sessions; with `ready` False, the sessions whose start is not finished, and those that were replaced
        and stay frozen until CRIU has dumped them (`LiveRow.leaves_to`).
        """
        rows = self._execute("SELECT branch, record FROM live WHERE ready = ?", (ready,)).fetchall()
        rows.sort(key=lambda row: in_order(row[0]))
        return [self._decoded(record, LiveRow, f"the session on {branch}") for branch, record in rows]

    def identity(self) -> StoreIdentity:
        """The identity of this database, for the marks of the folders that it describes (marks.py)."""
        ((ident, opened),) = self._execute("SELECT id, opened FROM identity", ()).fetchall()
        return StoreIdentity(id=ident, opened=opened)

    def disposable(self) -> set[str]:
        """The ids of the things that the next daemon may remove from the disk, if they are not recorded by then
        (marks.py).
        """
        return set(self._ids(self._execute("SELECT id FROM doomed", ()).fetchall(), "the things to be removed"))

    # --- the operation log

    def operation(self, number: int) -> Operation | None:
        """The entry with this number; None if there is none."""
        row = self._execute(f"{_OPERATIONS} WHERE number = ?", (number,)).fetchone()
        return self._operation(*row) if row else None

    def operations(self, limit: int | None = None) -> list[Operation]:
        """The entries of the log, the newest first, at most `limit` (None: all)."""
        return [operation for piece in self.iter_operations(limit) for operation in piece]

    def iter_operations(self, limit: int | None = None) -> Iterator[list[Operation]]:
        """Yield the entries of the log, the newest first, at most `limit` (None: all), in lists of at most PIECE.

        Each step makes one query.
        """
        left = float("inf") if limit is None else limit
        before = self.last_number() + 1
        while left > 0:
            query = f"{_OPERATIONS} WHERE number < ? ORDER BY number DESC LIMIT ?"
            rows = self._execute(query, (before, min(left, PIECE))).fetchall()
            if not rows:
                return
            before = rows[-1][0]
            left -= len(rows)
            yield [self._operation(*row) for row in rows]

    def last_to_undo(self, is_meant: Callable[[Operation], bool]) -> Operation | None:
        """The newest entry for which `is_meant` is true and that can be undone; None if there is none.

        Left out are entries that were undone, undos, and parts of undos: undoing an undo would do the operation again.
        Reads the entries by an index, PIECE at a time, until one is found.
        """
        query = f"{_OPERATIONS} WHERE undone_by IS NULL AND undo IS NULL AND number < ? ORDER BY number DESC LIMIT ?"
        before = self.last_number() + 1
        while rows := self._execute(query, (before, PIECE)).fetchall():
            found = next(filter(is_meant, (self._operation(*row) for row in rows)), None)
            if found is not None:
                return found
            before = rows[-1][0]
        return None

    def last_number(self) -> int:
        """The number of the newest entry; 0 if the log is empty."""
        (last,) = self._execute("SELECT ifnull(max(number), 0) FROM operations", ()).fetchone()
        return int(last)

    def first_since(self, moment: float) -> int:
        """The number of the first entry that was written at `moment` (seconds since the epoch) or later; if there is
        none, the number that the next entry will have.
        """
        query = "SELECT min(number) FROM operations WHERE json_extract(CAST(record AS TEXT), '$.at') >= ?"
        (first,) = self._execute(query, (moment,)).fetchone()
        return self.last_number() + 1 if first is None else int(first)

    def first_kept(self) -> int:
        """The number of the first entry that can be undone: a `gc` may have removed captures that earlier ones
        need.
        """
        ((first,),) = self._execute("SELECT first_kept FROM identity", ()).fetchall()
        return int(first)

    def intents(self) -> list[Intent]:
        """The undos that have begun and are not in the log yet, the oldest first."""
        rows = self._execute("SELECT number, record FROM intents ORDER BY number", ()).fetchall()
        return [
            msgspec.structs.replace(self._decoded(record, Intent, f"the unfinished undo {number}"), number=number)
            for number, record in rows
        ]

    def _operation(self, number: int, undone_by: int | None, expired: int, record: bytes) -> Operation:
        found = self._decoded(record, Operation, f"operation {number}")
        return msgspec.structs.replace(found, number=number, undone=undone_by is not None, expired=bool(expired))


def belongs_to(names: Reader, ref: Ref, branch: str) -> bool:
    """Whether the capture of `ref` was taken on the branch that is named `branch` now, not on an earlier branch of that
    name.
    """
    own = names.ref(branch)
    if own is None or ref.capture is None:
        return False
    found = names.captures_of([ref.capture], may_lack=True).get(ref.capture)
    return found is not None and _is_of(found, branch, own)


def next_name(names: Reader, branch: str, *, within: bool) -> str:
    """The name of a checkpoint on `branch` for which the user has chosen none, such as `main-3`. `within`: other names
    than those of checkpoints of the branch do not count, since the caller must not learn of them.
    """
    beginning = f"{branch}-"
    taken = [name for name, ref in names.refs_below(beginning).items() if not within or belongs_to(names, ref, branch)]
    return f"{beginning}{1 + max((int(name[len(beginning) :]) for name in taken), default=0)}"


def forks_prefix(names: Reader, name: str) -> str:
    """What the names of forks of `name` begin with. A branch `fix` excludes branches `fix/warm-1`, so a checkpoint
    `fix/warm` has forks `fix-warm-1`.
    """
    above = (names.ref(name[:place]) for place, character in enumerate(name) if character == "/")
    return name.replace("/", "-") if any(ref is not None and ref.kind == "branch" for ref in above) else name


def branch_of(names: Reader, capture: Capture) -> str:
    """The present name of the branch on which the capture was taken; its last name if the branch was removed. Raises
    StateConflict if another branch or a checkpoint has that name now.
    """
    ref = names.ref(capture.branch)
    if ref is None or not _is_of(capture, capture.branch, ref):
        for name, other in names.refs().items() if capture.branch_created else ():
            if _is_of(capture, name, other):
                return name
        if ref is not None:
            on, said = f"branch {capture.branch}", "the branch was removed, and its name is now used for something else"
            next_step = f"choose a branch: waypoint restore {capture.id[:12]} --new BRANCH, or with -b {capture.branch}"
            raise StateConflict("restore the capture on its own branch,", on, said, next_step)
    return capture.branch


def _is_of(capture: Capture, name: str, ref: Ref) -> bool:
    """Whether the capture was taken on the branch that now has the name `name` and the ref `ref`."""
    if ref.kind != "branch":
        return False
    if capture.branch_created:
        return ref.created == capture.branch_created
    return capture.branch == name and capture.created >= ref.created


def content_removed(capture_id: str) -> UnknownName:
    """The error for a capture that is on record, but whose content was removed."""
    said = "it had no name, and 'waypoint gc' has removed its content"
    return UnknownName("use", f"capture {capture_id[:12]}", said, _ANOTHER_CAPTURE, code="capture-removed")


def _no_such_capture(capture_id: str) -> StoreDamaged:
    return StoreDamaged("read", f"capture {capture_id}", "it has no record", _ANOTHER_CAPTURE)
