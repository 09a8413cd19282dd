"""What is attached to captures, as the daemon tells it."""

from waypoint.client.link import ask, quote_branch
from waypoint.client.parsing import parse_list
from waypoint.model import facts
from waypoint.model.names import parse_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.facts import AttachedFacts


def layers_of(home: str, name: str) -> "list[AttachedFacts]":
    """What is attached to the capture that `name` stands for. Raises UnknownName, NotAllowed."""
    return parse_list(facts.AttachedFacts, ask(home, "GET", f"{capture_path(name)}/layers"), "layers")


def capture_path(name: str) -> str:
    """The route of what `name` stands for. Raises UsageProblem for a bad name."""
    return f"/v1/captures/{quote_branch(parse_name(name))}"
