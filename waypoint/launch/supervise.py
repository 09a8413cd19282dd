"""Start a process inside a cgroup and namespaces, through a forked child, and report its pid or the failed step.

The launcher's task that calls `supervise` stays outside the namespaces: it writes the id maps, which a process inside
is not allowed to write, and receives the child's report.
"""

import contextlib
import errno
import functools
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import NoReturn

from waypoint.launch.spec import LaunchAnswer
from waypoint.linux.tasks import cgroups, namespaces, procfs, signals
from waypoint.linux.tasks.clone import fork_into

REPORT_FD = (
    90  # the inner child's descriptor for its report: above the descriptors of stdio and terminal; close-on-exec
)
_HANDED_OVER = b"+"

LaunchResult = tuple[LaunchAnswer, list[int]]
"""The answer to a request, and the received descriptors, which are close-on-exec and which the caller must close."""


def supervise(
    outer: Callable[[int, int, int], None], cgroup: str, id_map: str = "", patience_s: float | None = None
) -> LaunchResult:
    """Run `outer` in a forked child in `cgroup`. Wait until the child of that child has executed a program, or a step
    has failed.

    `outer(report, ask, answer)` takes three descriptors. It reports a failure on `report`. On `ask` it writes `map` to
    request the id maps, and `pid N`, the host's pid of its child. On `answer` it reads the reply to `map`. `id_map`:
    the lines of the id maps. `patience_s`: after this time the children are killed; a live session may stop them as
    soon as they are in its namespaces. After a failure the result describes the error and has no descriptors.
    """
    until = None if patience_s is None else time.monotonic() + patience_s
    report_r, report_w = (end.detach() for end in socket.socketpair())
    report_inode = os.fstat(report_w).st_ino
    ask_r, ask_w = os.pipe()
    answer_r, answer_w = os.pipe()
    child = fork_into(cgroup)
    if child == 0:
        for fd in (report_r, ask_r, answer_w):
            os.close(fd)
        _run_child(outer, report_w, ask_w, answer_r)
    for fd in (report_w, ask_w, answer_r):
        os.close(fd)
    pid, handed_over, entered = 0, list[int](), 0
    try:
        said = _read(ask_r, until)
        if said == b"map":
            namespaces.map_ids(child, id_map)
            os.write(answer_w, b".")
            said = _read(ask_r, until)
        if said.startswith(b"pid "):
            pid = int(said[4:])
            cgroups.note_first(cgroup, pid)
        failed, entered = _read_all(report_r, handed_over, until)  # until the end of file: execve closes the last copy
    except TimeoutError as error:
        failed = f"{error.errno}||{error.strerror}".encode()
        _kill(child, report_inode, cgroup)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    for fd in (report_r, ask_r, answer_w):
        os.close(fd)
    if not failed and pid:
        return LaunchAnswer(pid=pid, entered=entered), handed_over
    for fd in handed_over:
        os.close(fd)
    return _failure(failed.decode(errors="replace")), []


def _failure(text: str) -> LaunchAnswer:
    number, _, rest = text.partition("|")
    path, _, words = rest.partition("|")
    return LaunchAnswer(errno=int(number or 0), path=path, error=words or "the child ended without a message")


def _run_child(work: Callable[[int, int, int], None], report: int, ask: int, answer: int) -> NoReturn:
    """Run `work` and write any failure to `report`. Never returns into the parent's code."""
    try:
        os.set_inheritable(report, False)  # noqa: FBT003 - the call takes no keywords
        work(report, ask, answer)
    except OSError as error:
        path = os.fsdecode(error.filename) if error.filename else ""
        _report(report, f"{error.errno or 0}|{path}|{error.strerror or error}")
    except BaseException as error:
        _report(report, f"0||{type(error).__name__}: {error}")
    os._exit(1)


def _report(report: int, text: str) -> None:
    """Write to REPORT_FD, if the inner child has moved its report there, else to `report`."""
    for fd in (REPORT_FD, report):
        with contextlib.suppress(OSError):
            os.write(fd, text.encode(errors="replace"))
            return


def _kill(child: int, report: int, cgroup: str) -> None:
    """Kill the child, which was not reaped yet, and its descendants in the session: the processes that have the socket
    with the inode `report` open.
    """
    os.kill(child, signal.SIGKILL)
    members = functools.partial(cgroups.members, cgroup)
    for pid in members():
        with contextlib.suppress(ProcessLookupError):
            if f"socket:[{report}]" in procfs.open_files(pid).values():
                signals.send(pid, signal.SIGKILL, members)


def _wait(fd: int, until: float | None) -> None:
    """Return when `fd` is readable. Raises TimeoutError at the time.monotonic() `until`."""
    if until is not None and not select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
        raise TimeoutError(errno.ETIMEDOUT, "it did not start in time: a process of the session may have stopped it")


def _read(fd: int, until: float | None) -> bytes:
    _wait(fd, until)
    return os.read(fd, 64)


def _read_all(report: int, descriptors: list[int], until: float | None) -> tuple[bytes, int]:
    """Return the text of the failure (empty without one) and the index of the entered folder. Append the received
    descriptors to `descriptors`. Raises TimeoutError at the time.monotonic() `until`.
    """
    text, entered = b"", 0
    with socket.socket(fileno=os.dup(report)) as sock:
        while True:
            _wait(report, until)
            chunk, received, _flags, _address = socket.recv_fds(sock, 4096, 4, socket.MSG_CMSG_CLOEXEC)
            descriptors += received
            if not chunk:
                return text, entered
            if chunk.startswith(_HANDED_OVER):  # the kernel does not merge it with other text, since it has descriptors
                entered, chunk = chunk[1], chunk[2:]
            text += chunk


def hand_over(descriptors: list[int], entered: int) -> None:
    """Send `supervise` a pidfd of this process, then `descriptors`, and the index of the entered folder.

    This process sends them itself before execve, because it may end before another process could open them by its pid.
    """
    with socket.socket(fileno=os.dup(REPORT_FD)) as report:
        own = os.pidfd_open(os.getpid())
        socket.send_fds(report, [_HANDED_OVER + bytes([entered])], [own, *descriptors])
        os.close(own)
