"""Taking over a lock: its holder is asked to end, then killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.waiting import PATIENCE_S
from waypoint.linux.storage import files
from waypoint.linux.tasks import lock_holder, procfs

HOLDER = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from waypoint.linux.storage import files
from waypoint.linux.tasks import lock_holder
_, path, signs, ends = sys.argv
lock = files.lock(path, wait=False)
if signs == "signs":
    lock_holder.sign(lock)
if ends == "goes-on":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("holds", flush=True)
if signs == "signs-late":
    sys.stdin.read(1)
    lock_holder.sign(lock)
sys.stdin.read()
"""


@contextlib.contextmanager
def holder(path: Path, signs: str = "signs", ends: str = "ends") -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process that holds the lock of `path` during the `with` block."""
    command = [sys.executable, "-I", "-S", "-c", HOLDER, str(path), signs, ends]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        try:
            yield process
        finally:
            process.kill()


def test_taking_a_free_lock_clears_the_signature_in_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(f"{os.getpid()}\n")  # the pid of an earlier holder, which another process has now
    os.close(lock_holder.take_over(str(path), patience_s=2))
    assert path.read_bytes() == b""


def test_a_process_that_has_an_earlier_holders_pid_is_not_signalled(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path, "signs-late") as process, subprocess.Popen(["sleep", "60"]) as stranger:
        path.write_text(f"{stranger.pid} {procfs.start_ticks(stranger.pid) - 1}\n")
        try:
            with pytest.raises(TimeoutError):
                lock_holder.take_over(str(path), patience_s=0.1, kill_s=0.1)
            assert stranger.poll() is None
            assert process.poll() is None
        finally:
            stranger.kill()


def test_a_process_named_by_a_forged_signature_is_not_signalled(tmp_path: Path) -> None:
    """The process is not signalled even if it has the file open."""
    path = tmp_path / "lock"
    with holder(path, "signs-late") as process, path.open("rb") as opened:
        stranger = subprocess.Popen(["sleep", "60"], stdin=opened)
        path.write_text(f"{stranger.pid} {procfs.start_ticks(stranger.pid)}\n")
        try:
            with pytest.raises(TimeoutError, match="an unknown process still holds the lock"):
                lock_holder.take_over(str(path), patience_s=0.1, kill_s=0.1)
            assert stranger.poll() is None
            assert process.poll() is None
        finally:
            stranger.kill()
            stranger.wait()


def test_the_holder_gets_sigterm(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as process:
        os.close(lock_holder.take_over(str(path), patience_s=10, kill_s=10))
        assert process.wait(PATIENCE_S) == -signal.SIGTERM


def test_a_holder_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path, ends="goes-on") as process:
        os.close(lock_holder.take_over(str(path), patience_s=0.1, kill_s=10))
        assert process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_holder_that_signs_late_gets_sigterm_then(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path, signs="signs-late") as process:
        assert process.stdin is not None
        with pytest.raises(TimeoutError, match=r"an unknown process still holds the lock, 0\.1 s after SIGTERM"):
            lock_holder.take_over(str(path), patience_s=0.1)
        process.stdin.write(b"!")
        os.close(lock_holder.take_over(str(path), patience_s=10))
        assert process.wait(PATIENCE_S) == -signal.SIGTERM


def test_a_holder_that_does_not_end_is_named_in_the_timeout(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path, ends="goes-on") as process:
        begin = time.monotonic()
        said = rf"process {process.pid} \(python.*, state S\) still holds the lock, 0.2 s after SIGTERM"
        with pytest.raises(TimeoutError, match=said):
            lock_holder.take_over(str(path), patience_s=0.2)
        assert time.monotonic() - begin >= 0.2


def test_an_ended_signer_is_not_taken_for_the_present_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as first:
        first.kill()
        first.wait(PATIENCE_S)
        lock = files.lock(str(path), wait=False)
        with pytest.raises(TimeoutError, match="an unknown process"):
            lock_holder.take_over(str(path), patience_s=0.1)
        os.close(lock)
