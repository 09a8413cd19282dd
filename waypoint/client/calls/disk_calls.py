"""The disk of a home."""

from waypoint.client.link import ask, quote_branch
from waypoint.client.parsing import parse, parse_list
from waypoint.model import facts
from waypoint.model.names import parse_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.facts import DuFacts, EvictedFacts, GcFacts, VerifiedFacts


class DiskCalls:
    """Use Client.disk."""

    def __init__(self, home: str) -> None:
        """`home`: its real path."""
        self._home = home

    def gc(self, *, keep_operations_s: float | None = None, dry_run: bool = False, **keep: int | None) -> "GcFacts":
        """Remove the captures that no name stands for and no kept operation can bring back, and what names.db does not
        know. `keep_operations_s`: operations that are not older than this are kept; None: as the home's setting says.
        `keep`: of each branch's history so many captures are kept besides: `keep_last`, `keep_hourly`, `keep_daily`,
        `keep_weekly`, `keep_monthly`.

        Raises StateConflict if a gc is running.
        """
        body: dict[str, object] = {"keep_operations_s": keep_operations_s, "dry_run": dry_run, **keep}
        answer = ask(self._home, "POST", "/v1/gc", body, may_repeat=False)
        return parse(facts.GcFacts, answer, strangers=parse_list(facts.StrangerFacts, answer, "strangers"))

    def evict(self, *names: str, all: bool = False) -> "EvictedFacts":
        """Remove the content of captures that are in the store, which are brought back from there by who needs them:
        of those that `names` stand for, or of `all`. Raises UnknownName, StoreDamaged if the store is not whole.
        """
        body: dict[str, object] = {"names": [parse_name(name) for name in names], "all": all}
        return parse(facts.EvictedFacts, ask(self._home, "POST", "/v1/evict", body, may_repeat=False))

    def verify(self, *, read_data: bool = False) -> "VerifiedFacts":
        """Look for damage in the store; with `read_data`, read all of it. Raises StateConflict if somebody does."""
        return parse(
            facts.VerifiedFacts, ask(self._home, "POST", "/v1/verify", {"read_data": read_data}, may_repeat=False)
        )

    def du(self, *names: str) -> "DuFacts":
        """What holds how much of the disk: all captures and live sessions, or those that `names` stand for.

        Raises UnknownName.
        """
        query = f"?names={'%20'.join(quote_branch(parse_name(name)) for name in names)}" if names else ""
        return parse(facts.DuFacts, ask(self._home, "GET", f"/v1/usage{query}"))
