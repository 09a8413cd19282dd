"""What was: captures, the branches and checkpoints that stand for them, and the log of what moved those."""

from waypoint.client.facts import BranchFacts, CaptureFacts, OperationFacts, field_of, list_of
from waypoint.client.link import ask, quote_branch
from waypoint.model.names import parse_name


class History:
    """Of one home. Where a name is asked for, a capture's id or a unique beginning of one (4 digits or more) serves."""

    def __init__(self, home: str) -> None:
        """Use Client.history. `home`: its real path."""
        self._home = home

    def log(self, name: str = "main", *, all: bool = False, limit: int | None = None) -> list[CaptureFacts]:
        """The captures from `name` back, or with `all` every one there is; the newest first, children before parents.

        Raises UnknownName.
        """
        query = ["all=1"] if all else [f"name={quote_branch(parse_name(name))}"]
        query += [f"limit={limit}"] if limit is not None else []
        answer = ask(self._home, "GET", f"/v1/captures?{'&'.join(query)}")
        return [CaptureFacts.parse(item) for item in list_of(answer, "captures")]

    def show(self, name: str) -> CaptureFacts:
        """What `name` stands for. Raises UnknownName."""
        answer = ask(self._home, "GET", f"/v1/captures/{quote_branch(parse_name(name))}")
        return CaptureFacts.parse(field_of(answer, "capture"))

    def branches(self) -> list[BranchFacts]:
        """All of them, live or not, sorted by name."""
        return [BranchFacts.parse(item) for item in list_of(ask(self._home, "GET", "/v1/branches"), "branches")]

    def rename(self, branch: str, new: str) -> None:
        """Raises UnknownName, StateConflict (the branch is live, or there is `new`)."""
        self._ask_once(f"/v1/branches/{quote_branch(parse_name(branch))}/rename", {"to": parse_name(new)})

    def remove(self, *names: str) -> None:
        """Remove branches and checkpoints, all of them or none. Captures stay, by their ids.

        Raises UnknownName, StateConflict (a live branch).
        """
        self._ask_once("/v1/names/remove", {"names": [parse_name(name) for name in names]})

    def operations(self, limit: int | None = None) -> list[OperationFacts]:
        """The log of what moved a name or a session, the newest first."""
        query = f"?limit={limit}" if limit is not None else ""
        answer = ask(self._home, "GET", f"/v1/operations{query}")
        return [OperationFacts.parse(item) for item in list_of(answer, "operations")]

    def undo(self, number: int | None = None) -> OperationFacts:
        """Take back the operation, None: the last one that was not yet. The entry that this made in the log.

        Raises UnknownName, StateConflict if it cannot be taken back as things are now.
        """
        answer = self._ask_once("/v1/operations/undo", {"number": number})
        return OperationFacts.parse(field_of(answer, "operation"))

    def _ask_once(self, target: str, body: dict[str, object]) -> object:
        return ask(self._home, "POST", target, body, may_repeat=False)
