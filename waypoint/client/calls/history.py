"""What was: captures, the branches and checkpoints that stand for them, and the log of what moved those."""

from waypoint.client.link import ask, quote_branch
from waypoint.client.parsing import field_of, parse, parse_list
from waypoint.model import facts
from waypoint.model.names import parse_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.facts import AppliedFacts, BranchFacts, CaptureFacts, OperationFacts, UndoneFacts


class History:
    """Of one home. Where a name is asked for, a capture's id or a unique beginning of one (4 digits or more) serves."""

    def __init__(self, home: str) -> None:
        """Use Client.history. `home`: its real path."""
        self._home = home

    def log(self, name: str = "main", *, all: bool = False, limit: int | None = None) -> "list[CaptureFacts]":
        """The captures from `name` back, or with `all` every one there is; the newest first, children before parents.

        Raises UnknownName.
        """
        query = ["all=1"] if all else [f"name={quote_branch(parse_name(name))}"]
        query += [f"limit={limit}"] if limit is not None else []
        answer = ask(self._home, "GET", f"/v1/captures?{'&'.join(query)}")
        return parse_list(facts.CaptureFacts, answer, "captures")

    def show(self, name: str) -> "CaptureFacts":
        """What `name` stands for. Raises UnknownName."""
        found = field_of(ask(self._home, "GET", f"/v1/captures/{quote_branch(parse_name(name))}"), "capture")
        processes = parse_list(facts.SurveyedProcess, found, "processes")
        return parse(facts.CaptureFacts, found, processes=processes)

    def branches(self) -> "list[BranchFacts]":
        """All of them, live or not, sorted by name."""
        return parse_list(facts.BranchFacts, ask(self._home, "GET", "/v1/branches"), "branches")

    def rename(self, branch: str, new: str) -> None:
        """Raises UnknownName, StateConflict (the branch is live, or there is `new`)."""
        self._ask_once(f"/v1/branches/{quote_branch(parse_name(branch))}/rename", {"to": parse_name(new)})

    def remove(self, *names: str) -> None:
        """Remove branches and checkpoints, all of them or none. Captures stay, by their ids.

        Raises UnknownName, StateConflict (a live branch).
        """
        self._ask_once("/v1/names/remove", {"names": [parse_name(name) for name in names]})

    def operations(self, limit: int | None = None) -> "list[OperationFacts]":
        """The log of what moved a name or a session, the newest first."""
        query = f"?limit={limit}" if limit is not None else ""
        answer = ask(self._home, "GET", f"/v1/operations{query}")
        return parse_list(facts.OperationFacts, answer, "operations")

    def undo(
        self, number: int | None = None, *, branch: str | None = None, lose_processes: bool = False
    ) -> "OperationFacts":
        """Take back the operation `number`. None: the last one of `branch` that was not taken back; without a `branch`,
        of $WAYPOINT_BRANCH, or if that is not set, the last one that this user asked for from this login. Returns the
        entry that the undo made in the log.

        A session that is replaced or ended is captured first, with its processes unless `lose_processes`. Raises
        UnknownName, StateConflict if it cannot be taken back as things are now, CannotCapture if processes cannot be
        kept.
        """
        return self.take_back(number, branch=branch, lose_processes=lose_processes)[0]

    def take_back(
        self,
        number: int | None = None,
        *,
        branch: str | None = None,
        lose_processes: bool = False,
        force: bool = False,
    ) -> "tuple[OperationFacts, UndoneFacts]":
        """As `undo`; also says what was taken back, and how. `force`: of an apply, also files that somebody has changed
        since; the undo of this undo brings back what they had.
        """
        body: dict[str, object] = {"number": number, "branch": branch, "lose_processes": lose_processes}
        body |= {"force": True} if force else {}
        answer = self._ask_once("/v1/operations/undo", body)
        return parse(facts.OperationFacts, field_of(answer, "operation")), parse(
            facts.UndoneFacts, field_of(answer, "undone")
        )

    def apply(self, name: str, *paths: str, dry_run: bool = False, force: bool = False) -> "AppliedFacts":
        """Put what `name` stands for onto the machine, or the folder that is its base, all of it or nothing; with
        `paths`, absolute ones in the session, only what is at or below them. A live session is captured first. With
        `dry_run`, or if there are conflicts, nothing is done. `force`: replace also what the machine has changed since.
        `undo` takes it back.

        Raises UnknownName, NotAllowed, StateConflict, Failed.
        """
        body: dict[str, object] = {"name": parse_name(name), "paths": list(paths), "dry_run": dry_run}
        body |= {"force": True} if force else {}
        return parse(facts.AppliedFacts, self._ask_once("/v1/applies", body))

    def plan_undo(self, number: int | None = None, *, branch: str | None = None) -> "UndoneFacts":
        """What `undo` would take back and how, and what would not come back. Raises as `undo`; changes nothing."""
        body = {"number": number, "branch": branch, "dry_run": True}
        return parse(facts.UndoneFacts, field_of(ask(self._home, "POST", "/v1/operations/undo", body), "undone"))

    def _ask_once(self, target: str, body: dict[str, object]) -> object:
        return ask(self._home, "POST", target, body, may_repeat=False)
