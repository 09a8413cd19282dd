"""Runs one command line in the session's shell, from the key press to the shell's next prompt. Independent of any
client.

The daemon may die between any two steps. Therefore each phase is saved before its first step, each step may be
repeated, and after the marks S (start) and E (end) the shell waits at the FIFO `go` until the daemon lets it continue.

Why the shell waits: readline saves the terminal's modes when it begins to edit a line, and restores the saved modes
when the line is complete. If the daemon changed the modes at any other moment, readline would undo the change at once,
or save the changed modes.
"""

import asyncio
import contextlib
import logging
import signal
import termios
import time
import urllib.parse
from collections.abc import Callable

import msgspec

from shellwrap.marks import Mark, format_mark
from waypoint.linux.tty import terminals
from waypoint.terminal.exec import ending, lost_shell
from waypoint.terminal.exec.beginning import Beginning
from waypoint.terminal.exec.command_record import End, ExecRecord, Phase
from waypoint.terminal.exec.command_text import REFUSED, is_refused
from waypoint.terminal.exec.input_feed import InputFeed
from waypoint.terminal.exec.signals import ENDING, SignalQueue
from waypoint.terminal.hooks.asking import Desk
from waypoint.terminal.hooks.exchange import HookExchange
from waypoint.terminal.hooks.prompt import Look, Shell
from waypoint.terminal.hooks.run_folder import apart
from waypoint.terminal.hooks.shell_watch import REPLACED_S, NotAtPrompt, ShellLost

# While a command runs, the daemon repeatedly checks that the shell still exists. The interval between two checks begins
# with the first value and doubles each time, up to the second value.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.05, 1.0
# How many seconds to wait for the session's end after the shell's end. Pid 1 writes the exit status in this time, which
# the session's root may delay without end.
_GONE_S = 5.0
# The maximum length in bytes of a command's text for viewers. The text fits into a mark even if every byte is escaped.
_SHOWN_MAX = 240

log = logging.getLogger(__name__)


