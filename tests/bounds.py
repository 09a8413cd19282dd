"""Default timeouts for waits on programs and futures in tests."""

import functools
import inspect
import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

USUAL_S = 100.0
"""More than any program of the tests needs on a busy machine; the slowest programs download packages."""


def bound_waits() -> None:
    """Give the waits below a timeout where the caller gives none. At the timeout `subprocess.run` kills its program."""
    for kind, name in ((subprocess.Popen, "wait"), (subprocess.Popen, "communicate"), (Future, "result")):
        setattr(kind, name, _bounded(getattr(kind, name)))


def _bounded(method: Callable[..., Any]) -> Callable[..., Any]:
    shape = inspect.signature(method)

    @functools.wraps(method)
    def bounded(*words: object, **named: object) -> Any:
        given = shape.bind(*words, **named)
        if given.arguments.get("timeout") is None:
            given.arguments["timeout"] = USUAL_S
        return method(*given.args, **given.kwargs)

    return bounded
