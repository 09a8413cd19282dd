"""One command line in the session's shell, from the key to the shell's next prompt. Independent of any client.

The order of steps is what makes it safe to lose the daemon between any two of them: each phase is on record before
its first step, each step may be taken twice, and at S and at E the shell waits in the FIFO `go` until it is told to
go on.

Why the shell waits: readline saves the terminal's modes when it begins to edit and puts them back when it is done.
Changed from outside at any other moment, they would be undone at once, or become the saved ones.
"""

import asyncio
import contextlib
import termios
import time
import urllib.parse

from shellwrap.marks import format_mark
from waypoint.linux import terminals
from waypoint.session.exec import ending
from waypoint.session.exec.asking import Desk, ask, hear
from waypoint.session.exec.conversation import Conversation
from waypoint.session.exec.input_feed import InputFeed
from waypoint.session.exec.prompt import Look
from waypoint.session.exec.record import End, ExecRecord, Phase
from waypoint.session.exec.shell_watch import NotAtPrompt
from waypoint.session.exec.signals import SignalQueue

# While a command runs the kernel is asked whether the shell is still there: after the first time, then ever more
# rarely.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.05, 1.0
# How long a shell may refuse a command that another daemon has begun.
_PATIENCE_S = 5.0
# What viewers are shown of the command, in bytes: with every one of them escaped it still fits in a mark.
_SHOWN_MAX = 240