class Execution:
    """One command line. `result` is set when the command has ended; `run` returns when the shell is ready for the next
    command.
    """

    def __init__(
        self,
        desk: Desk,
        record: ExecRecord,
        save: Callable[[ExecRecord], None],
        feed: InputFeed | None = None,
        wait_prompt_s: float | None = None,
    ) -> None:
        """`save`: saves the record for the next daemon; raises OSError. `wait_prompt_s`: how many seconds to wait while
        the shell refuses the command, as it does at the prompt of a continuation line. None if an earlier daemon has
        begun the command.
        """
        self.record = record
        self.prompts_at_end: int | None = None  # ShellWatch.prompts when the command ended; None: it has not ended
        self.ended_at = 0.0  # on the monotonic clock
        self._lost = ""  # why the shell is lost, in words
        self.gives_state = True  # whether a shell that replaces a lost one gets the state of that one
        self.feed = feed
        self.result: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self.started = asyncio.Event()
        self.stuck = False  # the command still runs after its timeout and the signals that should have ended it
        self._desk = desk
        self._save = save
        self._talk = HookExchange(desk.terminal, record.id, record.nonce, record.asked_at)
        self._beginning = Beginning(desk, self._talk, record, wait_prompt_s)
        self._replacement: asyncio.Task[bool] | None = None  # kills the shell, which is lost
        self._is_replacing = False  # the command is about to replace the shell, which the hooks have announced
        self._stopped_by = ""  # the last signal that was sent to the command at its timeout; "": none
        self._signals = SignalQueue(desk, lambda: record.phase is Phase.STARTED)

    def doubt(self, before: "Execution | None", lost: str) -> None:
        """Consider the shell as lost if it does not begin this command. `before`: the command before. `lost`: why the
        shell is lost in any case, in words; "" if it is not.
        """
        self._lost = lost
        if before is not None:
            self._beginning.last_prompts = before.prompts_at_end

    def signal(self, number: signal.Signals) -> None:
        """Send the client's signal to the command when it runs. If the signal is meant to end the command (ENDING),
        also cancel a command that the shell does not begin.
        """
        self._signals.put(number)
        if number in ENDING:
            self._beginning.call_off()

    async def run(self) -> None:
        """Continue the command from the phase in its record until its end. If this is cancelled, the next daemon
        continues the command from the record.
        """
        desk = self._desk
        companions = [asyncio.create_task(ending.hear_session_end(desk, self._talk))]
        desk.terminal.keyboard.hold(signals_pass=False)
        try:
            await self._close(await self._carry_on(companions))
        finally:
            # If an exception ends `run`, end all waits for `result` and `started`. After `_close` both are set already,
            # and these two lines change nothing.
            self.result.cancel()
            self.started.set()
            for task in (*companions, *([self._replacement] if self._replacement is not None else [])):
                task.cancel()
            if self.feed is not None:
                self.feed.close()
            desk.terminal.keyboard.release()

    async def _carry_on(self, companions: list[asyncio.Task[None]]) -> End:
        """Carry out the phases, beginning with the phase in the record. Return how the command ended. Append to
        `companions` the tasks that run at the same time, which the caller cancels.
        """
        desk, record = self._desk, self.record
        try:
            with self._talk:
                if record.phase is Phase.ASKED:
                    await self._wait_begun()
                await desk.terminal.moving.wait()
                if record.phase is Phase.STARTED:
                    self._let_start()
                    companions += [
                        asyncio.create_task(self._feed_input()),
                        asyncio.create_task(self._enforce_timeout()),
                        asyncio.create_task(self._signals.run()),
                    ]
                    await self._wait_ended()
                if record.phase is Phase.REPLACING:
                    await self._wait_replaced()
                await desk.terminal.moving.wait()
                if record.phase is Phase.ENDED:
                    await self._let_end()
        except NotAtPrompt as lost:
            return End(125, "waypoint", said=str(lost), code="shell-busy")
        except Exception:
            log.exception("an exec failed")
            return End(125, "waypoint", said="an unexpected error in Waypoint; the daemon's log has it", code="bug")
        except OSError as error:
            return End(125, "waypoint", said=f"{error.strerror}: {error.filename or 'the terminal'}")
        return record.end or End(125, "waypoint")

    async def _wait_begun(self) -> None:
        """Wait until the command begins. If the shell does not answer, replace the shell; the command does not run."""
        try:
            if self._lost:
                raise ShellLost(self._lost)
            await self._beginning.wait()
        except ShellLost as lost:
            if not await self._replace_shell(lost_shell.refused(str(lost)), str(lost)):
                raise

    @property
    def output_limit(self) -> int:
        """The position in the ring up to which output certainly comes from the command. The position is final when
        `record.stop` is set.
        """
        mark = self._talk.heard("E", "X")
        reported = mark.start if mark is not None else None
        ends = (self.record.stop, reported, self._next_prompt(), self._desk.terminal.settled)
        return min(end for end in ends if end is not None)

    def _next_prompt(self) -> int | None:
        """The position in the ring at which a shell that has replaced the lost one begins to draw its prompt."""
        record = self.record
        if not record.lost_shell or record.start is None:
            return None
        prompts = (one for one in self._desk.terminal.marks(record.start) if one.kind == "P")
        return next((one.start for one in prompts if one.fields[:1] != (str(record.lost_shell),)), None)

    def _let_start(self) -> None:
        """While the shell waits after the mark S: record where the output begins, change the terminal's modes, and let
        the shell continue.
        """
        desk, record, terminal = self._desk, self.record, self._desk.terminal
        if record.start is None:
            record.output_processing = bool(terminals.modes(terminal.master).oflag & termios.OPOST)
            terminal.append(
                format_mark("V", record.id, record.nonce, "tty" if record.tty else "raw", shown(record.text))
            )
            record.start = terminal.ring.end
            record.stdin_open = record.stdin
            record.child_faults = desk.watch.child_faults()
            if record.timeout_s is not None:
                record.deadline = time.clock_gettime(time.CLOCK_BOOTTIME) + record.timeout_s
        self._save(record)
        if not record.tty and record.output_processing:
            terminals.hold_output_raw(terminal.master)
        terminal.raw_command = () if record.tty else (record.id, record.nonce)
        desk.go.say("S", record.nonce)
        terminal.keyboard.hold(signals_pass=True)
        if record.tty:
            terminal.keyboard.release()
        self.started.set()

    async def _wait_ended(self) -> None:
        """Wait until the shell prints the mark E, or until a probe of the shell shows that the command has ended
        without that mark.

        Raises NotAtPrompt if the session's shell no longer exists, or was replaced by a program without hooks.
        """
        desk, talk = self._desk, self._talk
        pause_s, at_prompt, replaced_s, gone_s = _FIRST_LOOK_S, 0, 0.0, 0.0
        while (mark := await self._hear_end(pause_s)) is None:
            if self.record.phase is Phase.REPLACING:
                return
            if desk.terminal.is_released and not desk.ended.done():
                raise asyncio.CancelledError  # this daemon has released the running session; the next daemon continues
            if desk.terminal.closed.is_set() or desk.ended.done():
                self.record.end = await ending.session_end(desk)
                return
            seen = desk.watch.look()
            replaced_s += pause_s if seen is Look.REPLACED else 0
            gone_s += pause_s if seen is Look.GONE else 0
            if replaced_s > (ending.NEW_SHELL_S if self._is_replacing else REPLACED_S) or gone_s > _GONE_S:
                raise NotAtPrompt(desk.watch.obstacle(seen))
            at_prompt = at_prompt + 1 if seen is Look.PROMPT else 0
            replaced = talk.heard("X")
            if at_prompt and replaced is not None:
                self._ended(0, replaced.start)
                return
            if at_prompt == 2:
                await self._find_status()
                return
            desk.go.say_again("X" if self._is_replacing else "S", self.record.nonce)
            pause_s = _FIRST_LOOK_S if self._stopped_by or self._is_replacing else min(2 * pause_s, _LAST_LOOK_S)
        new_shell = lost_shell.is_new_shell(mark)
        # The daemon has hung up the terminal, so the shell has run its EXIT trap and ended: no new shell will start.
        if new_shell and desk.hung_up.is_set():
            self.record.stop = max(mark.start, self.record.start or 0)
            self.record.end = await ending.session_end(desk)
            return
        is_lost = new_shell and not await apart(desk.folder, ending.has_left_state)
        self._ended(ending.status_in(mark), mark.start, new_shell=new_shell, state_lost=is_lost)

    async def _find_status(self) -> None:
        """Ask the shell for the status of a command whose end it did not report. If the shell does not answer, replace
        the shell.
        """
        try:
            status = await ending.find_status(self._desk, self._talk)
        except NotAtPrompt as lost:
            if self.record.phase is Phase.REPLACING:  # at the timeout
                return
            end = End(125, "waypoint", said=str(lost), code=lost_shell.SHELL_LOST)
            if not isinstance(lost, ShellLost) or not await self._replace_shell(end, str(lost)):
                raise
            return
        if self.record.phase is Phase.STARTED:
            self._ended(status, self._desk.terminal.settled)

    async def _hear_end(self, timeout_s: float) -> Mark | None:
        """Wait for the mark E; return None after `timeout_s`. At the mark X (the command will replace the shell now),
        restore the terminal's modes, let the shell go on, and return None.
        """
        desk, kinds = self._desk, ("E",) if self._is_replacing else ("E", "X")
        mark = await self._talk.wait(*kinds, timeout_s=timeout_s)
        if mark is None or mark.kind == "E":
            return mark
        await desk.terminal.moving.wait()
        ending.put_modes_back(desk, self.record)
        desk.terminal.raw_command = ()
        desk.go.say("X", self.record.nonce)
        self._is_replacing = True
        return None

    def _ended(self, status: int, position: int, *, new_shell: bool = False, state_lost: bool = False) -> None:
        record = self.record
        record.phase = Phase.ENDED
        record.new_shell = new_shell
        if self.result.done():
            return  # the command ran longer than its timeout, which was already reported to its client
        record.stop = max(position, record.start or 0)
        record.end = End(status)
        if self._stopped_by:
            said = self._stopped()
            record.end = End(124, "waypoint", said=said, signal=self._stopped_by)
        elif record.stdin_open and self.feed is None:
            record.end = End(
                125,
                "waypoint",
                said=f"the command's input was cut off when the daemon was replaced (its exit status: {status})",
                code="connection-lost",
            )
        elif status == REFUSED and is_refused(self._desk.folder, record):
            record.end = End(REFUSED, "waypoint")  # the output contains the shell's message
        record.end = msgspec.structs.replace(record.end, new_shell=new_shell, state_lost=state_lost)

    async def _let_end(self) -> None:
        """While the shell waits after the mark E: restore the terminal's modes, let the shell continue to its prompt,
        and restore the line that a person had partly typed.
        """
        desk, record = self._desk, self.record
        self._save(record)
        prompts = self.prompts_at_end = desk.watch.prompts
        self.ended_at = time.monotonic()
        if not desk.go.is_there:  # the shell does not wait: it continues to its prompt, where it sets its own modes
            await ending.wait_prompt_again(desk, prompts, lambda: None)
            await desk.terminal.moving.wait()
        ending.put_modes_back(desk, record)
        desk.terminal.raw_command = ()
        # A shell saves the terminal's modes when one of its jobs ends. If a job has ended during this command, the
        # shell must save the modes again ("E+"), or it would later restore the modes of the command.
        again = not record.tty and (record.child_faults is None or record.child_faults != desk.watch.child_faults())
        word = "E+" if again else "E"
        desk.go.say(word, record.nonce)
        self._settle()
        desk.terminal.keyboard.hold(signals_pass=False)
        await ending.wait_prompt_again(desk, prompts, lambda: desk.go.say_again(word, record.nonce))
        if record.new_shell:
            await ending.wait_new_shell(desk)
            return
        zsh = desk.watch.shell is not None and desk.watch.shell.kind == "zsh"
        if record.half_line and not zsh and self._talk.heard("R") is None:
            await ending.put_half_line_back(desk, self._talk)
        await ending.wait_for_keys(desk)

    async def _close(self, end: End) -> None:
        """Record the command as done, with `end` if its record has no end yet, and remove its files."""
        await self._desk.terminal.moving.wait()
        record = self.record
        record.end = record.end or end
        record.phase = Phase.DONE
        record.stop = self._desk.terminal.settled if record.stop is None else record.stop
        ending.put_modes_back(self._desk, record)
        self._desk.terminal.raw_command = ()
        if record.start is not None and self._talk.heard("E") is None and not self._desk.terminal.closed.is_set():
            self._desk.terminal.append(format_mark("E", record.id, record.nonce, str(record.end.exit), "W"))
        # On a full disk this may fail. The next daemon then takes over a command that has ended, which does no harm.
        with contextlib.suppress(OSError):
            self._save(record)
        self._settle()
        if not self._desk.ended.done():  # otherwise `Endings` has already removed the files
            ending.remove_files(self._desk, record.id)

    def _settle(self) -> None:
        """Set `result`, which wakes all that wait for the command's end."""
        if self.record.stop is None:
            self.record.stop = self._desk.terminal.settled
        if not self.result.done() and self.record.end is not None:
            self.result.set_result(self.record.end)
        self.started.set()
        self._desk.terminal.wake()

    async def _feed_input(self) -> None:
        if self.feed is not None:
            await self.feed.run()
            await self._desk.terminal.moving.wait()
            self.record.stdin_open = False
            self._save(self.record)

    async def _enforce_timeout(self) -> None:
        record, desk = self.record, self._desk

        async def stop(number: signal.Signals) -> None:
            if await self._signals.send_now(number):
                self._stopped_by = number.name.removeprefix("SIG")
                self._talk.interrupt()  # probe the shell at once, since it may not print the mark E

        if record.deadline is None:
            return
        await ending.wait_deadline(record.deadline)
        shell, moving = desk.watch.shell, desk.terminal.moving
        if shell is None:
            return
        reaction = lost_shell.Reaction(desk, shell)
        reporting = asyncio.create_task(ending.wait_moment(time.monotonic() + ending.REPORT_S, moving))
        stopping = asyncio.create_task(ending.stop_command(moving, stop, reaction.is_acting))
        try:
            await asyncio.wait((stopping, reporting), return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                self._report_stuck(has_left=reaction.has_left_command())
            await stopping
        finally:
            stopping.cancel()
            reporting.cancel()
        if self._may_be_stuck():
            self._stopped_by = "KILL"
            why = f"it ran longer than the timeout of {record.timeout_s:g} s, and did not act on signals"
            if not await self._replace_shell(End(124, "waypoint", said=self._stopped(), signal="KILL"), why):
                self._report_stuck()

    def _may_be_stuck(self) -> bool:
        """Return False if the command has ended, or the session is ending."""
        desk = self._desk
        return self.record.phase is Phase.STARTED and not desk.terminal.closed.is_set() and not desk.ended.done()

    def _report_stuck(self, *, has_left: bool = False) -> None:
        """Report the command's end at its timeout although the shell is not at its prompt. `has_left`: the shell has
        ended the command, and runs its hooks or the user's PROMPT_COMMAND.
        """
        if not self._may_be_stuck() or self.result.done():
            return
        self.stuck = True
        said = f"the command did not end at its timeout and still runs; SIG{self._stopped_by} was the last signal"
        if has_left:
            said = f"{self._stopped()}; the shell has not reached its prompt yet"
        self.record.end = End(124, "waypoint", said=said, signal=self._stopped_by)
        self._settle()

    def _stopped(self) -> str:
        return f"the command was stopped after {self.record.timeout_s:g} s, by SIG{self._stopped_by}"

    async def _replace_shell(self, end: End, why: str) -> bool:
        """Kill the shell, which is lost, and report the command's end `end`. `why`: in words. Return False if pid 1
        cannot start a new shell; nothing has happened then. `_wait_replaced` waits for the new shell.
        """
        if self._replacement is None or (self._replacement.done() and not self._replacement.result()):
            self._replacement = asyncio.create_task(self._replace(end, why))
        return await asyncio.shield(self._replacement)

    async def _replace(self, end: End, why: str) -> bool:
        desk, record = self._desk, self.record
        shell = desk.watch.shell
        if shell is None or not desk.can_renew():
            return False
        try:
            has_state = await lost_shell.leave_state(desk)
        except OSError:  # the run folder was removed
            return False
        await desk.terminal.moving.wait()
        if record.phase not in (Phase.ASKED, Phase.STARTED) or desk.hung_up.is_set():
            desk.folder.remove(lost_shell.RENEW_FILE)
            return False
        record.phase, record.lost_shell = Phase.REPLACING, shell.inner_pid
        await self._kill_shell(shell)
        record.new_shell = True
        record.end = msgspec.structs.replace(
            end, new_shell=True, state_lost=not has_state or not self.gives_state, degraded=[lost_shell.renewed(why)]
        )
        self._save(record)
        self._settle()
        self._talk.interrupt()
        return True

    async def _kill_shell(self, shell: Shell) -> None:
        """Kill the shell, and return when its output is read."""
        desk, record = self._desk, self.record
        self._save(record)
        desk.folder.remove("req")  # the new shell must not find the request, whose key may still be unread
        await lost_shell.kill(desk, shell)
        lost_shell.clean_terminal(desk)
        desk.terminal.raw_command = ()
        await lost_shell.wait_read(desk)
        record.stop = max(self.output_limit, record.start or 0)

    async def _wait_replaced(self) -> None:
        """Wait until the new shell is at its prompt. If the daemon before has not killed the lost shell, do that."""
        desk, record = self._desk, self.record
        if self._replacement is not None:
            await asyncio.shield(self._replacement)
        shell = desk.watch.shell
        await desk.terminal.moving.wait()
        if shell is not None and shell.inner_pid == record.lost_shell and desk.watch.look() is not Look.GONE:
            await lost_shell.leave_state(desk)
            await self._kill_shell(shell)
        if record.end is None:
            record.end = lost_shell.after_a_crash(record)
        record.new_shell = True
        self._settle()
        desk.terminal.keyboard.release()
        await ending.wait_new_shell(desk)


def shown(text: str) -> str:
    """Return the command line `text` as a field of a mark: the first line, cut at _SHOWN_MAX bytes and escaped."""
    line = text.strip().partition("\n")[0].encode(errors="surrogateescape")
    return urllib.parse.quote(line[:_SHOWN_MAX], safe=" ")
