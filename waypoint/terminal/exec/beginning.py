"""The beginning of a command: from the key press to the mark S, which the shell prints when the command starts."""

import asyncio
import signal
import time

import msgspec

from shellwrap.marks import ACCEPT
from waypoint.terminal.exec.command_record import End, ExecRecord, Phase
from waypoint.terminal.exec.ending import wait_moment
from waypoint.terminal.exec.lost_shell import hangs, is_new_shell, refused
from waypoint.terminal.exec.signals import send
from waypoint.terminal.hooks.asking import Desk, ask, hear
from waypoint.terminal.hooks.exchange import HookExchange
from waypoint.terminal.hooks.shell_watch import NotAtPrompt, ShellLost

# How many seconds to wait for a shell that refuses a command which an earlier daemon has begun.
_PATIENCE_S = 5.0
# A shell at its prompt begins a command within milliseconds. A shell that hangs in its hooks never does: the session's
# root can give the hooks an endless file to read. So a command with a timeout must begin within that timeout, within
# the time that the client allows for the prompt, or within _BEGIN_S, whichever is longest. After the client has
# cancelled a command, the command must begin within _CALLED_OFF_S.
_BEGIN_S, _CALLED_OFF_S = 2.0, 1.0


class Beginning:
    def __init__(self, desk: Desk, talk: HookExchange, record: ExecRecord, wait_prompt_s: float | None) -> None:
        """`wait_prompt_s`: see Execution."""
        self._desk = desk
        self._talk = talk
        self._record = record
        self._adopted = wait_prompt_s is None
        self._wait_prompt_s = _PATIENCE_S if wait_prompt_s is None else wait_prompt_s
        self._wait_until = time.monotonic() + self._wait_prompt_s
        self._called_off = asyncio.Event()
        # ShellWatch.prompts at the end of the command before
        self.last_prompts: int | None = None

    def call_off(self) -> None:
        """Cancel the command if it does not begin within _CALLED_OFF_S."""
        self._called_off.set()

    async def wait(self) -> None:
        """Make the shell begin the command, and set the record's phase. If the command does not begin in time, raise
        NotAtPrompt, after sending SIGINT (^C) to the shell, which ends a hanging hook. Raises ShellLost if the shell
        does not answer, or hangs all the same.
        """
        desk, talk, record = self._desk, self._talk, self._record
        jobs = [asyncio.ensure_future(job) for job in (self._wait_started(), self._wait_given_up())]
        try:
            await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            started, given_up = jobs
            if started.done():
                await started
            elif talk.heard("S", "E") is None:
                said = await given_up
                if desk.watch.shell is not None and not desk.terminal.closed.is_set():
                    send(desk.terminal.master, desk.watch.shell.pid, signal.SIGINT, desk.watch.processes)
                    desk.go.say("E", record.nonce)  # a shell that has accepted the command may wait after the mark E
                said = f"the session's shell did not begin the command {said}"
                if await hangs(desk):
                    raise ShellLost(said)
                raise NotAtPrompt(f"{said}; the command will not run")
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
        has_not_begun = talk.heard("E") is not None and talk.heard("S") is None and record.start is None
        if has_not_begun and not is_new_shell(talk.heard("E")) and desk.can_renew():
            raise ShellLost("its hooks did not begin the command")
        record.phase = Phase.STARTED
        accepted, mark = talk.heard("A"), talk.heard("E")
        length = accepted.fields[2] if accepted is not None and len(accepted.fields) > 2 else ""
        record.half_line = int(length) if length.isdecimal() else 0
        if mark is not None and has_not_begun:
            record.stop = mark.start
            record.end = End(125, "waypoint", said="the command was interrupted before it began", code="interrupted")
            if is_new_shell(mark):  # a trap of the user's has ended the shell
                record.new_shell = True
                record.end = msgspec.structs.replace(refused("the shell has ended"), new_shell=True)
            record.phase = Phase.ENDED

    async def _wait_given_up(self) -> str:
        """Wait until the command's time to begin is over. Return a text that says which limit has passed."""
        limit_s, moving = self._record.timeout_s, self._desk.terminal.moving
        if limit_s is None:
            await self._called_off.wait()
        else:
            limit_s = max(limit_s, self._wait_prompt_s, _BEGIN_S)
            timer = asyncio.ensure_future(wait_moment(time.monotonic() + limit_s, moving))
            off = asyncio.ensure_future(self._called_off.wait())
            try:
                await asyncio.wait((timer, off), return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                off.cancel()
        if not self._called_off.is_set():
            return f"within {limit_s:g} s"
        await wait_moment(time.monotonic() + _CALLED_OFF_S, moving)
        return "before the client cancelled it"

    async def _wait_started(self) -> None:
        """Return when the shell has printed the mark S, or E if the command was aborted before it started."""
        desk, talk = self._desk, self._talk
        operation = "tty" if self._record.tty else "in" if self._record.stdin else "exec"
        answers = ("S", "E", "A", "B")
        if self._adopted:
            # The previous daemon may have pressed the key already. A second key press would become input of the
            # command.
            await hear(desk, talk, answers)
        entered = talk.heard("A") is not None  # the previous daemon has typed Enter, or died just before
        while talk.heard("S", "E") is None:
            prompts = desk.watch.prompts
            answer = talk.heard("A") or await ask(desk, talk, operation, answers)
            if answer.kind == "A":
                await self._enter(entered=entered)
                entered = False
            elif answer.kind == "B":
                desk.terminal.keyboard.release()  # so that a person can complete the line that the shell waits for
                try:
                    await desk.watch.wait_prompt(self._wait_until - time.monotonic(), after=prompts + 1)
                except NotAtPrompt as busy:
                    if desk.watch.prompts == self.last_prompts:
                        raise ShellLost("since the command before, its hooks have announced no prompt") from busy
                    raise
                desk.terminal.keyboard.hold(signals_pass=False)

    async def _enter(self, *, entered: bool) -> None:
        """Type the key that accepts the line, so that bash runs the wrapper that its hooks have put on the edited line.
        That is Enter for the hooks of earlier versions. zsh needs no key.

        `entered`: Enter may have been typed already.
        """
        zsh = self._desk.watch.shell is not None and self._desk.watch.shell.kind == "zsh"
        if not entered and not zsh:
            accepted = self._talk.heard("A")
            has_key = accepted is not None and accepted.fields[3:4] == ("key",)
            self._desk.terminal.typed.write(ACCEPT if has_key else b"\r")
        if await hear(self._desk, self._talk, ("S", "E")) is None and not entered:
            raise ShellLost("the session's shell accepted the command but did not begin it")
