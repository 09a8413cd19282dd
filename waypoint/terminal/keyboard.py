"""The keystrokes of the people who are attached to a terminal.

Keystrokes are held back while the daemon puts a command into the shell's line editor, since they would become a part of
that line. They are also held back while a command runs whose stdin is not the terminal, since the terminal would echo
them into the command's output.
"""

import asyncio
import signal
import termios

from waypoint.linux.tty import terminals
from waypoint.terminal.typed import TypedInput

_HELD_MAX = 1 << 16
# ESC ^X ^R ^S TAB: after one of these characters, readline takes the following characters as the rest of a key sequence
# or of a search.
PREFIXES = frozenset(b"\x1b\x18\x12\x13\t")


class Keyboard:
    """The keystrokes of all viewers of one terminal."""

    def __init__(self, master: int, typed: TypedInput) -> None:
        """`master`: the terminal's master; the caller closes it. `typed`: writes the keystrokes to the terminal."""
        self._master = master
        self._typed = typed
        self._held: bytearray | None = None
        self._signals_pass = False
        self._free = asyncio.Event()
        self._free.set()
        self.last = -1  # the last character that was sent to the terminal; -1: none, or unknown

    async def type(self, data: bytes) -> None:
        """Send the keystrokes `data` to the terminal, or hold them back if `hold` was called. Wait while too much typed
        input is unread, so that the viewer's client has to wait, too.
        """
        if self._held is not None:
            if self._signals_pass:
                data = self._raise_signals(data)
            self._held += data
            if len(self._held) > _HELD_MAX:
                self._free.clear()
                await self._free.wait()
            return
        self._send(data)
        await self._typed.wait_written()

    def hold(self, *, signals_pass: bool) -> None:
        """Hold keystrokes back until `release`. With `signals_pass` the keys for interrupt, quit and suspend still send
        their signals.
        """
        self._held = bytearray() if self._held is None else self._held
        self._signals_pass = signals_pass

    @property
    def has_held(self) -> bool:
        """True if keystrokes are held back."""
        return bool(self._held)

    def release(self) -> None:
        """End `hold`: send the keystrokes that were held back."""
        held, self._held = self._held, None
        if held:
            self._send(bytes(held))
        self._free.set()

    def close(self) -> None:
        """Stop using the master: the terminal has ended, or the caller is about to close the master."""
        self._master = -1

    def _send(self, data: bytes) -> None:
        if data:
            self.last = data[-1]
            self._typed.write(data)

    def _raise_signals(self, data: bytes) -> bytes:
        """Send a signal for each signal key in `data`. Return the keystrokes after the last signal key: as in a
        terminal, a signal key discards the input before it.

        The keys are not typed into the terminal, because its line discipline would write `^C` into the command's output
        and discard output that was not read yet.
        """
        if self._master < 0:
            return data
        modes = terminals.modes(self._master)
        if not modes.lflag & termios.ISIG:
            return data
        numbers = {modes.interrupt: signal.SIGINT, modes.quit: signal.SIGQUIT, modes.suspend: signal.SIGTSTP}
        for place, character in enumerate(data):
            if character in numbers:
                self._held = bytearray()
                terminals.raise_signal(self._master, numbers[character])
                return self._raise_signals(data[place + 1 :])
        return data
