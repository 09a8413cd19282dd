"""A process is born in a cgroup by a forked child's steps; whoever asked learns its pid, or which step failed.

The *task* that asks stays outside: it writes the id maps (only a process outside may) and collects what is reported.
"""

import contextlib
import os
import socket
from collections.abc import Callable
from typing import NoReturn

from waypoint.linux import namespaces
from waypoint.linux.clone import fork_into
from waypoint.session.launch.spec import Launched

REPORT_FD = 90  # moved out of the way of 0 to 3, closed by exec
_HANDED_OVER = b"+"

Answer = tuple[Launched, list[int]]
"""What became of it, and descriptors of what runs: the caller's, close-on-exec."""


def supervise(outer: Callable[[int, int, int], None], cgroup: str) -> Answer:
    """Fork `outer`, write its id maps when it asks, wait until its child has executed a program or something failed."""
    report_r, report_w = (end.detach() for end in socket.socketpair())
    ask_r, ask_w = os.pipe()
    answer_r, answer_w = os.pipe()
    child = fork_into(cgroup)
    if child == 0:
        for fd in (report_r, ask_r, answer_w):
            os.close(fd)
        _run_child(outer, report_w, ask_w, answer_r)
    for fd in (report_w, ask_w, answer_r):
        os.close(fd)
    pid = 0
    said = os.read(ask_r, 64)
    if said == b"map":
        namespaces.map_identity(child)
        os.write(answer_w, b".")
        said = os.read(ask_r, 64)
    if said.startswith(b"pid "):
        pid = int(said[4:])
    failed, handed_over = _read_all(report_r)  # end of file: exec closed the last copy
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    for fd in (report_r, ask_r, answer_w):
        os.close(fd)
    if failed or not pid:
        for fd in handed_over:
            os.close(fd)
        number, _, rest = failed.decode(errors="replace").partition("|")
        path, _, words = rest.partition("|")
        return Launched(errno=int(number or 0), path=path, error=words or "the child died without a word"), []
    return Launched(pid=pid), handed_over


def _run_child(work: Callable[[int, int, int], None], report: int, ask: int, answer: int) -> NoReturn:
    """Run `work`; whatever goes wrong is written to `report`. Never returns into the caller's stack."""
    try:
        os.set_inheritable(report, False)  # noqa: FBT003 - the call takes no keywords
        work(report, ask, answer)
    except OSError as error:
        path = os.fsdecode(error.filename) if error.filename else ""
        _report(report, f"{error.errno or 0}|{path}|{error.strerror or error}")
    except BaseException as error:  # a forked child must not return into its parent's code
        _report(report, f"0||{type(error).__name__}: {error}")
    os._exit(1)


def _report(report: int, text: str) -> None:
    """The report's fd moves to REPORT_FD in the inner child: write to whichever is open."""
    for fd in (REPORT_FD, report):
        with contextlib.suppress(OSError):
            os.write(fd, text.encode(errors="replace"))
            return


def _read_all(report: int) -> tuple[bytes, list[int]]:
    """The words of failure, and the descriptors that were handed over."""
    text, descriptors = b"", []
    with socket.socket(fileno=os.dup(report)) as sock:
        while True:
            chunk, received, _flags, _address = socket.recv_fds(sock, 4096, 4, socket.MSG_CMSG_CLOEXEC)
            descriptors += received
            if not chunk:
                return text, descriptors
            text += chunk.removeprefix(_HANDED_OVER)


def hand_over(descriptors: list[int]) -> None:
    """Give them to whoever supervises, behind one of this process itself.

    Now, because the process may end before anybody could get hold of it, and of what it has open, by its pid.
    """
    with socket.socket(fileno=os.dup(REPORT_FD)) as report:
        own = os.pidfd_open(os.getpid())
        socket.send_fds(report, [_HANDED_OVER], [own, *descriptors])
        os.close(own)
