"""SDK for pinned bases."""

from waypoint.client.link import ask, quote_branch
from waypoint.client.quoting import as_json_text
from waypoint.client.results import field_of, parse, parse_list
from waypoint.model.facts import BaseFacts, BaseMadeFacts
from waypoint.model.names import parse_name


class Bases:
    """The pinned bases of one home: files below sessions, which do not change when the machine does."""

    def __init__(self, home: str) -> None:
        """Use Client.bases. `home`: its real path."""
        self._home = home

    def create(self, name: str, source: str | None = None, *, label: str = "", force: bool = False) -> BaseMadeFacts:
        """Make a base of the folder or container image `source`, an absolute path; without it, of this machine as it is
        now. `label`: what `list` shows as the source. `force`: replace the base that has this name. Sessions use it by
        `Client.start(base=name)`. Raises StateConflict.
        """
        body: dict[str, object] = {"name": parse_name(name), "label": as_json_text(label), "force": force}
        body["source"] = None if source is None else as_json_text(source)
        return parse(BaseMadeFacts, ask(self._home, "POST", "/v1/bases", body, may_repeat=False))

    def list(self) -> list[BaseFacts]:
        return parse_list(BaseFacts, ask(self._home, "GET", "/v1/bases"), "bases")

    def show(self, name: str) -> BaseFacts:
        """Raises UnknownName."""
        answer = ask(self._home, "GET", f"/v1/bases/{quote_branch(parse_name(name))}")
        return parse(BaseFacts, field_of(answer, "base"))

    def remove(self, name: str) -> None:
        """Remove the name. The files stay as long as a session or a capture on the base needs them. Raises
        UnknownName.
        """
        ask(self._home, "POST", f"/v1/bases/{quote_branch(parse_name(name))}/remove", {}, may_repeat=False)
