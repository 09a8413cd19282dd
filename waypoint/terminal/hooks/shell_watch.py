"""The watch over a session's shell: which process it is, and when it sits at its prompt."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

from shellwrap.marks import Mark
from waypoint.linux.tasks import procfs
from waypoint.linux.tty import terminals
from waypoint.terminal.hooks import prompt
from waypoint.terminal.hooks.prompt import Look, Shell
from waypoint.terminal.terminal import Terminal

# Pauses between two probes of the shell, growing from the first to the last: a shell that has sent the mark P sits in
# its line editor well under a millisecond later.
_FIRST_LOOK_S = 0.0002
_LAST_LOOK_S = 0.25
# When another program has taken the shell's place, how many seconds a command waits for it: it may be a new shell that
# has yet to draw its first prompt (`exec bash`), or it may end at once and the session with it.
REPLACED_S = 1.0
# After a mark P the daemon searches the session's processes for the shell that has printed it. Any program can print
# marks without end, so searches are bounded: after each one the daemon rests for _REST times the processor time that
# the search took, and a search looks at the leader of the terminal's foreground group, which a shell at its prompt is,
# and at no more than _MOST_PROCESSES others.
_REST = 20.0
_MOST_PROCESSES = 256
# How many bytes back in the ring the last mark P is searched for. A mark that no daemon has heard is near the ring's
# end, or still in the terminal.
_RECENT_BYTES = 1 << 19


class NotAtPrompt(Exception):
    """The shell cannot take a command now; the text says why."""


class ShellWatch:
    """Follows the marks P, by which the shell announces a prompt.

    `shell`: None until the first prompt. `prompts`: how many were announced. `on_new_shell`: called when another
    process has become the session's shell. `is_state_lost`: whether the shell could not write its state at its last
    prompt.
    """

    def __init__(self, terminal: Terminal, nonce: str, processes: Callable[[], list[int]]) -> None:
        self._terminal = terminal
        self._nonce = nonce
        self._processes = processes
        self._changed = asyncio.Event()
        self.shell: Shell | None = None
        self.prompts = 0
        self.is_state_lost = False
        self._prompted_at = float("-inf")
        self._announced: tuple[int, str] | None = None  # of the last mark P: the shell's pid in the session, its kind
        self._is_resting = False
        self.on_new_shell: Callable[[], None] = lambda: None

    def start(self, known: Shell | None = None) -> None:
        """Follow the marks from now on, beginning with the last one in the ring. `known`: the shell that the last
        daemon saw.
        """
        self.shell = known
        recent = self._terminal.marks(self._terminal.ring.end - _RECENT_BYTES)
        for kind in ("L", "P"):
            for mark in [mark for mark in recent if mark.kind == kind and self._nonce in mark.fields[:2]][-1:]:
                self._hear(mark)
        self._terminal.on_mark.append(self._hear)

    def look(self) -> Look:
        """Probe what the shell is doing now. BUSY also if the known shell is gone while another process has announced a
        prompt, and the search for that process waits for a rest to end.
        """
        if self.shell is None or self._terminal.is_released:
            return Look.BUSY
        seen = prompt.look(self._terminal.master, self.shell)
        return Look.BUSY if self._announced is not None and seen in (Look.GONE, Look.REPLACED) else seen

    def since_prompt_s(self) -> float:
        """Seconds since the shell has announced its last prompt; infinite if it has announced none."""
        return time.monotonic() - self._prompted_at

    def child_faults(self) -> int | None:
        """Page faults of the children that the shell has waited for: every job adds some. None: unknown."""
        with contextlib.suppress(ProcessLookupError):
            return procfs.stat(self.shell.pid).child_faults if self.shell is not None else None
        return None

    async def wait_prompt(self, timeout_s: float, after: int = 0) -> None:
        """Return when the shell sits in its line editor and `prompts` is at least `after`.

        Raises NotAtPrompt when the shell is gone, or has been replaced for REPLACED_S, or after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        pause_s, unreplaced = _FIRST_LOOK_S, time.monotonic()
        while True:
            seen = self.look()
            if seen is Look.PROMPT and self.prompts >= after:
                return
            if seen is Look.GONE or self._terminal.closed.is_set():
                raise NotAtPrompt(self.obstacle(seen))
            unreplaced = unreplaced if seen is Look.REPLACED else time.monotonic()
            left_s = min(deadline, unreplaced + REPLACED_S) - time.monotonic()
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
        name = prompt.foreground(self._terminal.master, self._candidates())
        match self.shell:
            case None:
                running = f"{name} runs in the foreground" if name else "nothing runs in the foreground"
                return (
                    f"it takes a bash or zsh that Waypoint has started, and no such shell has shown a prompt; {running}"
                )
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
                self._announced = int(pid), kind
                if not self._is_resting:
                    self._search()
                self.prompts += 1
                self._prompted_at = time.monotonic()
                self._changed.set()
            case "L", (nonce, lost) if nonce == self._nonce:
                self.is_state_lost = lost == "lost"

    def _search(self) -> None:
        """Find the process that has announced a prompt, unless it is the known shell; then rest."""
        began = time.thread_time()
        announced, self._announced = self._announced, None
        known = self.shell
        if announced is not None and (
            known is None or (known.inner_pid, known.kind) != announced or self.look() in (Look.GONE, Look.REPLACED)
        ):
            found = Shell.find(*announced, self._candidates)
            if found is not None and found != known:
                self.shell = found
                self.on_new_shell()
        self._is_resting = True
        asyncio.get_running_loop().call_later(_REST * (time.thread_time() - began), self._go_on_searching)

    def _candidates(self) -> Iterator[int]:
        if group := terminals.foreground_group(self._terminal.master):
            yield group
        yield from itertools.islice(self._processes(), _MOST_PROCESSES)

    def _go_on_searching(self) -> None:
        self._is_resting = False
        if self._announced is not None and not self._terminal.is_released:
            self._search()
            self._changed.set()
