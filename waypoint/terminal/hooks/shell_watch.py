"""Tracks a session's shell: which process is the shell, and when the shell waits at its prompt."""

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

# The interval between two probes of the shell grows from the first to the last value. A shell that has printed the mark
# P enters its line editor well under a millisecond later.
_FIRST_LOOK_S = 0.0002
_LAST_LOOK_S = 0.25
# If the shell has replaced itself by another program (`exec`), a command waits this many seconds. The program may be a
# new shell that has not yet printed its first prompt (`exec bash`), or it may end soon, and the session with it.
REPLACED_S = 1.0
# After a mark P the daemon searches the session's processes for the shell that has printed the mark. Any program can
# print marks without end, so searches are limited: after each search the daemon starts no other for _REST times the
# processor time that the search took. A search looks at the leader of the terminal's foreground group, which is the
# shell if it waits at its prompt, and at no more than _MOST_PROCESSES other processes.
_REST = 20.0
_MOST_PROCESSES = 256
# The last mark P is searched for in this many bytes at the end of the ring, which keeps the terminal's recent output. A
# mark that no daemon has read yet is near the ring's end, or still in the terminal.
_RECENT_BYTES = 1 << 19


class NotAtPrompt(Exception):
    """The shell cannot take a command now; the text says why."""


class ShellLost(NotAtPrompt):
    """The shell waits at its prompt but answers no request: it cannot serve commands any more."""


class ShellWatch:
    """Follows the marks P, by which the shell announces a prompt.

    `processes`: lists the session's processes. `shell`: None until the first prompt. `prompts`: the number of marks P
    received. `on_new_shell`: called when another process has become the session's shell. `on_prompt`: called at each
    mark P. `is_state_lost`: True if the shell could not write its state at its last prompt.
    """

    def __init__(self, terminal: Terminal, nonce: str, processes: Callable[[], list[int]]) -> None:
        self._terminal = terminal
        self._nonce = nonce
        self.processes = processes
        self._changed = asyncio.Event()
        self.shell: Shell | None = None
        self.prompts = 0
        self.is_state_lost = False
        self._prompted_at = float("-inf")
        # The shell's pid inside the session and the shell's kind, from the last mark P; None when searched for.
        self._announced: tuple[int, str] | None = None
        self._is_resting = False
        self.on_new_shell: Callable[[], None] = lambda: None
        self.on_prompt: list[Callable[[], None]] = []

    def start(self, known: Shell | None = None) -> None:
        """Begin to follow the marks, starting with the last one in the ring. `known`: the shell that the previous
        daemon has found.
        """
        self.shell = known
        recent = self._terminal.marks(self._terminal.ring.end - _RECENT_BYTES)
        for kind in ("L", "P"):
            for mark in [mark for mark in recent if mark.kind == kind and self._nonce in mark.fields[:2]][-1:]:
                self._hear(mark)
        self._terminal.on_mark.append(self._hear)

    def look(self) -> Look:
        """Probe the state of the shell. Also return BUSY if the known shell has ended and another process has announced
        a prompt, but the search for that process has not begun yet.
        """
        if self.shell is None or self._terminal.is_released:
            return Look.BUSY
        seen = prompt.look(self._terminal.master, self.shell)
        return Look.BUSY if self._announced is not None and seen in (Look.GONE, Look.REPLACED) else seen

    def since_prompt_s(self) -> float:
        """Seconds since the last mark P; infinite if there was none."""
        return time.monotonic() - self._prompted_at

    def child_faults(self) -> int | None:
        """Page faults of the children that the shell has waited for. The number grows with every job, so it shows
        whether the shell has run one. None if it is unknown.
        """
        with contextlib.suppress(ProcessLookupError):
            return procfs.stat(self.shell.pid).child_faults if self.shell is not None else None
        return None

    async def wait_prompt(self, timeout_s: float, after: int = 0) -> None:
        """Return when the shell waits in its line editor and `prompts` is at least `after`.

        Raises NotAtPrompt if the shell has ended, if another program has replaced the shell for REPLACED_S, or after
        `timeout_s`.
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
        """Return when the shell has announced its first prompt. Raises NotAtPrompt if the terminal is closed, or after
        `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while self.shell is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._terminal.closed.is_set():
                raise NotAtPrompt(self.obstacle(Look.BUSY))
            await self.wait_change(min(left_s, _LAST_LOOK_S))

    def obstacle(self, seen: Look) -> str:
        """Explain, in words for a message, why the shell cannot take a command now. `seen`: the probe's result."""
        if self._terminal.closed.is_set() or seen is Look.GONE:
            return self._terminal.epitaph or "the session's shell has ended"
        name = prompt.foreground(self._terminal.master, self._candidates())
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
        """Return True when the shell announces a prompt, False after `timeout_s`."""
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
                for tell in self.on_prompt:
                    tell()
            case "L", (nonce, lost) if nonce == self._nonce:
                self.is_state_lost = lost == "lost"

    def _search(self) -> None:
        """Find the process that has announced a prompt, unless the known shell has. Then allow no search for a while
        (see _REST).
        """
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
        processes = self.processes()
        group = terminals.foreground_group(self._terminal.master)
        if group in processes:  # otherwise the group has ended, and another process of the machine may have its id
            yield group
        yield from itertools.islice(processes, _MOST_PROCESSES)

    def _go_on_searching(self) -> None:
        self._is_resting = False
        if self._announced is not None and not self._terminal.is_released:
            self._search()
            self._changed.set()
