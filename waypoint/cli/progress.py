"""A bar on stderr that shows how much of its work a job of the daemon has done."""

import contextlib
import os
import threading
from collections.abc import Iterator

from waypoint.client.link import ask_running
from waypoint.model.errors import WaypointError
from waypoint.model.rendering import progress

_EVERY_S = 0.1
_WIDTH = 24


@contextlib.contextmanager
def shown(home: str, kind: str, heading: str) -> Iterator[None]:
    """During the `with` block, show the progress of the job of this kind, while one runs. Does nothing if stderr is no
    terminal.
    """
    if not os.isatty(2):
        yield
        return
    ends = threading.Event()
    thread = threading.Thread(target=_show, args=(home, kind, heading, ends), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def _show(home: str, kind: str, heading: str, ends: threading.Event) -> None:
    is_drawn = False
    while not ends.wait(_EVERY_S):
        with contextlib.suppress(WaypointError):  # the request itself fails, too, and reports it
            line = bar(ask_running(home, "GET", "/v1/jobs"), kind)
            if line or is_drawn:
                _write(f"\r\x1b[K{heading}  {line}" if line else "\r\x1b[K")
                is_drawn = bool(line)
    if is_drawn:
        _write("\r\x1b[K")


def bar(answer: object, kind: str) -> str:
    """The progress of the running job of this kind in the answer to `GET /v1/jobs`; "" if there is none."""
    match answer:
        case {"jobs": list(jobs)}:
            running = (job["progress"] for job in jobs if (job["kind"], job["state"]) == (kind, "running"))
            found = next(running, None)
        case _:
            found = None
    match found:
        case {"bytes": int(done), "bytes_total": int(total)} if total:
            full = _WIDTH * min(done, total) // total
            return f"[{'#' * full}{'.' * (_WIDTH - full)}]  {progress({'bytes': done, 'bytes_total': total})}"
    return progress(found)


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal has gone
        os.write(2, text.encode())
