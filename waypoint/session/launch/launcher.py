"""The launcher: the one process that forks sessions, so that the daemon, large and with threads, need not.

Run as `python -I -S launcher.py FD` with a SOCK_SEQPACKET socket. Each request is a LaunchSpec in JSON together with a
socket for the answer (and two or three descriptors more, see spec.py). A request is carried out in a forked task of its
own, so that several run side by side. The launcher ends when the daemon's side of the socket closes. It is the reaper
of the sessions it started.

What it imports every fork pays for: `threading` alone, which has work to do in each child, makes it half as dear again
(tests/session/test_launcher.py). Children import what few of them need.
"""

import array
import gc
import os
import signal
import socket
import sys
from typing import NoReturn

import msgspec

from waypoint.linux import namespaces
from waypoint.linux.clone import fork_into
from waypoint.session.launch.criu import become_beside, become_into
from waypoint.session.launch.enter import enter
from waypoint.session.launch.spec import CriuBeside, CriuInto, Launched, LaunchSpec, StartSpec
from waypoint.session.launch.start import start

MAX_REQUEST_BYTES = 4 << 20
_MAX_FDS = 4


def serve(control: socket.socket) -> None:
    """Answer requests until the daemon is gone."""
    namespaces.set_process_name("wp-launcher")
    namespaces.become_subreaper()
    # Sessions' first processes become our children once the processes between have ended; nobody needs their status
    # from here.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # A child that collects garbage, or the mere marks of the collector in it, would copy what it shares with us.
    gc.freeze()
    gc.disable()
    decoder = msgspec.json.Decoder(LaunchSpec)
    while True:
        request, fds = _receive(control)
        if not request:
            return
        try:
            spec = decoder.decode(request)
            is_task = fork_for(spec) == 0
        except Exception as error:  # the daemon waits for an answer whatever happens
            _answer(fds[0], _failure(error), [])
        else:
            if is_task:
                control.close()
                carry_out(spec, fds)
        for fd in fds:
            os.close(fd)


def fork_for(spec: LaunchSpec) -> int:
    """As os.fork(): the child is to carry `spec` out. Raises OSError."""
    match spec:
        case CriuBeside():  # the task becomes CRIU
            return fork_into(spec.cgroup)
        case CriuInto():
            return fork_into(spec.ground.cgroup)
        case _:
            return os.fork()


def carry_out(spec: LaunchSpec, fds: list[int]) -> NoReturn:
    """In a task of its own: do it, and answer on the first of `fds`."""

    def here(handles: list[int]) -> None:
        _answer(fds[0], Launched(pid=os.getpid()), handles)

    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        match spec:
            case StartSpec():
                _answer(fds[0], *start(spec))
            case CriuBeside():
                become_beside(spec, fds[1:], here)
            case CriuInto():
                become_into(spec, fds[1:], here)
            case _:
                _answer(fds[0], *enter(spec, fds[1:]))
    except BaseException as error:  # a forked child must not return into its parent's code
        _answer(fds[0], _failure(error), [])
        os._exit(1)
    os._exit(0)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
    request, ancillary, _flags, _address = control.recvmsg(MAX_REQUEST_BYTES, room)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return request, list(fds)


def _answer(reply: int, launched: Launched, handles: list[int]) -> None:
    with socket.socket(fileno=os.dup(reply)) as sock:
        socket.send_fds(sock, [msgspec.json.encode(launched)], handles)


def _failure(error: BaseException) -> Launched:
    if isinstance(error, OSError):
        path = os.fsdecode(error.filename) if error.filename else ""
        return Launched(errno=error.errno or 0, path=path, error=error.strerror or str(error))
    return Launched(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
