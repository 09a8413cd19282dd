"""The size of the terminal's window: the smallest of all that show it."""

from waypoint.linux import terminals

# Rows and columns that shells and editors survive: zsh 5.9 crashes in a window of one column.
_SMALLEST = (2, 4)
_LARGEST = 10_000


class Window:
    """`size`: rows and columns of the terminal behind `master`, which stays the caller's."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._shown: dict[object, tuple[int, int]] = {}
        self.size = terminals.window_size(master)

    def resize(self, rows: int, cols: int) -> None:
        """Set the size, within bounds; the foreground programs get SIGWINCH if it is new. Nothing after `close`."""
        rows, cols = (max(low, min(n, _LARGEST)) for n, low in zip((rows, cols), _SMALLEST, strict=True))
        if self._master >= 0:
            terminals.set_window_size(self._master, rows, cols)
            self.size = rows, cols

    def show(self, viewer: object, rows: int, cols: int) -> bool:
        """`viewer` shows the terminal in a window of this size. Zeros: not known. True if that has changed `size`."""
        before = self.size
        if rows > 0 and cols > 0:
            self._shown[viewer] = rows, cols
            self.fit(self.size)
        return self.size != before

    def drop(self, viewer: object) -> None:
        """`viewer` has gone; after the last one the size stays as it is."""
        if self._shown.pop(viewer, None):
            self.fit(self.size)

    def fit(self, default: tuple[int, int]) -> None:
        """Take the size that all viewers can show; `default` without any."""
        shown = self._shown.values()
        rows, cols = (min(rows for rows, _ in shown), min(cols for _, cols in shown)) if shown else default
        if (rows, cols) != self.size:
            self.resize(rows, cols)

    def close(self) -> None:
        """The terminal has ended, or is to be let go of."""
        self._master = -1
