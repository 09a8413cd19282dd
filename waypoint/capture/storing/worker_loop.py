"""The loop of the store's own process (worker_program.py)."""

import os
import queue
import sys
import threading
import time

import msgspec

from waypoint.capture.storing.keys import dump_no_core
from waypoint.capture.storing.orders import Answer, Task
from waypoint.capture.storing.work import carry_out
from waypoint.model.errors import Failed, WaypointError, of_machine

_PROGRESS_S = 0.1
_decoder = msgspec.json.Decoder(Task)


def main() -> None:
    dump_no_core()
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    while True:
        _answer(_carry_out(orders.get()))


def _read(orders: "queue.SimpleQueue[bytes]") -> None:
    for line in sys.stdin.buffer:
        orders.put(line)
    os._exit(0)


def _carry_out(line: bytes) -> Answer:
    told_at = time.monotonic()

    def on_progress(done: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at > _PROGRESS_S:
            told_at = time.monotonic()
            _answer(Answer(progress=done))

    try:
        return Answer(result=carry_out(_decoder.decode(line), on_progress))
    except WaypointError as error:
        return Answer(error=error.to_json())
    except OSError as error:
        said = f"{error.strerror} {os.fsdecode(error.filename or '')}".rstrip()
        failed = Failed("store", "the capture", said, "try again", code=of_machine(error.errno))
        return Answer(error=failed.to_json())


def _answer(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
