"""The caller of the running request, for the operation log and for checking permissions.

The caller is stored in a context variable when a request arrives. The tasks and threads that serve the request inherit
it.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import TypeVar

from waypoint.model.records import Caller

T = TypeVar("T")

_CALLER: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("caller", default=None)


def current() -> Caller | None:
    """The caller of the running request; None if the daemon acts by itself."""
    return _CALLER.get()


def is_root(caller: Caller | None) -> bool:
    """Whether `caller` is the machine's root, or the daemon itself."""
    return caller is None or caller.uid == 0


@contextlib.contextmanager
def asked_by(caller: Caller) -> Iterator[None]:
    """Make `caller` the caller of the `with` block and of all tasks and threads that it begins."""
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)


def for_nobody(act: Callable[[], T]) -> T:
    """Call `act` as the daemon itself, without a caller. The same holds for the tasks that `act` begins."""
    return contextvars.Context().run(act)
