"""A program for the inside of a session: threads that wait in different ways or compute, and a timer. Whoever connects
to PORT is told as JSON how often each has come around, and what each has found wrong.

Only the standard library: it runs on the session's own Python.
"""

import itertools
import json
import select
import signal
import socket
import threading
import time
from collections.abc import Callable

PORT = 7002
ASK = f"exec 3<>/dev/tcp/127.0.0.1/{PORT} && read -r -t 5 line <&3; exec 3>&-; echo $line"
"""For a bash: prints what the crowd says."""
_TIMER_S = 0.01
_SUM = sum(number * number for number in range(2000))
_BALL_BYTES = 8

rounds: dict[str, int] = {}
wrong: list[str] = []


def main() -> None:
    signal.signal(signal.SIGALRM, lambda *_: _count("timer"))
    signal.setitimer(signal.ITIMER_REAL, _TIMER_S, _TIMER_S)
    for work in (_sleep, _poll, _compute, *_talk()):
        threading.Thread(target=_repeat, args=(work,), daemon=True).start()
    server = socket.create_server(("127.0.0.1", PORT))
    while True:
        with server.accept()[0] as asker:
            asker.sendall(json.dumps({"rounds": rounds, "wrong": wrong}).encode() + b"\n")


def _count(name: str) -> None:
    rounds[name] = rounds.get(name, 0) + 1


def _repeat(work: Callable[[], None]) -> None:
    try:
        while True:
            work()
            _count(work.__name__)
    except BaseException as error:
        wrong.append(f"{work.__name__}: {error!r}")


def _sleep() -> None:
    before = time.monotonic()
    time.sleep(0.02)
    assert time.monotonic() - before >= 0.02, "woke early"


def _poll() -> None:
    assert select.select([], [], [], 0.02) == ([], [], []), "nothing was ready"


def _compute() -> None:
    assert sum(number * number for number in range(2000)) == _SUM, "computed wrongly"
    time.sleep(0.001)


def _talk() -> tuple[Callable[[], None], Callable[[], None]]:
    """The work of two threads that throw a ball over a TCP connection: there is data under way at every moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right = listener.accept()[0]
    numbers = itertools.count()

    def serve() -> None:
        ball = b"%8d" % next(numbers)
        left.sendall(ball)
        assert left.recv(_BALL_BYTES, socket.MSG_WAITALL) == ball, "another ball came back"

    def catch() -> None:
        right.sendall(right.recv(_BALL_BYTES, socket.MSG_WAITALL))

    return serve, catch


if __name__ == "__main__":
    main()
