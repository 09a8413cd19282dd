"""The watch over a session's shell: which process it is, and when it sits at its prompt."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from shellwrap.marks import Mark
from waypoint.linux.tasks import procfs
from waypoint.terminal.hooks import prompt
from waypoint.terminal.hooks.prompt import Look, Shell
from waypoint.terminal.terminal import Terminal

# Pauses between two probes of the shell, growing from the first to the last: a shell that has sent the mark P sits in
# its line editor well under a millisecond later.
_FIRST_LOOK_S = 0.0002
_LAST_LOOK_S = 0.25


class NotAtPrompt(Exception):
    """The shell cannot take a command now; the text says why."""


class ShellWatch:
    """Follows the marks P, by which the shell announces a prompt.

    `shell`: None until the first prompt. `prompts`: how many were announced. `on_new_shell`: called when another
    process has become the session's shell.
    """

    def __init__(self, terminal: Terminal, nonce: str, processes: Callable[[], list[int]]) -> None:
        self._terminal = terminal
        self._nonce = nonce
        self._processes = processes
        self._changed = asyncio.Event()
        self.shell: Shell | None = None
        self.prompts = 0
        self.on_new_shell: Callable[[], None] = lambda: None

    def start(self, known: Shell | None = None) -> None:
        """Follow the marks from now on, beginning with the last one in the ring. `known`: the shell that the last
        daemon saw.
        """
        self.shell = known
        prompts = [mark for mark in self._terminal.marks(0) if mark.kind == "P" and self._nonce in mark.fields[:2]]
        for mark in prompts[-1:]:
            self._hear(mark)
        self._terminal.on_mark.append(self._hear)

    def look(self) -> Look:
        """Probe what the shell is doing now."""
        if self.shell is None or self._terminal.is_released:
            return Look.BUSY
        return prompt.look(self._terminal.master, self.shell)

    def child_faults(self) -> int | None:
        """Page faults of the children that the shell has waited for: every job adds some. None: unknown."""
        with contextlib.suppress(ProcessLookupError):
            return procfs.stat(self.shell.pid).child_faults if self.shell is not None else None
        return None

    async def wait_prompt(self, timeout_s: float, after: int = 0) -> None:
        """Return when the shell sits in its line editor and `prompts` is at least `after`.

        Raises NotAtPrompt when the shell is gone or replaced, or after `timeout_s`.
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
        """Return when the shell has announced its first prompt. Raises NotAtPrompt at the terminal's end, or after
        `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while self.shell is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._terminal.closed.is_set():
                raise NotAtPrompt(self.obstacle(Look.BUSY))
            await self.wait_change(min(left_s, _LAST_LOOK_S))

    def obstacle(self, seen: Look) -> str:
        """Why the shell cannot take a command now, in words for a message. `seen`: what the probe found."""
        if self._terminal.closed.is_set() or seen is Look.GONE:
            return self._terminal.epitaph or "the session's shell has ended"
        name = prompt.foreground(self._terminal.master, self._processes())
        match self.shell:
            case None:
                running = f"{name} runs in the foreground" if name else "nothing runs in the foreground"
                return f"no shell with Waypoint's hooks has drawn a prompt in the session; {running}"
            case shell if seen is Look.REPLACED:
                return f"the session's shell was replaced by another program: {prompt.program(shell.pid)}"
            case Shell(kind="none"):
                return "the line editor of the session's shell is switched off (--noediting, set +o emacs)"
            case shell if prompt.has_foreground(self._terminal.master, shell):
                return "the session's shell is busy with a command of its own"
            case _:
                return f"{name or 'another program'} runs in the foreground of the session"

    async def wait_change(self, timeout_s: float) -> bool:
        """True once the shell has announced a prompt; False after `timeout_s`."""
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
