"""Who asks for what is being done: noted where a request arrives, so that the operation log can name the caller.

A context variable (docs.python.org/3/library/contextvars.html), because a request and its entry in the log are far
apart. The tasks and threads that serve a request inherit it.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import TypeVar

from waypoint.model.records import Caller

T = TypeVar("T")

_CALLER: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("caller", default=None)


def current() -> Caller | None:
    """Who has asked for what the running task does; None if nobody has."""
    return _CALLER.get()


def is_root(caller: Caller | None) -> bool:
    """Whether `caller` is the machine's root, or the daemon itself."""
    return caller is None or caller.uid == 0


@contextlib.contextmanager
def asked_by(caller: Caller) -> Iterator[None]:
    """What the `with` block does, and what it begins, is done for `caller`."""
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)


def for_nobody(act: Callable[[], T]) -> T:
    """Call `act`; what it begins is done for nobody, whoever has asked for the call."""
    return contextvars.Context().run(act)
