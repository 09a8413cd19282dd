"""The launcher: the small process that forks sessions and CRIU, because the daemon is large and has threads.

The launcher is a `python -I -S` that calls `main`. It receives requests on a SOCK_SEQPACKET socket. A request is a
LaunchSpec in JSON together with a socket for the answer and up to five more descriptors (spec.py). The launcher carries
out each request in a forked task, so that requests run in parallel. It ends when the daemon closes its side of the
socket. The launcher is also the reaper of the sessions that it has started.

Each imported module makes every fork slower; `threading` alone makes a fork take 50 % longer. So a module that only
some tasks need is imported in these tasks.
"""

import contextlib
import gc
import os
import signal
import socket
from typing import NoReturn

import msgspec

from waypoint.launch.criu import become_beside, become_into, become_template, stand_by
from waypoint.launch.enter import enter
from waypoint.launch.packets import answer, failure, receive
from waypoint.launch.program import set_resource_limits
from waypoint.launch.spec import CriuAhead, CriuBeside, CriuInto, CriuTemplate, LaunchAnswer, LaunchSpec, StartSpec
from waypoint.launch.start import start
from waypoint.launch.walls import refused
from waypoint.linux.calls import abilities
from waypoint.linux.tasks import cgroups, namespaces
from waypoint.linux.tasks.clone import fork_into, leave_killed_group


def serve(control: socket.socket) -> None:
    """Answer requests on `control` until the daemon closes it."""
    namespaces.set_process_name("wp-launcher")
    namespaces.become_subreaper()
    leave_killed_group()
    refused.prepare()
    abilities.own()  # later, in a session's namespace, the answer would be another
    set_resource_limits()
    # The first process of a session becomes the launcher's child when its task has ended. The kernel reaps it, because
    # the launcher does not read its exit status.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Garbage collection in a child would write to objects shared with the launcher, and so copy their pages.
    gc.freeze()
    gc.disable()
    decoder = msgspec.json.Decoder(LaunchSpec)
    while True:
        request, fds = receive(control)
        if not request:
            return
        try:
            spec = decoder.decode(request)
            is_task = fork_for(spec) == 0
        except Exception as error:  # any error: the daemon waits for an answer
            answer(fds[0], failure(error), [])
        else:
            if is_task:
                control.close()
                carry_out(spec, fds)
        for fd in fds:
            os.close(fd)


def fork_for(spec: LaunchSpec) -> int:
    """Fork the task for `spec`, and return the result as os.fork() does. A task that becomes CRIU is forked into the
    cgroup for it.
    """
    match spec:
        case CriuBeside() | CriuTemplate() | CriuAhead():
            return fork_into(spec.cgroup)
        case CriuInto():
            return fork_into(spec.mounts.cgroup)
        case _:
            return os.fork()


def carry_out(spec: LaunchSpec, fds: list[int]) -> NoReturn:
    """Carry out `spec` in this task and answer on the first of `fds`; the others belong to `spec` (spec.py)."""

    def announce(pid: int) -> None:
        answer(fds[0], LaunchAnswer(pid=pid), [os.pidfd_open(pid)])

    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        match spec:
            case StartSpec():
                answer(fds[0], *start(spec, fds[1:]))
            case CriuBeside():
                become_beside(spec, fds[1:], announce)
            case CriuInto():
                become_into(spec, fds[1:], announce)
            case CriuTemplate():
                become_template(spec, fds[1:], announce)
            case CriuAhead():
                stand_by(spec, fds[1:], announce)
            case _:
                answer(fds[0], *enter(spec, fds[1:]))
    except BaseException as error:  # a forked child must not return into its parent's code
        with contextlib.suppress(OSError):  # the daemon has died
            answer(fds[0], failure(error), [])
        os._exit(1)
    os._exit(0)


def main(control_fd: int, groups: list[str], *, merges: bool) -> None:
    """Run the launcher. `groups`: cgroups of version 1 hierarchies for this process and all its children. The launcher
    enters them once, because entering them in each task would take milliseconds. `merges`: whether the kernel may merge
    equal memory of the sessions.
    """
    if merges:
        with contextlib.suppress(OSError):  # `doctor` reports a kernel that cannot
            namespaces.merge_memory()
    for each in groups:
        cgroups.enter(each)
    serve(socket.socket(fileno=control_fd))
