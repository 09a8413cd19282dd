"""A terminal emulator whose screen tests can read: a tmux server for each test."""

import contextlib
import os
import re
import select
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.homes import Home
from tests.places import make_temp_root
from tests.waiting import PATIENCE_S, holds_within


class Screen:
    """A tmux window that runs a shell with the command `waypoint`. Made by `open_screen`."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._env = env

    def ask(self, *words: str) -> str:
        """Run a tmux command and return its output."""
        command = ["tmux", "-L", "waypoint-test", "-f", f"{self._folder}/conf", *words]
        return subprocess.run(command, env=self._env, check=True, capture_output=True, text=True).stdout

    def type(self, text: str) -> None:
        self.ask("send-keys", "-t", ":0", "-l", text)

    def enter(self, line: str) -> None:
        """Type a line and Enter."""
        self.type(line)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys, given by tmux's names such as Enter, C-c, Escape and Up."""
        self.ask("send-keys", "-t", ":0", *keys)

    def paste(self, text: str) -> None:
        """Paste the text; as a bracketed paste if the program has asked for these."""
        buffer = self._folder / "paste"
        buffer.write_text(text)
        self.ask("load-buffer", str(buffer), ";", "paste-buffer", "-p", "-r", "-t", ":0")

    def resize(self, rows: int, cols: int) -> None:
        self.ask("resize-window", "-t", ":0", "-x", str(cols), "-y", str(rows))

    def text(self) -> str:
        """Return the visible lines without trailing blanks."""
        return "\n".join(line.rstrip() for line in self.ask("capture-pane", "-p", "-t", ":0").splitlines())

    def see_all(self, picture: Callable[["Screen"], object], expected: object) -> None:
        """Wait until `picture(self)` equals `expected`."""
        if not holds_within(PATIENCE_S, lambda: picture(self) == expected):
            raise AssertionError(f"expected:\n{expected!r}\nbut the screen shows:\n{picture(self)!r}")

    def coloured(self) -> str:
        """Return the visible lines with their colour sequences."""
        return self.ask("capture-pane", "-p", "-e", "-t", ":0")

    def cursor(self) -> tuple[int, int]:
        """Return the row and column of the cursor, counted from 0."""
        row, column = self.ask("display-message", "-p", "-t", ":0", "#{cursor_y} #{cursor_x}").split()
        return int(row), int(column)

    def flag(self, name: str) -> bool:
        """Return a tmux flag of the pane, such as `alternate_on` or `cursor_flag`."""
        return self.ask("display-message", "-p", "-t", ":0", f"#{{{name}}}").strip() == "1"

    def see(self, pattern: str) -> str:
        """Wait until the regular expression matches the screen; return the visible text."""
        shown = ""

        def is_there() -> bool:
            nonlocal shown
            shown = self.text()
            return re.search(pattern, shown, re.MULTILINE) is not None

        if not holds_within(PATIENCE_S, is_there):
            raise AssertionError(f"{pattern!r} did not appear on\n{shown}")
        return shown


@contextlib.contextmanager
def open_screen(home: Home, rows: int, cols: int) -> Iterator[Screen]:
    """Start a tmux server with one window of this size; at the end, kill it and all its programs."""
    with tempfile.TemporaryDirectory(prefix=f"tmux-{os.getpid()}-", dir=make_temp_root()) as name:
        folder = Path(name)
        (folder / "conf").write_text("set -g default-terminal screen-256color\nset -g escape-time 0\n")
        (folder / "rc").write_text(
            f"PS1='outside> '\nunset HISTFILE\nwaypoint() {{ {shlex.join(home.argv())} \"$@\"; }}\n"
        )
        screen = Screen(folder, {**home.env, "TMUX_TMPDIR": name, "SHELL": "/bin/bash"})
        shell = f"exec bash --noprofile --rcfile {folder}/rc -i"
        screen.ask("new-session", "-d", "-x", str(cols), "-y", str(rows), shell)
        server = os.pidfd_open(int(screen.ask("display-message", "-p", "#{pid}")))
        try:
            screen.see("^outside>$")
            yield screen
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):  # the server ended with its last window
                screen.ask("kill-server")
            assert select.select([server], [], [], PATIENCE_S)[0], "the tmux server has not ended"
            os.close(server)
