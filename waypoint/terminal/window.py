"""The size of a session's terminal: the smallest of its viewers' windows, in rows and in columns."""

from waypoint.linux.tty import terminals

# Fewest rows and columns that the terminal is given: zsh 5.9 crashes in a window of one column.
_SMALLEST = (2, 4)
_LARGEST = 10_000


class Window:
    """`size`: rows and columns of the terminal behind `master`, which the caller closes."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._shown: dict[object, tuple[int, int]] = {}
        self.size = terminals.window_size(master)

    def resize(self, rows: int, cols: int) -> None:
        """Set the terminal's size, within bounds. The kernel sends SIGWINCH to the foreground programs if the size is
        new. Does nothing after `close`.
        """
        rows, cols = (max(low, min(n, _LARGEST)) for n, low in zip((rows, cols), _SMALLEST, strict=True))
        if self._master >= 0:
            terminals.set_window_size(self._master, rows, cols)
            self.size = rows, cols

    def show(self, viewer: object, rows: int, cols: int) -> bool:
        """Note the size of `viewer`'s window (zeros: unknown) and fit the terminal to all windows. Returns True if that
        changed `size`.
        """
        before = self.size
        if rows > 0 and cols > 0:
            self._shown[viewer] = rows, cols
            self.fit(self.size)
        return self.size != before

    def drop(self, viewer: object) -> None:
        """Forget `viewer`'s window and fit the terminal to the others. Without any other the size stays as it is."""
        if self._shown.pop(viewer, None):
            self.fit(self.size)

    def fit(self, default: tuple[int, int]) -> None:
        """Give the terminal the largest size that all viewers' windows can show; without viewers, `default`."""
        shown = self._shown.values()
        rows, cols = (min(rows for rows, _ in shown), min(cols for _, cols in shown)) if shown else default
        if (rows, cols) != self.size:
            self.resize(rows, cols)

    def close(self) -> None:
        """Stop using the master: the terminal has ended, or the caller is about to close the master."""
        self._master = -1
