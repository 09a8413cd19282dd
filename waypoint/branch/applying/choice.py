"""Which paths of a place are chosen, and which are none of the machine's."""

from collections.abc import Sequence

from waypoint.launch.ground.base import is_below


class Choice:
    """Of the place that a session has at `target`. Paths that are asked about are relative to it, "" is its root."""

    def __init__(self, target: str, chosen: Sequence[str], hidden: Sequence[str]) -> None:
        """`chosen`: absolute paths in the session, with all below them; empty: everything. `hidden`: those that nothing
        is done to.
        """
        self._above = target.rstrip("/")
        self._chosen = chosen
        self._hidden = hidden
        self._free = ("/", False)  # the folder that was asked about last

    def shown(self, path: str) -> str:
        """The path in the session."""
        return f"{self._above}/{path}" if path else self._above or "/"

    def is_whole(self, path: str) -> bool:
        """Whether what is at the path is chosen, with all in it."""
        whole = self.shown(path)
        return not self._chosen or any(is_below(whole, one) for one in self._chosen)

    def concerns(self, path: str) -> bool:
        """Whether what is at the path, or something in it, is chosen, and is the machine's."""
        return self._is_free(path.rpartition("/")[0]) or self._concerns(self.shown(path))

    def _is_free(self, folder: str) -> bool:
        """Whether all that is in the folder is chosen, and is the machine's. One folder's many names are asked about
        one after the other.
        """
        if self._free[0] != folder:
            is_free = self.is_whole(folder) and not self.is_hollow(folder) and self._concerns(self.shown(folder))
            self._free = folder, is_free
        return self._free[1]

    def _concerns(self, whole: str) -> bool:
        if any(is_below(whole, one) for one in self._hidden):
            return False
        return not self._chosen or any(is_below(whole, one) or is_below(one, whole) for one in self._chosen)

    def is_hollow(self, path: str) -> bool:
        """Whether something below the path is none of the machine's."""
        whole = self.shown(path)
        return any(is_below(one, whole) for one in self._hidden)
