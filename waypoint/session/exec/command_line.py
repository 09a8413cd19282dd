"""Command lines in the session's own shell, for clients: one at a time, each seen through whether its client stays or
not.

What happens with the shell is in execution.py; here is the queue, the stream to the client, and taking over from a
daemon that died.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from waypoint.model.requests import ExecRequest
from waypoint.model.streams import Inlet, Outlet
from waypoint.session.exec.asking import Desk
from waypoint.session.exec.client import ClientGone, ExecClient
from waypoint.session.exec.delivery import Delivery
from waypoint.session.exec.execution import Execution
from waypoint.session.exec.go_fifo import GoFifo
from waypoint.session.exec.input_feed import InputFeed
from waypoint.session.exec.record import End, ExecRecord, Phase, StateFile
from waypoint.session.exec.run_folder import RunFolder
from waypoint.session.exec.shell_watch import NotAtPrompt, ShellWatch
from waypoint.session.terminal.terminal import Terminal

# So many commands back it is known that they were begun.
REMEMBERED = 64


class CommandLine:
    """One per session. Make it before `Terminal.start`; in a session that another daemon has started call `adopt`
    too.
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
        """`folder`: the session's /run/waypoint. `processes`: the session's, as pids of ours.

        `ended`: gets the exit status of the shell when the session has ended (None: it left none).
        """
        self.watch = ShellWatch(terminal, nonce, processes)
        self._file = StateFile(state_path)
        self._state = self._file.state
        self.desk = Desk(terminal, self.watch, folder, GoFifo(folder), ended, self._file.save_command)
        self._delivery = Delivery(terminal)
        self._turn = asyncio.Lock()
        self._adopted = asyncio.Event()  # nothing is left of what the last daemon left in flight
        self._adopted.set()
        self._current: Execution | None = None
        self._tasks: set[asyncio.Task[Any]] = set()  # what `release` cancels
        self.watch.on_new_shell = self._save_shell
        self.watch.start(self._state.shell)

    def adopt(self) -> None:
        """Take over a command that the last daemon left in flight, or whose end it did not deliver."""
        record = self._state.command
        if record is None:
            return
        self.desk.go.open()
        self._current = Execution(self.desk, record, None, None)
        self._delivery.keep_for_a_while()
        if record.phase is Phase.DONE:
            self._current.result.set_result(record.end or End(125, "waypoint"))
            self._current.started.set()
        else:
            self._adopted.clear()
            self._begin(self._current, self._adopted.set)

    @property
    def is_idle(self) -> bool:
        """True if no command is in flight."""
        return not self._turn.locked() and self._adopted.is_set()

    @property
    def is_ending(self) -> bool:
        """True if the last command has ended, as its client knows, whether or not the shell is at its prompt again."""
        return self._current is not None and self._current.result.done() and not self._current.stuck

    @property
    def turn(self) -> asyncio.Lock:
        """Whoever holds it may ask the shell for something: no command begins meanwhile. To be taken when idle."""
        return self._turn

    def release(self) -> None:
        """Let go of the shell, as a dying daemon would: a command in flight is left to the next one."""
        for task in self._tasks:
            task.cancel()
        self._file.close()
        self.desk.go.close()

    async def wait_ready(self, timeout_s: float) -> bool:
        """True once the shell has drawn its first prompt; False if it has not within `timeout_s`."""
        try:
            await self.watch.wait_first(timeout_s)
        except NotAtPrompt:
            return False
        return True

    async def wait_idle(self) -> None:
        """Return when no command is in flight any more, and nothing of the last one is left in the session."""
        async with self._turn:
            await self._adopted.wait()

    async def execute(self, request: ExecRequest, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
        """Run a command line, or go on with one (`resume`). Returns the `x` frame's payload; never raises for the
        command's failure.
        """
        client = ExecClient(inlet, outlet)
        task = asyncio.current_task()
        self._tasks |= {task} if task is not None else set()
        try:
            end = await self._carry_out(request, client)
        except NotAtPrompt as lost:
            end = End(125, "waypoint", said=str(lost))
        except OSError as error:  # ConnectionError among them
            end = End(125, "waypoint", said=f"{error.strerror or error}: {error.filename or 'client'}")
        except ClientGone as gone:
            end = End(125, "waypoint", said=str(gone))
        finally:
            client.close()
            self._tasks -= {task}
        return {"exit": end.exit, "by": end.by, "ended": end.ended, "said": end.said}

    async def _carry_out(self, request: ExecRequest, client: ExecClient) -> End:
        known = request.resume or (request.id if request.id in self._state.begun else "")
        return await (self._resume(known, request.offset, client) if known else self._execute(request, client))

    async def _execute(self, request: ExecRequest, client: ExecClient) -> End:
        if "\0" in request.text:
            return End(2, "waypoint", said="a command line cannot contain a NUL character")
        await client.wait_for(self._take_turn(request.wait_prompt_s))
        try:
            await client.wait_for(self.watch.wait_prompt(request.wait_prompt_s))
            run = await self._prepare(request, client)
        except BaseException:
            self._turn.release()
            raise
        self._begin(run, self._turn.release)
        return await self._delivery.serve(run, run.record.asked_at, client)

    async def _take_turn(self, wait_prompt_s: float) -> None:
        """Wait for the commands before; for one that cannot be stopped only as long as for any other program."""
        stuck = self._current is not None and self._current.stuck
        try:
            async with asyncio.timeout(wait_prompt_s if stuck else None):
                await self._turn.acquire()
                await self._adopted.wait()
        except TimeoutError:
            raise NotAtPrompt("the command before, which ignored its timeout, still runs") from None

    async def _prepare(self, request: ExecRequest, client: ExecClient) -> Execution:
        record = ExecRecord(
            id=request.id or secrets.token_hex(8),
            nonce=secrets.token_hex(8),
            text=request.text.strip().partition("\n")[0][:200],
            tty=request.tty,
            stdin=request.stdin and not request.tty,
            timeout_s=request.timeout_s,
            asked_at=self.desk.terminal.ring.end,
        )
        folder = self.desk.folder
        self.desk.go.open()
        folder.write(f"cmd.{record.id}", request.text.encode(errors="surrogateescape"))
        feed = InputFeed(folder, f"in.{record.id}") if record.stdin else None
        try:
            self._state.begun = [*self._state.begun[1 - REMEMBERED :], record.id]
            self._file.save_command(record)
            await client.outlet.note({"exec": record.id})
            client.check_here()  # from here on a signal of its is the command's
        except BaseException:
            self._state.begun.remove(record.id)
            if feed is not None:
                feed.close()
            folder.remove(f"cmd.{record.id}")
            folder.remove(f"in.{record.id}")
            self._state.command = None
            raise
        return Execution(self.desk, record, feed, request.wait_prompt_s)

    async def _resume(self, ident: str, offset: int, client: ExecClient) -> End:
        run = self._current
        if run is None or run.record.id != ident:
            return End(125, "waypoint", said="nothing is known of that command any more")
        self._delivery.keep_for(client)
        await client.wait_for(run.started.wait())
        start = run.record.start
        if start is None:
            return await run.result
        if start + offset < self.desk.terminal.ring.start:
            return End(125, "waypoint", said="a part of the command's output is lost: nobody took it in time")
        return await self._delivery.serve(run, start + offset, client)

    def _begin(self, run: Execution, then: Callable[[], object]) -> None:
        self._current = run
        task = asyncio.create_task(run.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: then())

    def _save_shell(self) -> None:
        self._state.shell = self.watch.shell
        self._file.save()
