"""Starting one of the programs of this package: each does its work by a process that outlives whoever started it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from waypoint.linux.calls import programs

START_S = 20.0
_ROOT = Path(__file__).resolve().parents[2]


def run(module: str, words: Sequence[str], passed: Sequence[int], called: str) -> bytes:
    """Run `module` of this package until it has begun its work. Returns what it prints. Blocks.

    `words`: its arguments. `passed`: the descriptors that it gets, under their numbers. `called`:
    what it is called in words. Raises OSError with the last words of its error, also after START_S.
    """
    boot = f"import sys; sys.path[:0] = [{str(_ROOT)!r}]; sys.argv = {[module, *words]!r}"
    code = f"{boot}; import runpy; runpy.run_module('waypoint.egress.{module}', run_name='__main__')"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": programs.SEARCH_PATH, "LC_ALL": "C"},
            pass_fds=passed,
            timeout=START_S,
            check=False,
            cwd="/",
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(0, f"{called} did not start within {START_S:g} s") from error
    if done.returncode != 0:
        raise OSError(0, done.stderr.decode(errors="replace").strip()[-200:] or f"{called} did not start")
    return done.stdout
