"""Having orders carried out by programs of their own (capture/storing/order_program.py says how the two talk).

A program ends when its order is done, unless it may be kept (`KeptPrograms`): then it waits for another one for a
while, because its start takes longer than most orders. One that has failed, or was told to end, is never used again.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

import waypoint
from waypoint.linux.niceness import Gate
from waypoint.linux.tasks import cgroups, procfs
from waypoint.model.errors import WaypointError, from_json, program_ended
from waypoint.service.background.own_thread import in_own_thread

_WAYPOINT = os.path.dirname(os.path.abspath(waypoint.__file__))

KEPT_S = 10.0
"""How long a program waits for another order."""
KEPT_BYTES = 96 << 20
"""A program that has more memory than this is not kept."""

Expected = TypeVar("Expected")
_Confirm = Callable[[Any], None]


class Reports(Protocol):
    """Who is told of the progress, in a thread; as a job is."""

    def report(self, **numbers: int) -> None: ...


class OrderProgram(NamedTuple):
    """`path`: below the package. `on`: what it works on, for an error. `words`: its arguments. `fds`: descriptors that
    the order names; they are closed here when the program has them. `lent`: descriptors that it gets, and that stay
    open here. `group`: the cgroup that it is put into, "": the caller's.
    """

    path: str
    on: str
    words: tuple[str, ...] = ()
    fds: tuple[int, ...] = ()
    lent: tuple[int, ...] = ()
    group: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        return sys.executable, "-I", "-S", os.path.join(_WAYPOINT, self.path), *self.words

    def close_fds(self) -> None:
        """Close `fds`: the program has them, or is never started."""
        for fd in self.fds:
            os.close(fd)


class KeptPrograms:
    """The programs of a daemon that wait for another order: at most one of each command. Lives in its event loop."""

    def __init__(self, group: str) -> None:
        """`group`: the cgroup for such programs, "": none. `gate`: to be lent to those that rest while it is shut."""
        self.gate = Gate()
        self.group = group
        self._waiting: dict[tuple[str, ...], tuple[OrderProcess, asyncio.TimerHandle]] = {}
        self._ending: set[asyncio.Future[None]] = set()

    def take(self, program: OrderProgram) -> "OrderProcess":
        """One that waits, or a new one, which is still to be started."""
        kept = self._waiting.pop(program.command, None)
        if kept is not None:
            process, timer = kept
            timer.cancel()
            if process.is_there():
                return process
            self._end(process)
        return OrderProcess(program, stays=True)

    def give_back(self, process: "OrderProcess") -> None:
        """Keep it for KEPT_S, if it stays and no other one like it waits."""
        command = process.program.command
        if not process.is_there() or command in self._waiting:
            self._end(process)
            return
        timer = asyncio.get_running_loop().call_later(KEPT_S, self._drop, command)
        self._waiting[command] = process, timer

    async def close(self) -> None:
        """The last call."""
        await self.end_all()
        self.gate.close()

    async def end_all(self) -> None:
        """End all that wait."""
        for command in list(self._waiting):
            self._drop(command)
        if self._ending:
            await asyncio.wait(self._ending)

    def _drop(self, command: tuple[str, ...]) -> None:
        process, timer = self._waiting.pop(command)
        timer.cancel()
        self._end(process)

    def _end(self, process: "OrderProcess") -> None:
        ending = asyncio.ensure_future(asyncio.to_thread(process.close))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


async def carry_out(
    program: OrderProgram,
    order: msgspec.Struct,
    kind: type[Expected],
    job: Reports | None = None,
    confirm: _Confirm | None = None,
    kept: KeptPrograms | None = None,
) -> Expected:
    """Have the order carried out, and return its outcome, of the type `kind`. `job`: is told of the progress. `kept`:
    where a program may wait already, and is left afterwards; None: it is started for this order alone.

    `confirm`: called in the event loop when the program asks whether to go on, with what that is about; if that
    raises, the program is ended, and the error is raised. If the caller is cancelled, the program ends, and then the
    cancellation goes on. Raises WaypointError; RuntimeError if the machine has no thread left. After each of them, the
    program has ended, and its `fds` are closed.
    """
    process = OrderProcess(program) if kept is None else kept.take(program)
    try:
        thread = in_own_thread(functools.partial(process.carry_out, order, job, _in_loop(confirm)))
    except BaseException:
        process.drop()
        raise
    try:
        answer = await asyncio.shield(thread)
    except asyncio.CancelledError:
        process.end()
        await asyncio.wait([thread])
        await asyncio.shield(asyncio.to_thread(process.close))
        raise
    if kept is not None:
        kept.give_back(process)
    if "error" in answer:
        raise from_json(answer["error"])
    return msgspec.convert(answer["result"], kind)


def _in_loop(act: _Confirm | None) -> _Confirm:
    """A function for other threads: has `act` called in the event loop, and raises what that raises."""
    loop = asyncio.get_running_loop()

    def call(about: object) -> None:
        called: concurrent.futures.Future[None] = concurrent.futures.Future()

        def run() -> None:
            try:
                if act is not None:
                    act(about)
            except BaseException as error:
                called.set_exception(error)
            else:
                called.set_result(None)

        loop.call_soon_threadsafe(run)
        called.result()

    return call


class OrderProcess:
    """One program. One thread at a time may call `carry_out` and `close`; `end` and `is_there` any, at any time."""

    def __init__(self, program: OrderProgram, *, stays: bool = False) -> None:
        """`stays`: it waits for another order when it has carried out one; then `close` is to be called at last."""
        self.program = program
        self._stays = stays
        self._is_unwanted = False
        self._process: subprocess.Popen[bytes] | None = None

    def is_there(self) -> bool:
        """Whether it waits for an order, or carries one out."""
        return self._process is not None and not self._is_unwanted and self._process.poll() is None

    def carry_out(self, order: msgspec.Struct, job: Reports | None, confirm: _Confirm) -> dict[str, Any]:
        """The program's answer, `{"result": ...}` or `{"error": ...}`; it is started if it does not run. Blocks until
        that is there, and the program has ended if it does not stay.
        """
        encoded, answer = msgspec.json.encode(order), dict[str, Any]()
        waited = self._process is not None
        try:
            answer = self._exchange(encoded, job, confirm)
            if waited and not answer and not self._is_unwanted:  # it was killed before it has begun with this one
                self.close()
                self._process = None
                answer = self._exchange(encoded, job, confirm)
        except WaypointError as error:
            self.end()
            answer = {"error": error.to_json()}
        finally:
            if not (self._stays and "result" in answer and self._is_small()):
                self.close()
        if "result" in answer or "error" in answer:
            return answer
        assert self._process is not None
        return {"error": program_ended("work on", self.program.on, self._process.returncode).to_json()}

    def end(self) -> None:
        """Have the program end: nobody wants an answer of it any more."""
        self._is_unwanted = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Have the program end, which has nothing to do, and wait until it has."""
        if self._process is not None:
            with self._process as process, contextlib.suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()

    def drop(self) -> None:
        """Instead of `carry_out`, where nothing can call that: end it, if it runs, and close what the order names."""
        if self._process is None:
            self.program.close_fds()
        self.end()
        self.close()

    def _is_small(self) -> bool:
        return self._process is not None and procfs.own_bytes(self._process.pid) <= KEPT_BYTES

    def _exchange(self, order: bytes, job: Reports | None, confirm: _Confirm) -> dict[str, Any]:
        """As `_listen`; nothing if the program has ended before it has begun."""
        is_new = self._process is None
        process = self._process or self._start()
        _tell(process, order)
        if is_new:
            self._enter_group(process)  # while it loads what it needs
        return _listen(process, job, confirm)

    def _start(self) -> "subprocess.Popen[bytes]":
        """In a session of its own (`give_way`)."""
        program = self.program
        try:
            self._process = process = subprocess.Popen(
                program.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd="/",
                pass_fds=(*program.fds, *program.lent),
                start_new_session=True,
            )
        finally:
            program.close_fds()
        if self._is_unwanted:
            process.kill()
        return process

    def _enter_group(self, process: "subprocess.Popen[bytes]") -> None:
        """Move it there, which takes 8 to 28 ms: the kernel waits for an RCU grace period."""
        if self.program.group:
            with contextlib.suppress(OSError):  # it has just ended; and it is nice by itself, too
                cgroups.write(self.program.group, "cgroup.procs", str(process.pid))


def _listen(process: "subprocess.Popen[bytes]", job: Reports | None, confirm: _Confirm) -> dict[str, Any]:
    """The answer; what the program has said last if it has ended before. Raises what `confirm` raises."""
    assert process.stdout is not None
    answer: dict[str, Any] = {}
    for line in process.stdout:
        answer = msgspec.json.decode(line)
        if "asks" in answer:
            confirm(answer["about"])
            _tell(process, b"")
        elif "done" in answer and job is not None:
            job.report(items=answer["done"])
        elif "bytes" in answer and job is not None:
            total = answer["of"]
            job.report(bytes=answer["bytes"], **({} if total is None else {"bytes_total": total}))
        elif "result" in answer or "error" in answer:
            break
    return answer


def _tell(process: "subprocess.Popen[bytes]", line: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line + b"\n")
        process.stdin.flush()
