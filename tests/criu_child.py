"""Starts CRIU as a child of the test process, with the launcher's functions but without a launcher process."""

import os
import socket
import time

import msgspec

from waypoint.launch import launcher
from waypoint.launch.launcher_link import fds_for_ids
from waypoint.launch.spec import CriuBeside, CriuInto, LaunchAnswer
from waypoint.processes.criu.worker import CriuCommand


class CriuChild:
    """A started CRIU. `taken_ms`: the time from just before the exec of CRIU to its end."""

    def __init__(self, spec: CriuBeside | CriuInto, command: CriuCommand) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for_ids = fds_for_ids(spec)
        with ours:
            self.pid = launcher.fork_for(spec)
            if self.pid == 0:
                launcher.carry_out(spec, [theirs.fileno(), command.socket_fd, command.words_fd, *for_ids])
            theirs.close()
            text, handles, _flags, _address = socket.recv_fds(ours, 1 << 16, 4, socket.MSG_CMSG_CLOEXEC)
        self._began = time.perf_counter()
        for fd in handles:
            os.close(fd)
        launched = msgspec.json.decode(text, type=LaunchAnswer)
        if not launched.pid:
            raise OSError(launched.errno, launched.error, launched.path)
        self.taken_ms = 0.0

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.taken_ms = 1000 * (time.perf_counter() - self._began)
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        os.kill(self.pid, 9)
