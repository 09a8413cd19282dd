"""The size of a session's terminal: the smallest number of rows and of columns of all viewers' windows."""

from waypoint.linux.tty import terminals

# The minimum of rows and columns. zsh 5.9 crashes in a window of one column.
_SMALLEST = (2, 4)
_LARGEST = 10_000


class Window:
    """Sets the size of the terminal whose master side is `master`; the caller closes `master`. `size`: rows and
    columns.
    """

    def __init__(self, master: int) -> None:
        self._master = master
        self._shown: dict[object, tuple[int, int]] = {}
        self.size = terminals.window_size(master)

    def resize(self, rows: int, cols: int) -> None:
        """Set the terminal's size, limited to _SMALLEST and _LARGEST. The kernel sends SIGWINCH to the foreground
        programs if the size has changed. Does nothing after `close`.
        """
        rows, cols = (max(low, min(n, _LARGEST)) for n, low in zip((rows, cols), _SMALLEST, strict=True))
        if self._master >= 0:
            terminals.set_window_size(self._master, rows, cols)
            self.size = rows, cols

    def show(self, viewer: object, rows: int, cols: int) -> bool:
        """Record the size of `viewer`'s window (zeros: unknown) and fit the terminal to all windows. Return True if
        `size` has changed.
        """
        before = self.size
        if rows > 0 and cols > 0:
            self._shown[viewer] = rows, cols
            self.fit(self.size)
        return self.size != before

    def drop(self, viewer: object) -> None:
        """Forget `viewer`'s window and fit the terminal to the other windows. The size stays if no window is left."""
        if self._shown.pop(viewer, None):
            self.fit(self.size)

    def fit(self, default: tuple[int, int]) -> None:
        """Set the largest size that all viewers' windows can show, or `default` if there are no viewers."""
        shown = self._shown.values()
        rows, cols = (min(rows for rows, _ in shown), min(cols for _, cols in shown)) if shown else default
        if (rows, cols) != self.size:
            self.resize(rows, cols)

    def close(self) -> None:
        """Stop using the master: the terminal has ended, or the caller is about to close the master."""
        self._master = -1
