"""The session's shell over time: which process it is, and when it is at its prompt."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from shellwrap.marks import Mark
from waypoint.linux import procfs
from waypoint.session.exec import prompt
from waypoint.session.exec.prompt import Look, Shell
from waypoint.session.terminal.terminal import Terminal

# The kernel is asked again after so long: a shell that has said "prompt" needs well under a millisecond to get there.
_FIRST_LOOK_S = 0.0002
_LAST_LOOK_S = 0.25


class NotAtPrompt(Exception):
    """The shell cannot take a command now; the text says what is in the way."""


class ShellWatch:
    """Hears the mark P. `shell` is None until the first prompt."""

    def __init__(self, terminal: Terminal, nonce: str, processes: Callable[[], list[int]]) -> None:
        self._terminal = terminal
        self._nonce = nonce
        self._processes = processes
        self._changed = asyncio.Event()
        self.shell: Shell | None = None
        self.prompts = 0
        self.on_new_shell: Callable[[], None] = lambda: None

    def start(self, known: Shell | None = None) -> None:
        """Begin to hear; take what the ring tells of before. `known`: the shell that the last daemon saw."""
        self.shell = known
        prompts = [mark for mark in self._terminal.marks(0) if mark.kind == "P" and self._nonce in mark.fields[:2]]
        for mark in prompts[-1:]:
            self._hear(mark)
        self._terminal.on_mark.append(self._hear)

    def look(self) -> Look:
        """What the shell is doing now."""
        if self.shell is None or self._terminal.is_released:
            return Look.BUSY
        return prompt.look(self._terminal.master, self.shell)

    def child_faults(self) -> int | None:
        """Page faults of the children that the shell has waited for: they grow with every job. None: not known."""
        with contextlib.suppress(ProcessLookupError):
            return procfs.stat(self.shell.pid).child_faults if self.shell is not None else None
        return None

    async def wait_prompt(self, timeout_s: float, after: int = 0) -> None:
        """Return when the shell sits in its line editor, having said so more than `after` times.

        Raises NotAtPrompt when it cannot come to that, or not within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        pause_s = _FIRST_LOOK_S
        while True:
            seen = self.look()
            if seen is Look.PROMPT and self.prompts >= after:
                return
            if seen in (Look.GONE, Look.REPLACED) or self._terminal.closed.is_set():
                raise NotAtPrompt(self.obstacle(seen))
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise NotAtPrompt(self.obstacle(seen))
            changed = await self.wait_change(min(pause_s, left_s))
            pause_s = _FIRST_LOOK_S if changed else min(2 * pause_s, _LAST_LOOK_S)

    async def wait_first(self, timeout_s: float) -> None:
        """Return when the shell has drawn a prompt. Raises NotAtPrompt."""
        deadline = time.monotonic() + timeout_s
        while self.shell is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._terminal.closed.is_set():
                raise NotAtPrompt(self.obstacle(Look.BUSY))
            await self.wait_change(min(left_s, _LAST_LOOK_S))

    def obstacle(self, seen: Look) -> str:
        """Why no command can be run now, in words."""
        if self._terminal.closed.is_set() or seen is Look.GONE:
            return "the session's shell has ended"
        name = prompt.foreground(self._terminal.master, self._processes())
        match self.shell:
            case None:
                running = f"in the foreground runs: {name}" if name else "nothing runs in the foreground"
                return f"no shell with Waypoint's hooks has drawn a prompt in the session; {running}"
            case shell if seen is Look.REPLACED:
                return f"the session's shell was replaced by another program: {prompt.program(shell.pid)}"
            case Shell(kind="none"):
                return "the line editor of the session's shell is switched off (--noediting, set +o emacs)"
            case shell if prompt.has_foreground(self._terminal.master, shell):
                return "the session's shell is busy with a command of its own"
            case _:
                return f"in the foreground of the session runs: {name or 'another program'}"

    async def wait_change(self, timeout_s: float) -> bool:
        """True once the shell has said something about its prompt; False after `timeout_s`."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
                return True
        except TimeoutError:
            return False

    def _hear(self, mark: Mark) -> None:
        match mark.kind, mark.fields:
            case "P", (pid, nonce, kind) if nonce == self._nonce and pid.isdecimal():
                self._prompted(int(pid), kind)

    def _prompted(self, inner_pid: int, kind: str) -> None:
        known = self.shell
        if (
            known is None
            or (known.inner_pid, known.kind) != (inner_pid, kind)
            or self.look() in (Look.GONE, Look.REPLACED)
        ):
            found = Shell.find(inner_pid, kind, self._processes)
            if found is not None and found != known:
                self.shell = found
                self.on_new_shell()
        self.prompts += 1
        self._changed.set()
