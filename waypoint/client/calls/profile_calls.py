"""The workload profiles of a home."""

from waypoint.client.link import ask
from waypoint.client.parsing import field_of, parse_list
from waypoint.model import facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.facts import MatchFacts, ProfilesFacts


class ProfileCalls:
    """Use Client.profiles."""

    def __init__(self, home: str) -> None:
        """`home`: its real path."""
        self._home = home

    def all(self) -> "ProfilesFacts":
        """Those that count, the home's own first, and what is wrong with files that do not."""
        answer = ask(self._home, "GET", "/v1/profiles")
        problems = field_of(answer, "problems")
        return facts.ProfilesFacts(
            profiles=parse_list(facts.ProfileFacts, answer, "profiles"),
            problems=problems if isinstance(problems, list) else [],
        )

    def test(self, name: str = "", text: str | None = None, branch: str | None = None) -> "list[MatchFacts]":
        """Check `text`, a profile that is called `name`: UsageProblem if it is none. With `branch`: which process of
        its live session gets which profile, as if the home had this one, too.
        """
        body: dict[str, object] = {"name": name, "text": text, "branch": branch}
        return parse_list(facts.MatchFacts, ask(self._home, "POST", "/v1/profiles/test", body), "matches")
