"""The launcher: the one process that forks sessions, so that the daemon, large and with threads, need not.

Run as `python -I -S launcher.py FD` with a SOCK_SEQPACKET socket. Each request is a LaunchSpec in JSON together with a
socket for the answer (and stdin, stdout, stderr for `enter`). A request is carried out in a forked task of its own, so
that several run side by side. The launcher ends when the daemon's side of the socket closes. It is the reaper of the
sessions it started.
"""

import array
import gc
import os
import signal
import socket
import sys

MAX_REQUEST_BYTES = 4 << 20
_MAX_FDS = 4


def serve(control: socket.socket) -> None:
    """Answer requests until the daemon is gone."""
    from waypoint.linux import namespaces

    namespaces.set_process_name("wp-launcher")
    namespaces.become_subreaper()
    # Sessions' first processes become our children once the processes between have ended; nobody needs their status
    # from here.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # A child that collects garbage, or the mere marks of the collector in it, would copy what it shares with us.
    gc.freeze()
    gc.disable()
    while True:
        request, fds = _receive(control)
        if not request:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            _answer(request, fds)
            os._exit(0)
        for fd in fds:
            os.close(fd)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
    request, ancillary, _flags, _address = control.recvmsg(MAX_REQUEST_BYTES, room)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return request, list(fds)


def _answer(request: bytes, fds: list[int]) -> None:
    import msgspec

    from waypoint.session.launch.criu import start_beside, start_into
    from waypoint.session.launch.enter import enter
    from waypoint.session.launch.spec import CriuBeside, CriuInto, Launched, LaunchSpec, StartSpec
    from waypoint.session.launch.start import start

    reply = socket.socket(fileno=fds[0])
    try:
        spec: LaunchSpec = msgspec.json.decode(request, type=LaunchSpec)
        match spec:
            case StartSpec():
                launched, handles = start(spec)
            case CriuBeside():
                launched, handles = start_beside(spec, fds[1:])
            case CriuInto():
                launched, handles = start_into(spec, fds[1:])
            case _:
                launched, handles = enter(spec, fds[1:])
    except Exception as error:  # the daemon waits for an answer whatever happens
        launched, handles = Launched(error=f"{type(error).__name__}: {error}"), []
    socket.send_fds(reply, [msgspec.json.encode(launched)], handles)


if __name__ == "__main__":
    import waypoint.session.launch.criu
    import waypoint.session.launch.enter
    import waypoint.session.launch.start  # noqa: F401 - imported once here, not in each forked task

    serve(socket.socket(fileno=int(sys.argv[1])))
