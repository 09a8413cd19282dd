"""Running a module of this package as a program of its own, which leaves a process in the background and ends."""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from waypoint.linux.calls import programs

_PROGRAM_S = 20.0
_ROOT = Path(__file__).resolve().parents[2]


def run_module(name: str, words: Sequence[str], fds: Iterable[int]) -> str:
    """Run the module `name` of this package with the arguments `words` and the descriptors `fds`. Return what it has
    printed. Blocks. Raises OSError with its message.
    """
    argv = [name, *words]
    boot = f"import sys; sys.path[:0] = [{str(_ROOT)!r}]; sys.argv = {argv!r}"
    code = f"{boot}; import runpy; runpy.run_module('waypoint.egress.{name}', run_name='__main__')"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": programs.SEARCH_PATH, "LC_ALL": "C"},
            pass_fds=[fd for fd in fds if fd >= 0],
            timeout=_PROGRAM_S,
            check=False,
            cwd="/",
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(0, f"{name} did not start within {_PROGRAM_S:g} s") from error
    if done.returncode != 0:
        raise OSError(0, done.stderr.decode(errors="replace").strip()[-200:] or f"{name} did not start")
    return done.stdout.decode()
