"""The caller of the running request, for the operation log and for checking permissions, and the undo that the request
carries out.

Both are context variables. The tasks and threads that serve the request inherit them.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import TypeVar

from waypoint.model.records import Caller

T = TypeVar("T")

_CALLER: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("caller", default=None)
_INTENT: contextvars.ContextVar[int | None] = contextvars.ContextVar("intent", default=None)


def current() -> Caller | None:
    """The caller of the running request; None if the daemon acts by itself."""
    return _CALLER.get()


def is_root(caller: Caller | None) -> bool:
    """Whether `caller` is the machine's root, or the daemon itself."""
    return caller is None or caller.uid == 0


def intent() -> int | None:
    """The number of the intent (`Intent`) under which changes are recorded; None if they have entries of their own."""
    return _INTENT.get()


@contextlib.contextmanager
def asked_by(caller: Caller | None) -> Iterator[None]:
    """Make `caller` the caller of the `with` block and of all tasks and threads that it begins. The block belongs to no
    undo: a session that an undo has started passes the undo's context on to its requests.
    """
    with _set(_CALLER, caller), _set(_INTENT, None):
        yield


@contextlib.contextmanager
def under_intent(number: int) -> Iterator[None]:
    """Record the changes of the `with` block, and of all tasks and threads that it begins, under this intent."""
    with _set(_INTENT, number):
        yield


@contextlib.contextmanager
def _set(variable: contextvars.ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def for_nobody(act: Callable[[], T]) -> T:
    """Call `act` as the daemon itself, without a caller. The same holds for the tasks that `act` begins."""
    return contextvars.Context().run(act)
