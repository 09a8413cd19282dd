"""Programs that carry out orders: which of them stays for another one, and what becomes of it."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.places import ROOT
from tests.waiting import PATIENCE_S, wait_until
from waypoint.capture.attaching.attach_orders import Incoming, TakeIn
from waypoint.capture.attaching.attach_running import MovingProgram, answer_of, start
from waypoint.capture.storing.orders import Ingested, TakeExport
from waypoint.linux.tasks import procfs
from waypoint.model.errors import Bug, Failed, StateConflict, StoreDamaged
from waypoint.service.attached import attach_process
from waypoint.service.background import order_process
from waypoint.service.background.order_process import KeptPrograms, OrderProcess, OrderProgram, carry_out
from waypoint.service.background.user_places import UserPlaces
from waypoint.service.durable import store_process

PROGRAM = f"""
import os, sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
from waypoint.model.packages import make_importable
make_importable("msgspec")
import msgspec
from waypoint.capture.storing.order_program import serve
from waypoint.linux.niceness import pass_gate
from waypoint.model.errors import Bug, Failed

class Order(msgspec.Struct):
    act: str

kept = []

def carry_out(order, dialogue):
    match order.act:
        case "fail": raise Failed("do", "it", "no", "try again")
        case "leave": os._exit(7)
        case "break": raise ValueError("quo" + "ted " + "long" * 99)
        case "grow": kept.append(bytes(8) * (2 << 20))
        case "ask": dialogue.confirm(1, 17)
        case "wait": threading.Event().wait()
        case "pass":
            began = time.monotonic()
            pass_gate(int(sys.argv[1]))
            return {{"pid": os.getpid(), "session": os.getsid(0), "rested_s": time.monotonic() - began}}
    return {{"pid": os.getpid(), "session": os.getsid(0)}}

