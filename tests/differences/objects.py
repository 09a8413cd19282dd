"""Objects of the kernel, for programs in sessions: how they are made and registered.

An object is a generator. It makes the object, yields, and returns what it then finds: the session was captured, or
copied, at the `yield`. The result is compared with that of a session that was not captured.
"""

import ctypes
import fcntl
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Generator
from typing import Any

Object = Callable[[], Generator[None, None, Any]]
OBJECTS: dict[str, Object] = {}
REPORTED: dict[str, str] = {}
"""By the name of an object of which copies lose something: the code of the condition that the checkpoint reports."""

REFUSED: dict[str, tuple[Object, str]] = {}
"""Objects of which no live capture can be taken, with the code of the error."""

LIBC = ctypes.CDLL(None, use_errno=True)
LOOPBACK = "127.0.0.1"
PAUSE = threading.Event()


def kept(make: Object) -> Object:
    OBJECTS[make.__name__] = make
    return make


def reported(code: str) -> Callable[[Object], Object]:
    def note(make: Object) -> Object:
        REPORTED[make.__name__] = code
        return kept(make)

    return note


def refused(code: str) -> Callable[[Object], Object]:
    def note(make: Object) -> Object:
        REFUSED[make.__name__] = make, code
        return make

    return note


def child(work: Callable[[], object]) -> int:
    """Run `work` in a child, which waits afterwards until it is killed."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            signal.pause()
        finally:
            os._exit(1)
    return pid


def in_child(make: Callable[[], object], find: Callable[[], object]) -> Generator[None, None, Any]:
    """An object that a child makes, and in which it finds something later."""
    (asked, ask), (answer, answered) = os.pipe(), os.pipe()

    def work() -> None:
        make()
        os.write(answered, b".")
        os.read(asked, 1)
        os.write(answered, repr(find()).encode())

    child(work)
    os.close(answered)
    if not os.read(answer, 1):
        raise ChildProcessError("the child has failed")
    yield
    os.write(ask, b"?")
    return os.read(answer, 1 << 12)


def attempt(work: Callable[[], object]) -> object:
    """What `work` returns, or the name of its error."""
    try:
        return work()
    except OSError as error:
        return type(error).__name__, error.errno


def call(name: str, *arguments: object) -> int:
    """Call a function of libc. Raises OSError."""
    result = int(getattr(LIBC, name)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def prctl(option: int, *arguments: int) -> int:
    wide = [ctypes.c_ulong(one) for one in (*arguments, 0, 0, 0, 0)[:4]]
    return call("prctl", option, *wide)


def connection(family: int = socket.AF_INET) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("::1" if family == socket.AF_INET6 else LOOPBACK, 0), family=family) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        return client, listener.accept()[0]


def datagrams() -> socket.socket:
    made = socket.socket(type=socket.SOCK_DGRAM)
    made.bind((LOOPBACK, 0))
    made.settimeout(60)
    return made


def temporary() -> int:
    return os.open(tempfile.mkstemp()[1], os.O_RDWR)


def locked(file: int) -> object:
    return attempt(lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB))
