"""A bound for each wait of a test's for a program or for a thread of a pool that says none itself."""

import functools
import inspect
import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

USUAL_S = 100.0
"""Longer than any such program takes beside other tests on a busy machine; the longest fetch packages."""


def bound_waits() -> None:
    """From now on, in this process, these waits raise TimeoutExpired or TimeoutError; `subprocess.run` also kills."""
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
