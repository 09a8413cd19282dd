"""How one more process starts in a live session."""

import os
import socket
import struct

from waypoint.linux import namespaces, ptys
from waypoint.session.launch.birth import REPORT_FD, Answer, hand_over, supervise
from waypoint.session.launch.program import MASTER_FD, become, open_terminal
from waypoint.session.launch.spec import EnterSpec

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def enter(spec: EnterSpec, stdio: list[int]) -> Answer:
    """Start `spec.argv` in the session of init `spec.pid`, adopted by that init. Returns when it runs.

    It is in the session's cgroup (else it would be neither frozen nor dumped) and a child of its pid 1. The
    descriptors: of the process and, with a terminal, of its master.
    """

    def outer(report: int, ask: int, answer: int) -> None:
        os.close(answer)
        pidfd = os.pidfd_open(spec.pid)
        kinds = namespaces.CLONE_NEWUSER | namespaces.CLONE_NEWNS | namespaces.CLONE_NEWPID | namespaces.CLONE_NEWIPC
        kinds |= namespaces.CLONE_NEWUTS | namespaces.CLONE_NEWNET
        namespaces.setns(pidfd, kinds)
        # The time namespace last: entering a user namespace first gives the right to it.
        namespaces.setns(pidfd, namespaces.CLONE_NEWTIME)
        os.setgid(0)
        os.setuid(0)
        _go_to_pid_1(ask)
        os.setsid()
        _give_stdio(spec, stdio, report)
        hand_over([MASTER_FD] if spec.tty else [])
        become(spec.identity, spec.argv, spec.env, spec.cwd)

    return supervise(outer, spec.cgroup)


def _go_to_pid_1(ask: int) -> None:
    """Return in a grandchild that the session's pid 1 has adopted, after its pid, as the host sees it, went to `ask`.

    A child of this process would not do: once orphaned it goes to a reaper of the host, and CRIU, which follows pid 1's
    descendants, dumps the session without it and says nothing. The child in between is inside, so its orphan stays
    inside. Only the kernel knows the orphan's pid out here: it puts it on a message (unix(7), SCM_CREDENTIALS).
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    between = os.fork()
    if between:
        theirs.close()
        os.waitpid(between, 0)
        _content, messages, _flags, _address = ours.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
        if messages:
            os.write(ask, f"pid {_CREDENTIALS.unpack(messages[0][2])[0]}".encode())
            ours.send(b".")
        os._exit(0)
    if os.fork():
        os._exit(0)
    ours.close()
    theirs.send(b".")
    theirs.recv(1)
    theirs.close()


def _give_stdio(spec: EnterSpec, stdio: list[int], report: int) -> None:
    os.dup2(report, REPORT_FD, inheritable=False)
    if spec.tty:
        os.closerange(MASTER_FD, REPORT_FD)
        open_terminal(spec.rows, spec.cols, spec.identity.uid)
        ptys.take_as_controlling(0)
    else:
        high = [os.dup(fd) for fd in stdio]
        for place, fd in enumerate(high):
            os.dup2(fd, place)
        null = os.open("/dev/null", os.O_RDONLY)
        if os.fstat(0).st_rdev == os.fstat(null).st_rdev:  # the host's: CRIU refuses a file from outside the session
            os.dup2(null, 0)
        os.closerange(3, REPORT_FD)
    os.closerange(REPORT_FD + 1, 4096)
