"""Starting victims (victim.py) and killing them during their work."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.places import ROOT
from tests.upper.pool_homes import PoolHome
from tests.waiting import PATIENCE_S


@contextlib.contextmanager
def started(task: str, pool_home: PoolHome) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a victim that has printed `ready`, and kill it at the end of the block."""
    command = [sys.executable, "-m", "tests.upper.victim", task, str(pool_home.home), pool_home.driver]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
        try:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"ready\n"
            yield victim
        finally:
            victim.kill()


def kill_after(task: str, pool_home: PoolHome, delay_s: float) -> None:
    """Start a victim, and kill it `delay_s` after it has printed `ready`."""
    with started(task, pool_home) as victim, contextlib.suppress(subprocess.TimeoutExpired):
        victim.wait(delay_s)


def duration(task: str, pool_home: PoolHome) -> float:
    """Return the seconds that a task needs from `ready` to its end."""
    with started(task, pool_home) as victim:
        before = time.monotonic()
        assert victim.wait(PATIENCE_S) == 0
        return time.monotonic() - before


def leftovers(home: Path) -> list[str]:
    """Return the paths of unfinished files in the home and in the pool's folder."""
    found = [path for folder in (home, home / "pool") for path in folder.iterdir()]
    own = [path for path in found if path.name.startswith(".") or "making" in path.name]
    return [str(path) for path in own if not path.is_dir() or any(path.iterdir())]
