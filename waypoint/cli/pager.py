"""Long output on a terminal, through the user's pager, as git does it."""

import contextlib
import os
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess


@contextlib.contextmanager
def paged() -> Iterator[bool]:
    """In the `with` block, stdout leads to $PAGER, or to less, if it is a terminal; yields whether it is one. "" and
    `cat` are no pager. Ends when the user leaves the pager; an output that it does not take to its end is no error.
    """
    if not os.isatty(1):
        yield False
        return
    import shlex  # these load `re` and more, and are needed here alone
    import subprocess

    words = shlex.split(os.environ.get("PAGER", "less"))
    if not words or words == ["cat"]:
        yield True
        return
    env = {**os.environ, "LESS": os.environ.get("LESS", "FRX")}
    try:
        pager = subprocess.Popen(words, stdin=subprocess.PIPE, env=env)
    except OSError:
        yield True
        return
    assert pager.stdin is not None
    terminal = os.dup(1)
    os.dup2(pager.stdin.fileno(), 1)
    try:
        with contextlib.suppress(BrokenPipeError):
            yield True
    finally:
        os.dup2(terminal, 1)
        os.close(terminal)
        pager.stdin.close()
        _wait(pager)


def _wait(pager: "subprocess.Popen[bytes]") -> None:
    """Until the user leaves the pager, which takes Ctrl-C as a key of its own."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            pager.wait()
            return
