"""Showing long output through a pager."""

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator

_LESS = "FRX"  # leave at once if all fits on the screen, pass colours on, do not clear the screen


@contextlib.contextmanager
def paged() -> Iterator[None]:
    """If stdout is a terminal, show the output of the `with` block in $PAGER (default: less, if there is one)."""
    pager = shlex.split(os.environ.get("PAGER", "less"))
    if not os.isatty(1) or not pager or pager == ["cat"]:
        yield
        return
    try:
        program = subprocess.Popen(pager, stdin=subprocess.PIPE, env={"LESS": _LESS, **os.environ})
    except OSError:  # there is none
        yield
        return
    assert program.stdin is not None
    terminal = os.dup(1)
    os.dup2(program.stdin.fileno(), 1)
    program.stdin.close()
    try:
        with contextlib.suppress(BrokenPipeError):  # the user has left the pager before the end
            yield
    finally:
        os.dup2(terminal, 1)  # closes the pipe
        os.close(terminal)
        with contextlib.suppress(KeyboardInterrupt):  # meant for the pager
            program.wait()
