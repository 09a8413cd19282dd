"""Ports of the machine for programs of tests to listen on."""

import contextlib
import itertools
import os
import socket

_FIRST, _PROCESSES, _EACH = 10_000, 200, 100
_TURN = itertools.count()


def free_port(address: str = "127.0.0.1") -> int:
    """A port on which nobody listens, of those that are this process's own. They are below the kernel's
    ip_local_port_range, of which any connection may get one before the program has begun.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for number in itertools.islice(_TURN, _EACH):
        port = _FIRST + os.getpid() % _PROCESSES * _EACH + number % _EACH
        with contextlib.suppress(OSError), socket.create_server((address, port), family=family):
            return port
    raise AssertionError("no port is free")
