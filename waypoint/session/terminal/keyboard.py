"""What people type at an attached terminal, kept apart from what the daemon does with the shell.

While the daemon swaps the line in the shell's editor, and while a command runs that has an input of its own,
keystrokes wait: else they would end up in the line, or in the command's output as echo.
"""

import asyncio
import contextlib
import os
import signal
import termios
from typing import TYPE_CHECKING

from waypoint.linux import terminals

if TYPE_CHECKING:
    from waypoint.session.terminal.terminal import Terminal

_HELD_MAX = 1 << 16
# After these the next characters are read as part of a longer key, or of a search: ESC ^X ^R ^S TAB.
PREFIXES = frozenset(b"\x1b\x18\x12\x13\t")


class Keyboard:
    """One per terminal, for all who are attached."""

    def __init__(self, terminal: "Terminal") -> None:
        self._terminal = terminal
        self._held: bytearray | None = None
        self._signals_pass = False
        self._free = asyncio.Event()
        self._free.set()
        self.last = -1  # the last character that went to the terminal; -1: none, or not known

    async def type(self, data: bytes) -> None:
        """Hand on what a person typed; waits while the session takes no more."""
        if self._held is not None:
            if self._signals_pass:
                data = self._raise_signals(data)
            self._held += data
            if len(self._held) > _HELD_MAX:
                self._free.clear()
                await self._free.wait()
            return
        self._send(data)
        await self._terminal.typed.wait_written()

    def hold(self, *, signals_pass: bool) -> None:
        """Keep keystrokes back until `release`; with `signals_pass` the keys for interrupt, quit and suspend still
        act.
        """
        self._held = bytearray() if self._held is None else self._held
        self._signals_pass = signals_pass

    @property
    def has_held(self) -> bool:
        """True if something was kept back."""
        return bool(self._held)

    def release(self) -> None:
        """Send what was kept back, and keep nothing back any more."""
        held, self._held = self._held, None
        if held:
            self._send(bytes(held))
        self._free.set()

    def _send(self, data: bytes) -> None:
        if data:
            self.last = data[-1]
            self._terminal.typed.write(data)

    def _raise_signals(self, data: bytes) -> bytes:
        """Send the signals that `data` asks for; what is left of it. As in a terminal, a signal drops what was typed
        before it.

        Not through the terminal, which would show `^C` in the command's output and throw away output that is not read
        yet.
        """
        if self._terminal.closed.is_set():
            return data
        modes = terminals.modes(self._terminal.master)
        if not modes.lflag & termios.ISIG:
            return data
        numbers = {modes.interrupt: signal.SIGINT, modes.quit: signal.SIGQUIT, modes.suspend: signal.SIGTSTP}
        for place, character in enumerate(data):
            if character in numbers:
                self._held = bytearray()
                group = terminals.foreground_group(self._terminal.master)
                if group > 1:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(group, numbers[character])
                return self._raise_signals(data[place + 1 :])
        return data
