"""The frame of a program that carries out orders, one after the other, for work that the daemon's own process must not
do.

An order is one line of JSON on stdin. The program tells on stdout, as one JSON object on each line, `{"begun": true}`,
then `{"done": N}` after each part of the work, or `{"bytes": N, "of": M}` (M null while it is not known), and at last
`{"result": ...}` or `{"error": {...}}` with the four parts of a message. It may ask `{"asks": N, "about": ...}` in
between, and goes on when an empty line comes on stdin. Then it waits for another order. It ends when stdin is closed,
whatever it does then.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

import msgspec

from waypoint.model.errors import Failed, WaypointError, bug_of, trace_of

AnyOrder = TypeVar("AnyOrder")

_PIECE = 1 << 16


class Dialogue:
    """The talk with whoever has started the program."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def told(self, done: int) -> None:
        """Tell how much is done."""
        self.say({"done": done})

    def told_bytes(self, done: int, total: int | None) -> None:
        """As `told`, in bytes."""
        self.say({"bytes": done, "of": total})

    def confirm(self, count: int, about: object) -> None:
        """Ask whether to go on, and tell what it is about. Returns when the answer is there; if nobody is left to give
        one, the program ends.
        """
        self.say({"asks": count, "about": about})
        self._answers.get()

    def say(self, answer: dict[str, object]) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()

    def next_order(self) -> bytes:
        """Wait for one, in JSON; if none will come, the program ends."""
        return self._orders.get()

    def listen(self) -> NoReturn:
        """Pass orders and answers on, and end the program when nobody wants a result any more.

        By `os._exit`: an orderly end of Python takes a second if a thread waits for stdin, and nothing is left to be
        done.
        """
        rest = b""
        while piece := os.read(sys.stdin.fileno(), _PIECE):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line:
                    self._orders.put(line)
                else:
                    self._answers.put(None)
        os._exit(1)


def serve(
    kind: type[AnyOrder], carry_out: Callable[[AnyOrder, Dialogue], object], on: Callable[[AnyOrder], str]
) -> NoReturn:
    """Carry out the orders on stdin, which are of the type `kind`. `on`: what one works on, for an error."""
    os.umask(0o077)
    dialogue = Dialogue()
    threading.Thread(target=dialogue.listen, daemon=True).start()
    while True:
        order: AnyOrder = msgspec.json.decode(dialogue.next_order(), type=kind)
        try:
            dialogue.say({"begun": True})
            dialogue.say(_answer(order, carry_out, on, dialogue))
        except BrokenPipeError:  # nobody reads any more what it writes
            os._exit(1)


def _answer(
    order: AnyOrder,
    carry_out: Callable[[AnyOrder, Dialogue], object],
    on: Callable[[AnyOrder], str],
    dialogue: Dialogue,
) -> dict[str, object]:
    """Raises BrokenPipeError."""
    try:
        return {"result": carry_out(order, dialogue)}
    except WaypointError as error:
        return {"error": error.to_json()}
    except BrokenPipeError:
        raise
    except OSError as error:
        from waypoint.upper.contract import NEXT_STEPS  # takes as long to load as a small order takes

        said = f"{error.strerror}: {os.fsdecode(error.filename or '')}".removesuffix(": ")
        next_step = NEXT_STEPS.get(error.errno or 0, "see the kernel's log (dmesg), and try again")
        return {"error": Failed("work on", on(order), said, next_step).to_json()}
    except Exception as error:  # who asked has its words; the log, to which stderr leads, where it comes from
        print(trace_of(error, on(order)), file=sys.stderr, flush=True)
        return {"error": bug_of(error, "work on", on(order)).to_json()}
