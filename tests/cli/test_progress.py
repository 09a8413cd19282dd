"""The bar under `checkpoint --wait`: on a terminal only, and gone at the end."""

import os
import threading

import pytest

from waypoint.cli import progress


def answer(kind: str = "ingest", state: str = "running", **done: int) -> dict[str, object]:
    other = {"kind": "gc", "state": "running", "progress": {}}
    return {"jobs": [other, {"kind": kind, "state": state, "progress": done}]}


def test_the_bar_has_the_share_that_is_done() -> None:
    half = progress.bar(answer(bytes=3 << 20, bytes_total=6 << 20), "ingest")
    assert half == f"[{12 * '#'}{12 * '.'}]  3.0 MiB of 6.0 MiB"
    assert progress.bar(answer(bytes=9, bytes_total=6), "ingest").startswith(f"[{24 * '#'}]")
    assert progress.bar(answer(bytes=2048), "ingest") == "2.0 KiB"
    assert progress.bar(answer(state="done", bytes=1, bytes_total=2), "ingest") == ""
    assert progress.bar(None, "ingest") == ""


def test_a_bar_is_drawn_on_a_terminal_only_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    saved, null, asked = os.dup(2), os.open(os.devnull, os.O_WRONLY), threading.Event()

    def ask(*_: object) -> dict[str, object]:
        asked.set()
        return answer(bytes=1, bytes_total=2)

    monkeypatch.setattr(progress, "ask_running", ask)
    try:
        os.dup2(slave, 2)
        with progress.shown("/h", "ingest", "storing"):
            drawn = os.read(master, 1000)
        assert b"storing  [############............]  1 B of 2 B" in drawn
        left = os.read(master, 1000)
        assert left.endswith(b"\r\x1b[K"), left
        asked.clear()
        os.dup2(null, 2)
        with progress.shown("/h", "ingest", "storing"):
            assert not asked.wait(3 * progress._EVERY_S)
    finally:
        os.dup2(saved, 2)
        for fd in (saved, null, master, slave):
            os.close(fd)
