"""What is attached to the captures of a home."""

import os

from waypoint.client.attached.known_layers import layers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from waypoint.model.facts import AttachedFacts, AttachingFacts


class LayerCalls:
    """Use Client.layers. Files and folders that are attached to captures."""

    def __init__(self, home: str) -> None:
        """`home`: its real path."""
        self._home = home

    def list(self, name: str) -> "list[AttachedFacts]":
        """What is attached to the capture that `name` stands for. Raises UnknownName, NotAllowed."""
        return layers_of(self._home, name)

    def attach(
        self,
        name: str,
        attach: "Mapping[str, str | os.PathLike[str]]",
        *,
        sent: "Callable[[int], object]" = lambda _: None,
    ) -> "AttachingFacts":
        """Attach files and folders, by kind, to what `name` stands for: it stands for a new capture then, that goes on
        from the one before. `sent`: told how many bytes more are sent. Raises UnknownName, NotAllowed, StateConflict if
        it is a live branch.
        """
        from waypoint.client.attached.attaching import ToAttach, attach_to

        return attach_to(self._home, name, ToAttach(attach, sent))

    def get(self, name: str, kind: str, to: "str | os.PathLike[str]", *, force: bool = False) -> None:
        """Write a layer to `to`, a file or a folder that is there when it is whole; UsageProblem if there is something
        already, unless `force`. Raises UnknownName, NotAllowed.
        """
        from waypoint.client.attached.attaching import get_layer

        get_layer(self._home, name, kind, to, force=force)

    def pour(self, name: str, kind: str, fd: int) -> None:
        """Write a layer that is a file to the open file or pipe `fd`. Raises as `get`; UsageProblem for a folder."""
        from waypoint.client.attached.attaching import pour_layer

        pour_layer(self._home, name, kind, fd)
