"""The guard of a CRIU that dumps: if CRIU is killed, the session does not run before all is set back.

When a tracer dies, the kernel lets its tasks run at once, wherever they are: in code of CRIU's, with registers and
signal masks of CRIU's, with connections in repair mode. So the guard traces CRIU itself. A task that is traced stops
before it ends (PTRACE_EVENT_EXIT), even if SIGKILL ends it, while it still traces its own tasks. The guard then freezes
the session, lets CRIU end, and sets back the tasks in which CRIU was at work (processes/criu/remains.py). They stay
frozen for whoever owns the session: the daemon, or the next one.

The guard is a task of the launcher's, CRIU is its child. Tracing costs CRIU nothing while no signal is sent to it, so
CRIU is started with SIGCHLD blocked, which would come with each stop of each task. (CRIU uses that only to notice a
crash of its code in a task; without, that is noticed as CRIU hanging.)
"""

import contextlib
import os
import signal
import traceback
from typing import NamedTuple, NoReturn

from waypoint.linux.tasks import namespaces, ptrace

NAME = "wp-guard"
"""The process name of a guard. Who kills a CRIU with all its helpers kills the guard last."""

# The priority of CRIU and its guard (nice(2)). The less both wait for a processor, the more seldom a task reaches the
# `int3` of a dead CRIU.
_AHEAD = 15


class CriuGuard(NamedTuple):
    """The guard of this process: a pidfd of it, and the descriptor that is read to wait for it."""

    pidfd: int
    gate: int

    def wait_ready(self) -> None:
        """Wait until the guard traces this process (or may not), and prepare this process for that. To be called when
        only execve is left to do, because the guard gets ready beside.
        """
        os.read(self.gate, 1)
        os.close(self.gate)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])


def fork_guarded(session: str) -> CriuGuard:
    """Fork the process that is to become CRIU; returns in it. The caller becomes the guard and never returns.
    `session`: the cgroup2 group of the session that is to be dumped.
    """
    with contextlib.suppress(PermissionError):  # without CAP_SYS_NICE
        os.nice(-_AHEAD)
    gate, opener = os.pipe()
    own = os.pidfd_open(os.getpid())
    child = os.fork()
    if child:
        _guard(child, session, opener)
    os.close(opener)
    return CriuGuard(own, gate)


def _guard(criu: int, session: str, opener: int) -> NoReturn:
    try:
        namespaces.set_process_name(NAME)
        with contextlib.suppress(PermissionError):  # a security module forbids it: CRIU works unguarded
            ptrace.seize(criu, tell_exit=True)
        os.closerange(3, opener)
        os.closerange(opener + 1, 4096)
        with open(f"{session}/cgroup.freeze", "r+b", buffering=0) as freeze:
            os.close(opener)
            _watch(criu, session, freeze.fileno())
    except BaseException:  # never back into the launcher's code; without a guard CRIU works on
        os.write(2, traceback.format_exc().encode())
    os._exit(0)


def _watch(criu: int, session: str, freeze: int) -> None:
    """Trace CRIU until it has ended. `freeze`: a descriptor of the session's cgroup.freeze."""
    notes = None
    while (stop := ptrace.wait(criu)) is not None:
        if stop.is_exit and os.WIFSIGNALED(ptrace.exit_status(criu)):
            with contextlib.suppress(OSError):  # the session has ended, and its group is gone
                notes = _hold(criu, session, freeze)
        ptrace.go_on(criu, stop)
    if notes is not None:
        from waypoint.processes.criu import remains

        remains.set_back(session, notes)


def _hold(criu: int, session: str, freeze: int) -> bytes | None:
    """Freeze the session if CRIU, which is about to end, still traces tasks of the session. Returns CRIU's notes of
    these tasks, None if there are none.

    The session is frozen before it is known whether CRIU traces tasks, because a task that CRIU has set going must not
    reach the `int3`. While a guard lives, nobody else begins to freeze the session.
    """
    was_frozen = os.pread(freeze, 1, 0) == b"1"
    if not was_frozen:  # else whoever has frozen the session may be about to thaw it
        os.pwrite(freeze, b"1", 0)
    from waypoint.processes.criu import remains  # loaded by few tasks only, see launcher.py

    if remains.is_traced_by(criu, session):
        remains.keep_pipes(criu, session)
        return remains.memory(criu)
    if not was_frozen:
        os.pwrite(freeze, b"0", 0)
    return None
