"""How far something is, is shown on a terminal alone, and is gone from it at the end."""

import os

import pytest

from waypoint.cli import progress


def test_a_bar_is_drawn_on_a_terminal_and_goes(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: fd == 2)
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    with progress.shown("export") as bar:
        bar.add(512)
        bar.total = 4096
        bar.add(512)
        bar.put(5000)
    bars = ["512 B", f"[{'#' * 6}{'.' * 18}] 1.0 KiB of 4.0 KiB", f"[{'#' * 24}] 4.0 KiB of 4.0 KiB"]
    assert capfd.readouterr() == ("", "".join(f"\r\x1b[Kexport  {one}" for one in bars) + "\r\x1b[K")


def test_nothing_is_drawn_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    with progress.shown("export", 100) as bar, progress.storing_shown("/nowhere"):
        bar.add(50)
    assert capfd.readouterr() == ("", "")
