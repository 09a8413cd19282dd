"""Starting one more process in a live session."""

import os
import resource
import socket
import struct

from waypoint.launch.program import MASTER_FD, execute, open_terminal, take_on
from waypoint.launch.spec import EnterSpec
from waypoint.launch.supervise import REPORT_FD, LaunchResult, hand_over, supervise
from waypoint.linux.tasks import namespaces
from waypoint.linux.tasks.clone import wait_entered
from waypoint.linux.tty import ptys

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def enter(spec: EnterSpec, stdio: list[int]) -> LaunchResult:
    """Start `spec.argv` in the session with init `spec.pid`. Return when the program runs or a step has failed.

    The process is in the session's cgroup and a child of the session's pid 1, so that it is frozen and dumped with the
    session. The result contains a pidfd of the process and, with `spec.tty`, the master of its terminal.
    """

    def outer(report: int, ask: int, answer: int) -> None:
        os.close(answer)
        namespaces.hide_from_peers()
        namespaces.join_new_session_keyring()  # not the keyring of the user who started the daemon
        pidfd = os.pidfd_open(spec.pid)
        # Apply the session's limit on the number of processes, which its first process has.
        resource.setrlimit(resource.RLIMIT_NPROC, resource.prlimit(spec.pid, resource.RLIMIT_NPROC))
        kinds = namespaces.CLONE_NEWUSER | namespaces.CLONE_NEWNS | namespaces.CLONE_NEWPID | namespaces.CLONE_NEWIPC
        kinds |= namespaces.CLONE_NEWUTS | namespaces.CLONE_NEWNET
        namespaces.setns(pidfd, kinds)
        # The time namespace last: setns(2) requires capabilities in the user namespace that owns it.
        namespaces.setns(pidfd, namespaces.CLONE_NEWTIME)
        namespaces.become_root()
        wait_entered()
        _go_to_pid_1(ask)
        os.setsid()
        _give_stdio(spec, stdio, report)
        hand_over([MASTER_FD] if spec.tty else [], take_on(spec.identity, spec.cwd, spec.seccomp))
        execute(spec.argv, spec.env)

    return supervise(outer, spec.cgroup, patience_s=spec.patience_s)


def _go_to_pid_1(ask: int) -> None:
    """Fork twice and return only in the grandchild, which the session's pid 1 has adopted. Write the host's pid of the
    grandchild to `ask`.

    CRIU dumps the descendants of the session's pid 1. A child of this process would not become one: at the end of this
    process a reaper of the host would adopt it. The process in between is inside the session's pid namespace, so the
    session's pid 1 adopts its orphan. The grandchild sends a message, to which the kernel attaches the sender's pid as
    the host sees it (unix(7), SCM_CREDENTIALS).
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
    if not theirs.recv(1):  # the launcher has given up
        os._exit(1)
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
        null = os.open("/dev/null", os.O_RDONLY | os.O_NONBLOCK)  # a FIFO that the session put there must not block
        os.set_blocking(null, True)
        # Replace the host's /dev/null with the session's: CRIU refuses files from outside the session.
        if os.fstat(0).st_rdev == os.fstat(null).st_rdev:
            os.dup2(null, 0)
        os.closerange(3, REPORT_FD)
    os.closerange(REPORT_FD + 1, 4096)
