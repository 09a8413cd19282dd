"""A checkpoint shows one moment: terminal output is complete and in order; memory and files of a program agree."""

import re
import select
import threading
from collections.abc import Callable

import pytest

from tests.acceptance.people import Person
from tests.acceptance.restoring import in_process, new_name, restore_as, started
from tests.homes import Home
from tests.waiting import PATIENCE_S, wait_until
from waypoint.client import Client
from waypoint.client.sdk import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

CHECKPOINTS = 10
LINES = 300_000
# Each prints all the numbers again and again until the file /tmp/enough exists.
PASSES = "until [ -e /tmp/enough ]; do {}; done".format
STEADY = PASSES(f"seq {LINES}")
BURSTS = PASSES(f"for n in $(seq 0 10000 {LINES - 1}); do seq $((n + 1)) $((n + 10000)); sleep 0.02; done")
ONE_BY_ONE = f"import time\nfor n in range(1, {LINES // 20 + 1}):\n    print(n)\n    n % 60 or time.sleep(0.003)"
LINE_BY_LINE = PASSES(f"python3 -uc '{ONE_BY_ONE}'; seq {LINES // 20 + 1} {LINES}")


class Numbers:
    """Compares output, piece by piece, with the expected text: the numbers from 1 to LINES, repeated."""

    def __init__(self) -> None:
        self._all = b"".join(b"%d\n" % number for number in range(1, LINES + 1))
        self._place = 0
        self.passes = 0
        self.wrong = b""

    def take(self, data: bytes) -> None:
        while data and not self.wrong:
            part, data = data[: len(self._all) - self._place], data[len(self._all) - self._place :]
            if self._all[self._place : self._place + len(part)] != part:
                self.wrong = self._all[self._place : self._place + 20] + b" should be " + part[:200]
            self.passes += self._place + len(part) == len(self._all)
            self._place = (self._place + len(part)) % len(self._all)

    @property
    def are_whole(self) -> bool:
        return not self.wrong and self.passes > 0 and self._place == 0


def while_it_runs(session: Session, text: str, work: Callable[[], object], take: Callable[[bytes], object]) -> None:
    """Run `text` by exec, call `work` once it prints, then let it end. `take` gets its output."""
    begun = threading.Event()

    def hear(data: bytes) -> None:
        begun.set()
        take(data)

    thread = threading.Thread(target=lambda: session.exec(text, on_output=hear))
    thread.start()
    try:
        assert begun.wait(PATIENCE_S)
        work()
        assert thread.is_alive()
    finally:
        session.run("touch", "/tmp/enough")
        thread.join()


def take_checkpoints(home: Home, branch: str) -> list[str]:
    """Take checkpoints of the session on `branch` through another client; return their names."""
    session = Client(home.path).session(branch)
    names = [new_name(session) for _ in range(CHECKPOINTS)]
    for name in names:
        session.checkpoint(name, tier="live")
    return names


@pytest.mark.soak(part="load")
@pytest.mark.parametrize("text", [STEADY, BURSTS, LINE_BY_LINE], ids=["steady", "bursts", "line by line"])
def test_an_exec_loses_doubles_and_reorders_no_byte(home: Home, person: Person, text: str) -> None:
    with started(home, person.name) as session:
        numbers = Numbers()
        while_it_runs(session, text, lambda: take_checkpoints(home, session.branch), numbers.take)
        assert numbers.wrong == b""
        assert numbers.are_whole


@pytest.mark.soak(part="load")
def test_an_exec_whose_client_does_not_read_during_checkpoints_loses_no_byte(home: Home, person: Person) -> None:
    """The daemon's output buffer is full, so output also waits in the terminal."""
    with started(home, person.name) as session:
        numbers, go_on, names = Numbers(), threading.Event(), list[str]()

        def take(data: bytes) -> None:
            numbers.take(data)
            go_on.wait(PATIENCE_S)

        def work() -> None:
            names.extend(take_checkpoints(home, session.branch))
            go_on.set()

        while_it_runs(session, PASSES(f"for n in 1 2 3 4 5 6 7 8; do seq {LINES}; done"), work, take)
        assert numbers.wrong == b""
        assert numbers.are_whole


@pytest.mark.soak(part="load")
def test_the_log_of_a_terminal_and_an_attached_client_see_each_byte_once(home: Home, person: Person) -> None:
    with started(home, person.name) as session:
        attachment = session.attach(24, 200)
        seen = bytearray()
        ended = threading.Event()

        def watch() -> None:
            while not ended.is_set():
                if select.select([attachment], [], [], 0.05)[0]:
                    seen.extend(attachment.receive() or b"")

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            text = PASSES(f"python3 -uc '{ONE_BY_ONE}'")
            while_it_runs(session, text, lambda: take_checkpoints(home, session.branch), lambda data: None)
            session.exec("echo all of it")
            wait_until(lambda: b"all of it\r\n" in seen[-200:], "the attached client has seen all")
        finally:
            ended.set()
            thread.join()
            attachment.close()
        once = [f"{number}" for number in range(1, LINES // 20 + 1)]
        numbers = numbers_in(bytes(seen))
        assert numbers == once * (len(numbers) // len(once))
        assert numbers_in(b"".join(session.logs())) == numbers


def numbers_in(shown: bytes) -> list[str]:
    """Return the lines that are numbers; escape sequences for terminal modes are removed."""
    lines = re.sub(rb"\x1b\[\?[0-9;]*[hl]", b"", shown).decode().split("\r\n")
    return [line for line in lines if line.isdecimal()]


COUNTER = r"""
import os, signal, sys
kind, folder = sys.argv[1:]
count = 0
def tell(number, frame):
    open(f"{folder}/memory.new", "w").write(str(count))
    os.rename(f"{folder}/memory.new", f"{folder}/memory")
    signal.pause()  # stop counting
signal.signal(signal.SIGUSR1, tell)
os.makedirs(folder)
log = open(f"{folder}/file", "ab", buffering=0)
# The signal is blocked during a step, so the handler runs only when memory and file agree.
while True:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    count += 1
    if kind == "append":
        log.write(b"%d\n" % count)
    else:
        with open(f"{folder}/file.new", "wb", buffering=0) as file:
            file.write(b"%d\n" % count)
        os.rename(f"{folder}/file.new", f"{folder}/file")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
"""
KINDS = ("append", "rename")


@pytest.mark.soak(part="load")
def test_memory_files_and_terminal_of_a_fork_are_of_one_moment(home: Home, person: Person) -> None:
    with started(home, person.name, "busy") as session:
        session.run("sh", "-c", "cat >/tmp/counter.py", stdin=COUNTER.encode())
        for kind in KINDS:
            session.exec(
                f"python3 /tmp/counter.py {kind} /tmp/{kind} </dev/null >/dev/null 2>&1 & echo $! >/tmp/{kind}.pid"
            )
            in_process(session, f"until [ -s /tmp/{kind}/file ]; do sleep 0.02; done")
        for name in take_checkpoints(home, session.branch)[::3]:
            fork = restore_as(home, session, name, "fork")
            for kind in KINDS:
                in_process(
                    fork, f"kill -USR1 $(cat /tmp/{kind}.pid); until [ -e /tmp/{kind}/memory ]; do sleep 0.02; done"
                )
                memory, file = in_process(fork, f"cat /tmp/{kind}/memory; echo; tail -n 1 /tmp/{kind}/file").split()
                assert memory == file
            lines = in_process(fork, "cat /tmp/append/file").split()
            assert lines == [str(number) for number in range(1, len(lines) + 1)]
            fork.stop(discard=True)
