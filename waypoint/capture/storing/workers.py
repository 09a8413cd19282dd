"""The store's own processes, as the daemon sees them. They are started on demand, and end when they are idle."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from waypoint.capture.storing.orders import Answer, Order, Task, Unlock
from waypoint.model.errors import Failed, StateConflict, from_json

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker_program.py")
IDLE_S = 20.0

Result = TypeVar("Result")


class Workers:
    """Runs orders, each in a process of its own at that time. Thread-safe; `run` blocks. `key`: returns the key of the
    store, or raises.
    """

    def __init__(self, key: Callable[[], str] = str) -> None:
        self._key = key
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy: set[subprocess.Popen[bytes]] = set()
        self._end_idle: threading.Timer | None = None
        self._is_closed = False

    def run(self, order: Order, kind: type[Result], on_progress: Callable[[int], None] = lambda _: None) -> Result:
        """Have the order carried out; return the answer, a record of this `kind`. Raises the process's WaypointError;
        Failed if the process is killed.
        """
        task = Task(order=order, key="" if isinstance(order, Unlock) else self._key())
        worker = self._take()
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # it was killed: reported below
                worker.stdin.write(msgspec.json.encode(task) + b"\n")
                worker.stdin.flush()
            answer = Answer()
            for line in worker.stdout:
                answer = msgspec.json.decode(line, type=Answer)
                if answer.progress is None:
                    break
                on_progress(answer.progress)
            else:
                status = worker.wait()
                said = f"the process that does it has ended with status {status}"
                raise Failed("use", f"the store {order.store}", said, "try again; the daemon's log may have the reason")
        except BaseException:
            self._end(worker)
            raise
        self._give_back(worker)
        if answer.error is not None:
            raise from_json(answer.error)
        return msgspec.convert(answer.result, kind)

    def close(self) -> None:
        """End all processes; orders that are being carried out fail."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            found = [*idle, *self._busy]
            if self._end_idle is not None:
                self._end_idle.cancel()
        for worker in found:
            worker.kill()
        for worker in found:
            worker.wait()
        for worker in idle:  # `run` closes those of the others
            _close_pipes(worker)

    def _take(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._is_closed:
                raise StateConflict("use", "the store", "the daemon is ending", "try again", code="daemon-stopped")
            worker = self._idle.pop() if self._idle else _start()
            while worker.poll() is not None:  # it was killed
                _close_pipes(worker)
                worker = self._idle.pop() if self._idle else _start()
            self._busy.add(worker)
            return worker

    def _give_back(self, worker: "subprocess.Popen[bytes]") -> None:
        with self._lock:
            self._busy.discard(worker)
            if self._is_closed:
                return
            self._idle.append(worker)
            if self._end_idle is not None:
                self._end_idle.cancel()
            self._end_idle = threading.Timer(IDLE_S, self._end_all_idle)
            self._end_idle.daemon = True
            self._end_idle.start()

    def _end(self, worker: "subprocess.Popen[bytes]") -> None:
        with self._lock:
            self._busy.discard(worker)
        worker.kill()
        worker.wait()
        _close_pipes(worker)

    def _end_all_idle(self) -> None:
        with self._lock:
            found, self._idle = self._idle, []
        for worker in found:
            self._end(worker)


def _close_pipes(worker: "subprocess.Popen[bytes]") -> None:
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # an order that it has not read
                pipe.close()


def _start() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-I", "-S", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
