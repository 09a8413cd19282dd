"""Runs clients' command lines in the session's own shell, one at a time. A command continues if its client leaves.

This module queues the commands, streams output to the client, and takes over the command of a daemon that died.
execution.py communicates with the shell.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from waypoint.linux.tasks.stages import stage
from waypoint.model.conditions import facts_of
from waypoint.model.ids import random_hex
from waypoint.model.paths import RUN_FOLDER
from waypoint.model.requests import ExecRequest
from waypoint.model.stages import Stage
from waypoint.model.streams import Inlet, Outlet
from waypoint.terminal.exec.client import ClientGone, ExecClient
from waypoint.terminal.exec.command_record import End, ExecRecord, Phase, StateFile
from waypoint.terminal.exec.command_text import text_of
from waypoint.terminal.exec.delivery import Delivery
from waypoint.terminal.exec.execution import Execution
from waypoint.terminal.exec.input_feed import InputFeed
from waypoint.terminal.exec.lost_shell import SHELL_LOST, hangs
from waypoint.terminal.exec.signals import send
from waypoint.terminal.hooks.asking import Desk
from waypoint.terminal.hooks.go_fifo import GoFifo
from waypoint.terminal.hooks.prompt import has_foreground
from waypoint.terminal.hooks.run_folder import RunFolder
from waypoint.terminal.hooks.shell_watch import NotAtPrompt, ShellWatch
from waypoint.terminal.terminal import Terminal

# How many seconds a new shell gets until its first prompt. The user's startup files run in this time.
FIRST_PROMPT_S = 5.0
# How many seconds the shell gets from the end of a command to its prompt, before it counts as hanging in its hooks.
HOOKS_S = 5.0
# How often a command is tried again in a new shell. The second new shell does not get the state.
_MOST_REPEATS = 2
# How many recent command ids are kept, so that a repeated request does not run its command twice.
REMEMBERED = 64
_REMOVED = (
    f"/{RUN_FOLDER} was removed from the session, so its shell accepts no commands; "
    "to keep the session's files and start a new shell: waypoint stop, then waypoint shell"
)


class CommandLine:
    """Runs the commands of one session. Create this before `Terminal.start`, and call `adopt` if an earlier daemon has
    started the session.
    """

    def __init__(
        self,
        terminal: Terminal,
        folder: RunFolder,
        nonce: str,
        state_path: str,
        processes: Callable[[], list[int]],
        ended: asyncio.Future[int | None],
    ) -> None:
        """`folder`: the session's /run/waypoint. `nonce`: identifies the shell's marks. `state_path`: the file with the
        record of the running command. `processes`: returns the host pids of the session's processes. `ended`: gets the
        shell's exit status when the session has ended (None: unknown).
        """
        self.renew: Callable[[], Awaitable[None]] = _no_renewal  # gives a new shell the state of the previous shell
        self.remake_folder: Callable[[], bool] = lambda: False  # makes a removed run folder again, if that is possible
        self.can_renew: Callable[[], bool] = lambda: False  # see Desk
        self.first_prompt_by = 0.0  # seconds since the epoch; the first prompt is overdue after this
        self.watch = ShellWatch(terminal, nonce, processes)
        self.file = StateFile(state_path)  # the record of the running command
        self._state = self.file.state
        self.desk = Desk(terminal, self.watch, folder, GoFifo(folder), ended, lambda: self.can_renew())
        self._delivery = Delivery(terminal)
        self._turn = asyncio.Lock()
        self._adopted = asyncio.Event()  # set while no command of an earlier daemon runs
        self._adopted.set()
        self._current: Execution | None = None
        self._before: Execution | None = None  # the command that ended the previous shell
        self._late: End | None = None  # of a command whose shell was replaced after its end was reported
        self._latest: asyncio.Task[None] | None = None  # runs `_current`
        self._tasks: set[asyncio.Task[Any]] = set()  # `release` cancels them
        self.watch.on_new_shell = self._save_shell
        self.watch.start(self._state.shell)

    def adopt(self) -> None:
        """Take over a command that still runs, or whose end an earlier daemon has not reported to the client."""
        record = self._state.command
        if record is None:
            return
        self.desk.go.open()
        self._current = Execution(self.desk, record, self.file.save_command)
        self._delivery.keep_for_a_while()
        if record.phase is Phase.DONE:
            self._current.result.set_result(record.end or End(125, "waypoint"))
            self._current.started.set()
        if record.phase is not Phase.DONE or record.new_shell:
            self._adopted.clear()
            self._begin(self._current, self._adopted.set)

    @property
    def is_idle(self) -> bool:
        return not self._turn.locked() and self._adopted.is_set()

    @property
    def is_ending(self) -> bool:
        """True if the last command has ended and its client was informed, even if the shell is not at its prompt
        yet.
        """
        return self._current is not None and self._current.result.done() and not self._current.stuck

    @property
    def turn(self) -> asyncio.Lock:
        """The lock for requests to the shell: no command begins while it is held. Acquire it only when `is_idle`."""
        return self._turn

    def release(self) -> None:
        """Stop all work on the shell, as if the daemon had died. The next daemon takes over a running command."""
        for task in self._tasks:
            task.cancel()
        self.file.close()
        self.desk.go.close()

    async def wait_ready(self, timeout_s: float) -> bool:
        """Return True when the shell has printed its first prompt, False if `timeout_s` seconds pass before."""
        try:
            await self.watch.wait_first(timeout_s)
        except NotAtPrompt:
            return False
        return True

    async def wait_idle(self) -> None:
        """Return when no command runs and the last command's files are removed."""
        async with self._turn:
            await self._adopted.wait()

    async def execute(
        self, request: ExecRequest, inlet: Inlet, outlet: Outlet, *, in_turn: bool = False
    ) -> dict[str, object]:
        """Run a command line, or resume the output stream of a command that was already begun (`resume`). Return the
        payload of the `x` frame, also if the command could not run. `in_turn`: the caller is `renew`, which already
        holds the lock `turn`.
        """
        client = ExecClient(inlet, outlet, (request.rows, request.cols))
        task = asyncio.current_task()
        self._tasks |= {task} if task is not None else set()
        try:
            if known := request.resume or (request.id if request.id in self._state.begun else ""):
                end = await self._resume(known, request.offset, client)
            else:
                end = await self._execute(request, client, in_turn=in_turn)
                for _ in range(_MOST_REPEATS):
                    if end.code != SHELL_LOST or not end.new_shell or not self._may_repeat(request, in_turn=in_turn):
                        break
                    before, end = end, await self._execute(request, client, in_turn=in_turn, again=True)
                    lost = before.state_lost or end.state_lost
                    found = end.degraded or before.degraded
                    end = msgspec.structs.replace(end, new_shell=True, state_lost=lost, degraded=found)
                late, self._late = (self._late, None) if not in_turn else (None, self._late)
                if late is not None:
                    lost, found = end.state_lost or late.state_lost, end.degraded or late.degraded
                    end = msgspec.structs.replace(end, new_shell=True, state_lost=lost, degraded=found)
        except NotAtPrompt as lost:
            end = End(125, "waypoint", said=str(lost), code="shell-busy")
        except FileNotFoundError as error:
            end = End(
                125, "waypoint", said=_REMOVED if error.filename is None else f"{error.strerror}: {error.filename}"
            )
        except ConnectionError as error:
            end = End(125, "waypoint", said=f"{error.strerror or error}: client", code="connection-lost")
        except OSError as error:
            end = End(125, "waypoint", said=f"{error.strerror or error}: {error.filename or 'the session'}")
        except ClientGone as gone:
            end = End(125, "waypoint", said=str(gone), code="connection-lost")
        finally:
            client.close()
            self._tasks -= {task}
        return msgspec.structs.asdict(end) | {"degraded": facts_of(end.degraded)}

    def _may_repeat(self, request: ExecRequest, *, in_turn: bool) -> bool:
        """True if the last command has not begun, and can be run in the shell that replaces the lost one. The input of
        a command with stdin may have been read already.
        """
        run = self._before if self._before is not None else self._current
        return not in_turn and not request.stdin and run is not None and run.record.start is None

    async def _execute(self, request: ExecRequest, client: ExecClient, *, in_turn: bool, again: bool = False) -> End:
        text = text_of(request)
        if "\0" in text:
            return End(2, "waypoint", said="a command line cannot contain a NUL character", code="usage")
        if not in_turn:
            with stage(Stage.WAIT_COMMAND):
                await client.wait_for(self._take_turn(request))
        done = _nothing if in_turn else self._turn.release
        try:
            with stage(Stage.WAIT_PROMPT):
                lost = await client.wait_for(self._wait_prompt(request))
            run = await self._prepare(request, text, client, again=again)
            run.doubt(self._current, lost)
            run.gives_state = not again  # it may be the state that makes a shell lost
        except BaseException:
            done()
            raise
        self._begin(run, done, renews=not in_turn)
        return await self._delivery.serve(run, run.record.asked_at, client)

    async def _wait_prompt(self, request: ExecRequest) -> str:
        """Wait until the shell is at its prompt, and return "". If the shell is lost, return the reason in words: it
        hangs in its hooks since the last command, or that has switched off the line editor. Raises NotAtPrompt if the
        shell is busy.
        """
        run, shell = self._current, self.watch.shell
        if run is not None and run.ended_at and shell is not None and shell.kind == "none":
            return "its line editor was switched off (set +o emacs, unsetopt zle)"
        try:
            await self.watch.wait_prompt(request.wait_prompt_s)
        except NotAtPrompt:
            shell = self.watch.shell
            has_ended = run is not None and run.prompts_at_end == self.watch.prompts
            if not has_ended or run is None or shell is None or time.monotonic() - run.ended_at < HOOKS_S:
                raise
            if not has_foreground(self.desk.terminal.master, shell):
                raise
            send(self.desk.terminal.master, shell.pid, signal.SIGINT, self.watch.processes)
            if await hangs(self.desk):
                return "it hung in Waypoint's hooks after the command before"
            await self.watch.wait_prompt(0)
        return ""

    async def _take_turn(self, request: ExecRequest) -> None:
        """Wait until earlier commands have ended, and acquire the lock `turn`. Raise NotAtPrompt after the new
        command's timeout or, if the current command still runs after its own timeout, after `wait_prompt_s`.
        """
        stuck = self._current is not None and self._current.stuck
        try:
            async with asyncio.timeout(request.wait_prompt_s if stuck else request.timeout_s):
                await self._turn.acquire()
                await self._adopted.wait()
        except TimeoutError:
            earlier = "an earlier command, which did not end at its timeout," if stuck else "an earlier command"
            raise NotAtPrompt(f"{earlier} still runs; this command was not begun") from None

    async def _prepare(self, request: ExecRequest, text: str, client: ExecClient, *, again: bool) -> Execution:
        record = ExecRecord(
            id=request.id or random_hex(8),
            nonce=random_hex(8),
            text=request.text.strip().partition("\n")[0][:200],
            tty=request.tty,
            stdin=request.stdin and not request.tty,
            timeout_s=request.timeout_s,
            asked_at=self.desk.terminal.ring.end,
        )
        folder = self.desk.folder
        await self.desk.terminal.moving.wait()
        try:
            self.desk.go.open()
        except FileNotFoundError:
            if not self.remake_folder():
                raise
            self.desk.go.open()
        folder.write(f"cmd.{record.id}", text.encode(errors="surrogateescape"))
        feed = InputFeed(folder, f"in.{record.id}") if record.stdin else None
        try:
            self._state.begun = [*self._state.begun[1 - REMEMBERED :], record.id]
            self.file.save_command(record)
            if not again:
                await client.outlet.note({"exec": record.id})
            client.check_here()  # signals that the client sends after this are sent to the command
        except BaseException:
            self._state.begun.remove(record.id)
            if feed is not None:
                feed.close()
            folder.remove(f"cmd.{record.id}")
            folder.remove(f"in.{record.id}")
            self._state.command = None
            raise
        return Execution(self.desk, record, self.file.save_command, feed, request.wait_prompt_s)

    async def _resume(self, ident: str, offset: int, client: ExecClient) -> End:
        runs = (run for run in (self._current, self._before) if run is not None and run.record.id == ident)
        run = next(runs, None)
        if run is None:
            return End(125, "waypoint", said="the daemon no longer has a record of this command", code="output-lost")
        self._delivery.keep_for(client)
        await client.wait_for(run.started.wait())
        start = run.record.start
        if start is None:
            return await run.result
        if run.record.is_output_lost:
            return End(
                125,
                "waypoint",
                said="a part of the command's output is lost: the terminal's ring was removed",
                code="output-lost",
            )
        if start + offset < self.desk.terminal.ring.start:
            return End(
                125,
                "waypoint",
                said="a part of the command's output is lost: the client did not read it in time",
                code="output-lost",
            )
        return await self._delivery.serve(run, start + offset, client)

    def _begin(self, run: Execution, then: Callable[[], object], *, renews: bool = True) -> None:
        self._current = run
        self._latest = task = asyncio.create_task(self._carry_on(run, renews=renews))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: then())

    async def _carry_on(self, run: Execution, *, renews: bool) -> None:
        """Run the command `run` to its end. `renews`: if the command ends the shell, restore the old shell's state in
        the new shell.

        `renews` is False for the commands that restore a state: a state that ends the shell would be restored again
        and again.
        """
        if run.record.phase is not Phase.DONE:
            await run.run()
        if run.stuck and run.record.lost_shell:
            self._late = run.record.end
        if run.record.new_shell and renews and (run.gives_state or not run.record.lost_shell):
            # Keep `run` for `_resume`, since the command of `renew` becomes `_current`.
            self._before, own = run, self._latest
            await self.renew()
            if self._latest is not None and self._latest is not own:
                await self._latest  # `renew` returns before the shell prints its prompt and the files are removed

    def _save_shell(self) -> None:
        self._state.shell = self.watch.shell
        self.file.save()


async def _no_renewal() -> None:
    """The default of `CommandLine.renew`: give the new shell no state."""


def _nothing() -> None:
    """Do nothing: `renew` keeps the lock `turn`."""
