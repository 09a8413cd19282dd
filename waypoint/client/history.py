"""SDK for captures, names and the operation log."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from waypoint.client.link import ask, quote_branch
from waypoint.client.quoting import as_json_text
from waypoint.client.results import field_of, parse, parse_list
from waypoint.model.facts import (
    ApplyFacts,
    AttachedFacts,
    BranchFacts,
    CaptureFacts,
    ChangeFacts,
    CommitFacts,
    DuFacts,
    EvictFacts,
    ExportFacts,
    FoundFacts,
    GcFacts,
    GotLayerFacts,
    HandoffFacts,
    ImportFacts,
    OperationFacts,
    ProvedFacts,
    SearchFacts,
    UndoneFacts,
    VerifyFacts,
)
from waypoint.model.names import parse_name
from waypoint.model.session_facts import StrangerFacts

Resolution = Literal["refuse", "ours", "theirs", "merge"]


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """The result of `History.plan_apply`: its parameters, and what would be changed (`facts`)."""

    name: str
    paths: tuple[str, ...]
    conflicts: Resolution
    allow_special: bool
    facts: ApplyFacts


class History:
    """The history of one home. For a capture, methods accept a name, or its id or the id's first digits (4 or more)."""

    def __init__(self, home: str) -> None:
        """Use Client.history. `home`: its real path."""
        self._home = home

    def log(self, name: str = "main", *, all: bool = False, limit: int | None = None) -> list[CaptureFacts]:
        """The capture of `name` and its ancestors, or `all` captures; children before parents, newest first."""
        query = ["all=1"] if all else [f"name={quote_branch(parse_name(name))}"]
        query += [f"limit={limit}"] if limit is not None else []
        answer = ask(self._home, "GET", f"/v1/captures?{'&'.join(query)}")
        return parse_list(CaptureFacts, answer, "captures")

    def show(self, name: str) -> CaptureFacts:
        """The capture of `name`."""
        answer = ask(self._home, "GET", f"/v1/captures/{quote_branch(parse_name(name))}")
        return parse(CaptureFacts, field_of(answer, "capture"))

    def search(self, text: str, *, limit: int = 50) -> SearchFacts:
        """Find captures and running sessions whose names, messages, labels, commands or changed files have `text`, the
        newest first. Upper and lower case are the same.
        """
        answer = ask(self._home, "POST", "/v1/searches", {"text": as_json_text(text), "limit": limit})
        return replace(parse(SearchFacts, answer), found=parse_list(FoundFacts, answer, "found"))

    def handoff(self, name: str) -> HandoffFacts:
        """What is needed to go on with the capture of `name`; agents/handoff.py makes a document of it. Raises
        UnknownName, NotAllowed.
        """
        answer = ask(self._home, "GET", f"/v1/captures/{quote_branch(parse_name(name))}/handoff")
        found = parse(HandoffFacts, answer)
        capture = parse(CaptureFacts, field_of(answer, "capture"))
        return replace(found, capture=capture, files=parse_list(ChangeFacts, answer, "files"))

    def prove(self, *names: str) -> list[ProvedFacts]:
        """Restore the processes of these captures without running them, compare them with the captures, and remove
        them. A capture that is not proved is not an error; its `proof` says why.
        """
        answer = self._ask_once("/v1/proofs", {"names": [parse_name(name) for name in names]})
        return parse_list(ProvedFacts, answer, "proofs")

    def get_layer(self, name: str, kind: str, dest: str) -> GotLayerFacts:
        """Copy the attached layer `kind` of the capture `name` to `dest`, an absolute path on this machine that does
        not exist. Raises UnknownName, StateConflict.
        """
        target = f"/v1/captures/{quote_branch(parse_name(name))}/layer"
        return parse(GotLayerFacts, self._ask_once(target, {"kind": kind, "dest": dest}))

    def diff(  # noqa: PLR0913  # each is an option of one request
        self,
        one: str,
        other: str | None = None,
        *,
        paths: Sequence[str] = (),
        lines: bool = True,
        patch: bool = False,
        root: str = "/",
        ignore: bool = False,
    ) -> list[ChangeFacts]:
        """What differs from the state `one` to `other`; without `other`, what `one` has changed of the machine.

        A state is a capture, a branch (its running session, if there is one), or `machine`. `paths`: absolute paths in
        the session; then only files at or below them are compared. `lines`: count inserted and deleted lines, which
        takes longer. `patch`: also return patches in git's format, with paths relative to the folder `root`. `ignore`:
        leave out files that `.gitignore` files of the later state name, caches and logs.
        """
        body: dict[str, object] = {"one": parse_name(one), "other": None if other is None else parse_name(other)}
        body |= {
            "paths": [as_json_text(path) for path in paths],
            "lines": lines,
            "patch": patch,
            "root": as_json_text(root),
        }
        if ignore:  # a daemon of an earlier version does not know this field
            body["ignore"] = True
        return parse_list(ChangeFacts, ask(self._home, "POST", "/v1/diffs", body), "changes")

    def apply(
        self,
        name: str,
        *,
        paths: Sequence[str] = (),
        dry_run: bool = False,
        conflicts: Resolution = "refuse",
        allow_special: bool = False,
    ) -> ApplyFacts:
        """Make the machine's files like those of `name`, where the session has changed them: all or nothing.

        `paths`: as in `diff`. `dry_run`: only report what would be done. `conflicts`: if the machine has changed a file
        since the session has seen it, apply nothing (the answer lists these files), keep the machine's file (`ours`),
        replace it (`theirs`), or let git merge both (`merge`). `allow_special`: also apply set-user-ID files, files
        with capabilities and devices.
        """
        return self._apply(name, paths, conflicts=conflicts, allow_special=allow_special, dry_run=dry_run)

    def plan_apply(
        self, name: str, *, paths: Sequence[str] = (), conflicts: Resolution = "refuse", allow_special: bool = False
    ) -> ApplyPlan:
        """What `apply` would do now. `carry_out` does exactly this, although the session has changed files since. A
        running session is captured; `gc` removes the capture, if the plan is not carried out.
        """
        facts = self._apply(name, paths, conflicts=conflicts, allow_special=allow_special, dry_run=True, hold=True)
        return ApplyPlan(name, tuple(paths), conflicts, allow_special, facts)

    def carry_out(self, plan: ApplyPlan) -> ApplyFacts:
        """Apply what a plan has shown. The answer lists conflicts if the machine has changed files meanwhile."""
        options = {"conflicts": plan.conflicts, "allow_special": plan.allow_special, "capture": plan.facts.capture}
        return self._apply(plan.name, plan.paths, **options)

    def _apply(self, name: str, paths: Sequence[str], **options: str | bool | None) -> ApplyFacts:
        body: dict[str, object] = {"name": parse_name(name), "paths": [as_json_text(path) for path in paths]}
        answer = ask(self._home, "POST", "/v1/applies", body | options, may_repeat=options.get("dry_run") is True)
        return replace(parse(ApplyFacts, answer), changes=parse_list(ChangeFacts, answer, "changes"))

    def commit(self, name: str, repository: str, branch: str, *, paths: Sequence[str] = ()) -> CommitFacts:
        """Commit the changes of `name` to a new `branch` of the git repository at `repository` on this machine. Its
        working tree and its present branch stay as they are. `paths`: as in `diff`. Raises StateConflict if the branch
        exists.
        """
        body: dict[str, object] = {"name": parse_name(name), "repository": as_json_text(repository)}
        body |= {"branch": as_json_text(branch), "paths": [as_json_text(path) for path in paths]}
        return parse(CommitFacts, self._ask_once("/v1/commits", body))

    def attach_layer(self, name: str, kind: str, path: str, *, wait: bool = False) -> AttachedFacts:
        """Attach the file or folder at `path`, an absolute path on this machine, to the capture of `name`, in place of
        a layer of this `kind`. A capture never changes: `name` moves to a copy that has the layer, and `undo` moves it
        back. `wait`: return when the copy is durable. Raises UnknownName, StateConflict.
        """
        target = f"/v1/captures/{quote_branch(parse_name(name))}/attach"
        return parse(AttachedFacts, self._ask_once(target, {"kind": kind, "path": path, "wait": wait}))

    def branches(self) -> list[BranchFacts]:
        """All branches, live or not, sorted by name."""
        return parse_list(BranchFacts, ask(self._home, "GET", "/v1/branches"), "branches")

    def rename(self, branch: str, new: str) -> None:
        """Raises StateConflict if the branch is live or `new` exists."""
        self._ask_once(f"/v1/branches/{quote_branch(parse_name(branch))}/rename", {"to": parse_name(new)})

    def remove(self, *names: str, now: bool = False) -> None:
        """Remove branches and checkpoints, all of them or none. Captures stay, under their ids, unless `now`: then
        their space is freed, and that cannot be undone. Raises StateConflict for a live branch.
        """
        body: dict[str, object] = {"names": [parse_name(name) for name in names]}
        self._ask_once("/v1/names/remove", body | ({"now": True} if now else {}))

    def operations(self, limit: int | None = None, *, branch: str | None = None) -> list[OperationFacts]:
        """The operations that changed a name or a session, the newest first. `branch`: only those on this branch, and
        those that its session, or a caller with this branch in $WAYPOINT_BRANCH, requested.
        """
        parts = {"limit": limit, "branch": None if branch is None else quote_branch(parse_name(branch))}
        query = "&".join(f"{name}={value}" for name, value in parts.items() if value is not None)
        answer = ask(self._home, "GET", f"/v1/operations{f'?{query}' if query else ''}")
        return parse_list(OperationFacts, answer, "operations")

    def undo(
        self,
        number: int | None = None,
        *,
        branch: str | None = None,
        lose_processes: bool = False,
        force: bool = False,
    ) -> OperationFacts:
        """Undo the operation `number`. None: the last operation on `branch` that was not undone; without a `branch`, on
        $WAYPOINT_BRANCH; if that is not set, the last one that this user requested from this login. Returns the log
        entry of the undo.

        A session that is replaced or ended is captured first, with its processes unless `lose_processes`. `force`: the
        undo of an apply also replaces files that were changed after the apply. Raises UnknownName, StateConflict if the
        operation cannot be undone now, CannotCapture if processes cannot be kept, Conflicting if files were changed
        after an apply.
        """
        return self.take_back(number, branch=branch, lose_processes=lose_processes, force=force)[0]

    def take_back(
        self,
        number: int | None = None,
        *,
        branch: str | None = None,
        lose_processes: bool = False,
        force: bool = False,
    ) -> tuple[OperationFacts, UndoneFacts]:
        """Undo like `undo`; return the log entry of the undo, and what was undone."""
        body: dict[str, object] = {"number": number, "branch": branch, "lose_processes": lose_processes, "force": force}
        answer = self._ask_once("/v1/operations/undo", body)
        return parse(OperationFacts, field_of(answer, "operation")), parse(UndoneFacts, field_of(answer, "undone"))

    def plan_undo(self, number: int | None = None, *, branch: str | None = None) -> UndoneFacts:
        """What `undo` would do, and what it could not restore. Changes nothing."""
        body = {"number": number, "branch": branch, "dry_run": True}
        return parse(UndoneFacts, field_of(ask(self._home, "POST", "/v1/operations/undo", body), "undone"))

    def gc(  # noqa: PLR0913  # each is an option of one request
        self,
        *,
        keep_operations_s: float | None = None,
        keep_last: int | None = None,
        keep_daily: int | None = None,
        hot_budget_bytes: int | None = None,
        undo_budget_bytes: int | None = None,
        dry_run: bool = False,
        compact: bool = False,
    ) -> GcFacts:
        """Remove captures without a name that no recent operation needs for its undo, and files that names.db does not
        know. `keep_operations_s`: the age up to which operations are recent; None: the home's setting.
        `keep_last`, `keep_daily`: of each branch, so many last captures, and the last capture of each of so many days,
        are kept, too. `hot_budget_bytes`: what captures may take on disk that are in the store, too.
        `undo_budget_bytes`: what captures may take that only undo needs; beyond it, the oldest operations can no longer
        be undone.

        If no session lives, the free space of the pool is given back to the disk. Raises StateConflict if a gc is
        running, or with `compact` if a session lives.
        """
        body: dict[str, object] = {"keep_operations_s": keep_operations_s, "dry_run": dry_run}
        # A daemon of an earlier version does not know these fields.
        body |= {"compact": True} if compact else {}
        body |= {"keep_last": keep_last} if keep_last is not None else {}
        body |= {"keep_daily": keep_daily} if keep_daily is not None else {}
        body |= {"hot_budget_bytes": hot_budget_bytes} if hot_budget_bytes is not None else {}
        body |= {"undo_budget_bytes": undo_budget_bytes} if undo_budget_bytes is not None else {}
        answer = self._ask_once("/v1/gc", body)
        return replace(parse(GcFacts, answer), strangers=parse_list(StrangerFacts, answer, "strangers"))

    def verify(self, *, read_data: bool = False) -> VerifyFacts:
        """Look for damage in the store of images; with `read_data`, read every byte of it. Damage is not an error."""
        return parse(VerifyFacts, self._ask_once("/v1/verify", {"read_data": read_data}))

    def evict(self, *names: str) -> EvictFacts:
        """Remove the copies outside of the store of these captures, or of all captures with a name. A restore takes
        longer then. Raises StateConflict if one of `names` is in use.
        """
        body: dict[str, object] = {"names": [parse_name(name) for name in names] or None}
        return parse(EvictFacts, self._ask_once("/v1/evict", body))

    def export(self, name: str, dest: str, *, sign: str | None = None, oci_layers: bool = True) -> ExportFacts:
        """Write the capture `name` and its ancestors to `dest`, an absolute path that does not exist: an OCI image
        layout in a tar archive. `sign`: the path of an Ed25519 private key in PEM. Without `oci_layers`, only Waypoint
        can read the content. Raises StateConflict if `dest` exists.
        """
        body: dict[str, object] = {"name": parse_name(name), "dest": dest, "sign": sign, "oci_layers": oci_layers}
        return parse(ExportFacts, self._ask_once("/v1/exports", body))

    def import_(
        self, source: str, name: str | None = None, *, prefix: str = "", require_signature: str | None = None
    ) -> ImportFacts:
        """Import the archive `source`, an absolute path. Its checkpoints keep their names, with `prefix` in front; with
        `name`, only the exported one gets a name, this one. `require_signature`: the path of an Ed25519 public key in
        PEM. Raises StateConflict if a name is taken, StoreDamaged for an archive that is damaged, or not as Waypoint
        writes it.
        """
        body: dict[str, object] = {
            "source": source,
            "name": name,
            "prefix": prefix,
            "require_signature": require_signature,
        }
        return parse(ImportFacts, self._ask_once("/v1/imports", body))

    def du(self, *names: str) -> DuFacts:
        """The disk usage of all captures and live sessions, or of those that `names` mean."""
        query = f"?names={'%20'.join(quote_branch(parse_name(name)) for name in names)}" if names else ""
        return parse(DuFacts, ask(self._home, "GET", f"/v1/usage{query}"))

    def _ask_once(self, target: str, body: dict[str, object]) -> object:
        return ask(self._home, "POST", target, body, may_repeat=False)