class Execution:
    """`result` is set when the command has ended; `run` returns when the shell is ready for the next one."""

    def __init__(self, desk: Desk, record: ExecRecord, feed: InputFeed | None, wait_prompt_s: float | None) -> None:
        """`wait_prompt_s`: how long the shell may refuse, as it does in a continued line; None: another daemon has
        begun with the command.
        """
        self.record = record
        self.feed = feed
        self.result: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self.started = asyncio.Event()
        self.stuck = False  # it goes on after its timeout
        self._desk = desk
        self._adopted = wait_prompt_s is None
        self._wait_until = time.monotonic() + (_PATIENCE_S if wait_prompt_s is None else wait_prompt_s)
        self._talk = Conversation(desk.terminal, record.id, record.nonce, record.asked_at)
        self._timed_out = asyncio.Event()
        self.signals = SignalQueue(desk, lambda: record.phase is Phase.STARTED)

    async def run(self) -> None:
        """See the command through, from wherever the record says it is. If cancelled, the record tells the next
        daemon where.
        """
        desk, record = self._desk, self.record
        companions = [asyncio.create_task(ending.hear_session_end(desk, self._talk))]
        desk.terminal.keyboard.hold(signals_pass=False)
        try:
            with self._talk:
                if record.phase is Phase.ASKED:
                    await self._wait_started()
                if record.phase is Phase.STARTED:
                    self._let_start()
                    companions += [
                        asyncio.create_task(self._feed_input()),
                        asyncio.create_task(self._enforce_timeout()),
                        asyncio.create_task(self.signals.run()),
                    ]
                    await self._wait_ended()
                if record.phase is Phase.ENDED:
                    await self._let_end()
            self._close(record.end or End(125, "waypoint"))
        except NotAtPrompt as lost:
            self._close(End(125, "waypoint", said=str(lost)))
        except OSError as error:
            self._close(End(125, "waypoint", said=f"{error.strerror}: {error.filename or 'the terminal'}"))
        except asyncio.CancelledError:
            self.result.cancel()
            self.started.set()
            raise
        finally:
            for task in companions:
                task.cancel()
            if self.feed is not None:
                self.feed.close()
            desk.terminal.keyboard.release()

    @property
    def output_limit(self) -> int:
        """Output is known to be the command's up to here (and comes no further if `record.stop` is set)."""
        mark = self._talk.heard("E")
        ends = (self.record.stop, mark.start if mark is not None else None, self._desk.terminal.settled)
        return min(end for end in ends if end is not None)

    async def _wait_started(self) -> None:
        """Get the shell to say S (or E, if the line is aborted at once). Raises NotAtPrompt."""
        desk, talk = self._desk, self._talk
        operation = "tty" if self.record.tty else "in" if self.record.stdin else "exec"
        answers = ("S", "E", "A", "B")
        if self._adopted:
            await hear(
                desk, talk, answers
            )  # the last daemon may have pressed the key: a second one would be typed to the command
        entered = talk.heard("A") is not None  # by the last daemon, or nearly
        while talk.heard("S", "E") is None:
            prompts = desk.watch.prompts
            answer = talk.heard("A") or await ask(desk, talk, operation, answers)
            if answer.kind == "A":
                await self._enter(entered=entered)
                entered = False
            elif answer.kind == "B":
                desk.terminal.keyboard.release()  # so that the person can get the shell out of where it is
                await desk.watch.wait_prompt(self._wait_until - time.monotonic(), after=prompts + 1)
                desk.terminal.keyboard.hold(signals_pass=False)
        self.record.phase = Phase.STARTED
        accepted, mark = talk.heard("A"), talk.heard("E")
        self.record.half_line = int(accepted.fields[2]) if accepted is not None else 0
        if mark is not None and talk.heard("S") is None and self.record.start is None:
            self.record.start = self.record.stop = mark.start
            self.record.end = End(125, "waypoint", said="the command was interrupted before it began")
            self.record.phase = Phase.ENDED

    async def _enter(self, *, entered: bool) -> None:
        """The wrapper is on the line: have the shell run it. zsh does so by itself."""
        zsh = self._desk.watch.shell is not None and self._desk.watch.shell.kind == "zsh"
        if not entered and not zsh:
            self._desk.terminal.typed.write(b"\r")
        if await hear(self._desk, self._talk, ("S", "E")) is None and not entered:
            raise NotAtPrompt("the session's shell did not begin the command that it had accepted")

    def _let_start(self) -> None:
        """The shell waits after S: note where the output begins, change the modes, let it go on."""
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
        desk.save(record)
        if not record.tty and record.output_processing:
            terminals.hold_output_raw(terminal.master)
        terminal.raw_command = () if record.tty else (record.id, record.nonce)
        desk.go.say("S", record.nonce)
        terminal.keyboard.hold(signals_pass=True)
        if record.tty:
            terminal.keyboard.release()
        self.started.set()

    async def _wait_ended(self) -> None:
        """Until the shell says E, or is found to have ended the command in another way. Raises NotAtPrompt for a lost
        shell.
        """
        desk, talk = self._desk, self._talk
        pause_s, at_prompt = _FIRST_LOOK_S, 0
        while (mark := await talk.wait("E", timeout_s=pause_s)) is None:
            if desk.terminal.is_released and not desk.ended.done():
                raise asyncio.CancelledError  # the daemon lets go of a session that lives: the next one sees to it
            if desk.terminal.closed.is_set() or desk.ended.done():
                self.record.end = await ending.session_end(desk)
                return
            seen = desk.watch.look()
            if seen is Look.REPLACED:
                raise NotAtPrompt(desk.watch.obstacle(seen))
            at_prompt = at_prompt + 1 if seen is Look.PROMPT else 0
            if at_prompt == 2:
                self._ended(await ending.find_status(desk, talk), desk.terminal.settled)
                return
            desk.go.say_again("S", self.record.nonce)
            pause_s = min(2 * pause_s, _LAST_LOOK_S)
        self._ended(int(mark.fields[2]), mark.start)

    def _ended(self, status: int, position: int) -> None:
        record = self.record
        record.phase = Phase.ENDED
        if self.result.done():
            return  # it was given up at its timeout
        record.stop = max(position, record.start or 0)
        record.end = End(status)
        if self._timed_out.is_set():
            record.end = End(124, "waypoint", said=f"the command was stopped after {record.timeout_s:g} s")
        elif record.stdin_open and self.feed is None:
            record.end = End(
                125, "waypoint", said=f"the command's input was cut when the daemon was replaced (it gave {status})"
            )

    async def _let_end(self) -> None:
        """The shell waits after E: put the modes back, let it go on, give the half-typed line back."""
        desk, record = self._desk, self.record
        desk.save(record)
        prompts = desk.watch.prompts
        if not desk.go.is_there:  # it is on its way to its prompt, and sets modes of its own
            await ending.wait_prompt_again(desk, prompts, lambda: None)
        ending.put_modes_back(desk, record)
        desk.terminal.raw_command = ()
        # A shell saves the modes when a job of its has ended: it must see those of now, or some day it brings the
        # others back.
        again = not record.tty and (record.child_faults is None or record.child_faults != desk.watch.child_faults())
        word = "E+" if again else "E"
        desk.go.say(word, record.nonce)
        self._settle()
        desk.terminal.keyboard.hold(signals_pass=False)
        await ending.wait_prompt_again(desk, prompts, lambda: desk.go.say_again(word, record.nonce))
        zsh = desk.watch.shell is not None and desk.watch.shell.kind == "zsh"
        if record.half_line and not zsh and self._talk.heard("R") is None:
            await ending.put_half_line_back(desk, self._talk)
        await ending.wait_for_keys(desk)

    def _close(self, end: End) -> None:
        """Nothing is left to do with the shell."""
        record = self.record
        record.end = record.end or end
        record.phase = Phase.DONE
        record.stop = self._desk.terminal.settled if record.stop is None else record.stop
        ending.put_modes_back(self._desk, record)
        self._desk.terminal.raw_command = ()
        if record.start is not None and self._talk.heard("E") is None and not self._desk.terminal.closed.is_set():
            self._desk.terminal.append(format_mark("E", record.id, record.nonce, str(record.end.exit), "W"))
        # On a full disk it may fail: then the next daemon looks at a finished command, no more.
        with contextlib.suppress(OSError):
            self._desk.save(record)
        self._settle()
        ending.remove_files(self._desk, record.id)

    def _settle(self) -> None:
        """Tell those who wait how the command ended."""
        if self.record.stop is None:
            self.record.stop = self._desk.terminal.settled
        if not self.result.done() and self.record.end is not None:
            self.result.set_result(self.record.end)
        self.started.set()
        self._desk.terminal.wake()

    async def _feed_input(self) -> None:
        if self.feed is not None:
            await self.feed.run()
            self.record.stdin_open = False
            self._desk.save(self.record)

    async def _enforce_timeout(self) -> None:
        record = self.record
        if record.deadline is not None:
            await ending.enforce_timeout(record.deadline, self.signals.put, self._timed_out.set)
            self.stuck = True
            record.end = End(
                124, "waypoint", said="the command ignores that it was to be stopped at its timeout: it still runs"
            )
            self._settle()


def shown(text: str) -> str:
    """`text` for a mark: its first line, shortened, escaped."""
    line = text.strip().partition("\n")[0].encode(errors="surrogateescape")
    return urllib.parse.quote(line[:_SHOWN_MAX], safe=" ")