serve(Order, carry_out, lambda order: order.act)
"""


class Order(msgspec.Struct):
    act: str = ""


class Ran(msgspec.Struct):
    pid: int
    session: int
    rested_s: float = 0.0


class Bench:
    """`kept`: under test. `path`: the program."""

    def __init__(self, path: Path) -> None:
        self.kept = KeptPrograms("")
        self.path = path / "program.py"
        self.path.write_text(PROGRAM)

    async def run(self, act: str = "", *words: str, kept: bool = True, **options: Any) -> int:
        """Have it done. Returns the pid of the program."""
        program = OrderProgram(str(self.path), "it", words)
        ran = await carry_out(program, Order(act), Ran, kept=self.kept if kept else None, **options)
        assert ran.session == ran.pid, "it leads a session of its own, so that its niceness counts against all"
        return ran.pid


def on_bench(path: Path, check: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        bench = Bench(path)
        await check(bench)
        await bench.kept.close()

    asyncio.run(run())


def has_ended(pid: int) -> bool:
    try:
        procfs.stat(pid)
    except ProcessLookupError:
        return True
    return False


def test_a_program_stays_for_the_next_order_until_it_is_closed(tmp_path: Path) -> None:
    async def check(bench: Bench) -> None:
        first = await bench.run()
        assert await bench.run() == first
        alone = await bench.run(kept=False)
        assert alone != first
        assert has_ended(alone)
        other, beside = await asyncio.gather(bench.run("", "other"), bench.run("", "other"))
        assert len({first, other, beside}) == 3, "each works on one order at a time, and has its own arguments"
        await bench.kept.end_all()
        assert all(map(has_ended, (first, other, beside)))

    on_bench(tmp_path, check)


def test_one_that_takes_long_holds_no_thread_of_others(tmp_path: Path) -> None:
    async def check(bench: Bench) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waiting = [asyncio.ensure_future(bench.run("wait", kept=False)) for _ in range(2)]
        await bench.run()  # so the two had the time to begin
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.to_thread(int)
        for one in waiting:
            one.cancel()
        assert {type(one) for one in await asyncio.gather(*waiting, return_exceptions=True)} == {asyncio.CancelledError}

    on_bench(tmp_path, check)


def test_an_order_that_names_what_is_in_a_session_is_no_argument(tmp_path: Path) -> None:
    """Every user may read the arguments of all programs; and they are not as long as an order may be."""
    layers = [Incoming(kind=f"k{number}", path=f"/a secret/{'x' * 3000}") for number in range(100)]
    order = TakeIn(folder=str(tmp_path), layers=[Incoming(kind="first"), *layers], floor_bytes=0)
    program = start(order, stdin=subprocess.PIPE)
    try:
        assert program.poll() is None
        assert not [word for word in procfs.command_line(program.pid) if b"secret" in os.fsencode(word)]
    finally:
        assert program.stdin is not None
        program.stdin.close()
    assert answer_of(program)["error"]


def test_a_user_has_so_many_places_and_no_more() -> None:
    places = UserPlaces(1)
    with places.one(7, "export", "x"), places.one(8, "export", "x"), places.one(None, "export", "x"):
        with pytest.raises(StateConflict), places.one(7, "export", "x"):
            pass
        with places.one(None, "export", "x"):
            pass
    with places.one(7, "export", "x"):
        pass


@pytest.mark.alone("measures a time that a busy processor lengthens")
def test_one_that_is_lent_the_gate_rests_while_it_is_shut(tmp_path: Path) -> None:
    async def check(bench: Bench) -> None:
        gate = bench.kept.gate
        lent = OrderProgram(str(bench.path), "it", (str(gate.fd),), lent=(gate.fd,))
        rests = (await carry_out(lent, Order("pass"), Ran, kept=bench.kept)).rested_s
        gate.shut()
        gate.shut()
        shut = (await carry_out(lent, Order("pass"), Ran, kept=bench.kept)).rested_s
        gate.open()
        opened = (await carry_out(lent, Order("pass"), Ran, kept=bench.kept)).rested_s
        assert max(rests, opened) < shut / 2
        assert 0.04 < shut < 2.0, "but not for ever"

    on_bench(tmp_path, check)


def test_one_that_waits_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(bench: Bench) -> None:
        monkeypatch.setattr(order_process, "KEPT_S", 0.01)
        first = await bench.run()
        await asyncio.to_thread(wait_until, lambda: has_ended(first), "the program has ended")
        assert await bench.run() != first

    on_bench(tmp_path, check)


def test_one_that_is_killed_as_it_waits_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(bench: Bench) -> None:
        first = await bench.run()
        os.kill(first, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: procfs.stat(first).state == "Z", "the program has ended")
        assert await bench.run() != first
        assert has_ended(first)

        def unseen(_process: OrderProcess) -> bool:
            return True

        monkeypatch.setattr(OrderProcess, "is_there", unseen)  # it dies between that and the order
        second = await bench.run()
        os.kill(second, signal.SIGKILL)
        assert await bench.run() != second
        assert has_ended(second)

    on_bench(tmp_path, check)


def test_one_that_has_failed_is_not_used_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def check(bench: Bench) -> None:
        first = await bench.run()
        with pytest.raises(Failed, match="no"):
            await bench.run("fail")
        assert has_ended(first)
        with pytest.raises(Failed, match="the program for it has ended: status 7") as ended:
            await bench.run("leave")
        assert ended.value.next_step == "see its last words: waypoint daemon logs"
        with pytest.raises(Bug, match="ValueError: quoted long") as bug:
            await bench.run("break")
        assert (len(bug.value.said) < 310, bug.value.next_step.endswith(": waypoint daemon logs")) == (True, True)
        told = capfd.readouterr().err  # of which the daemon's is the log
        assert ("line " in told, "\nValueError\n" in told, "quoted" in told) == (True, True, False)

    on_bench(tmp_path, check)


def test_one_that_has_grown_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(bench: Bench) -> None:
        first = await bench.run()
        monkeypatch.setattr(order_process, "KEPT_BYTES", procfs.own_bytes(first) + (4 << 20))
        assert await bench.run() == first
        assert await bench.run("grow") == first
        assert has_ended(first)

    on_bench(tmp_path, check)


def test_one_that_asks_goes_on_when_it_may_and_ends_when_not(tmp_path: Path) -> None:
    async def check(bench: Bench) -> None:
        asked: list[int] = []
        first = await bench.run("ask", confirm=asked.append)
        assert await bench.run("ask", confirm=asked.append) == first
        assert asked == [17, 17]

        def refuse(_about: int) -> None:
            raise Failed("go on", "it", "refused", "try again")

        with pytest.raises(Failed, match="refused"):
            await bench.run("ask", confirm=refuse)
        assert has_ended(first)

    on_bench(tmp_path, check)


def test_one_whose_caller_gives_up_has_ended_then(tmp_path: Path) -> None:
    async def check(bench: Bench) -> None:
        first = await bench.run()
        waiting = asyncio.ensure_future(bench.run("wait"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert has_ended(first)
        assert await bench.run() != first

    on_bench(tmp_path, check)


def has_closed(end: int) -> bool:
    """Whether nobody has the other end of the pipe any more. Closes this one."""
    with contextlib.closing(open(end, "rb", buffering=0)) as reading:
        os.set_blocking(end, False)
        return reading.read() == b""


def no_thread(_act: object) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_for_it_nothing_of_it_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[MovingProgram] = []

    def starting(*words: Any) -> MovingProgram:
        started.append(start(*words))
        return started[0]

    async def check(bench: Bench) -> None:
        first = await bench.run()
        ours, theirs = os.pipe()
        monkeypatch.setattr(order_process, "in_own_thread", no_thread)
        monkeypatch.setattr(attach_process, "in_own_thread", no_thread)
        monkeypatch.setattr(attach_process, "start", starting)
        with pytest.raises(RuntimeError, match="thread"):
            await carry_out(OrderProgram(str(bench.path), "it", fds=(theirs,)), Order(), Ran)
        assert has_closed(ours)
        with pytest.raises(RuntimeError, match="thread"):
            await bench.run()
        assert has_ended(first)
        nothing: Any = None
        with pytest.raises(RuntimeError, match="thread"):
            await attach_process.move(TakeIn(folder=str(tmp_path), layers=[], floor_bytes=0), Ran, nothing)
        assert started[0].returncode == -signal.SIGKILL

    on_bench(tmp_path, check)


def test_without_a_store_what_an_order_names_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or who reads the other end of an export's pipe would wait for ever."""

    def gone(*_words: object) -> None:
        raise StoreDamaged("open", "the store", "it is gone")

    async def check(bench: Bench) -> None:
        monkeypatch.setattr(store_process, "check_there", gone)
        home: Any = SimpleNamespace(kept_programs=bench.kept)
        ours, theirs = os.pipe()
        order = TakeExport(store="", fd=theirs, passphrase="", digest="")
        with pytest.raises(StoreDamaged):
            await store_process.carry_out(home, order, Ingested, fds=[theirs])
        assert has_closed(ours)

    on_bench(tmp_path, check)
