"""State of processes that CRIU's images lack: settings, which a restore makes again, and what copies lose.

All is read shortly before the freeze, so that it does not lengthen the pause. The wall-clock timers are the exception:
CRIU's images have the time that was left, from which the moment follows.
"""

import contextlib
import errno
import functools
import os
import re
import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from waypoint.linux.calls import libc, machine
from waypoint.linux.net import socket_options, sockets
from waypoint.linux.net.socket_options import Group
from waypoint.linux.tasks import kcmp, namespaces, open_files, procfs, ptrace, settings, shared_memory
from waypoint.linux.tty import terminals
from waypoint.model.conditions import Degradation, degradation, some_of
from waypoint.model.records import LeftOut
from waypoint.processes import narrow_limits
from waypoint.processes.criu.comparison import WallTimer

_TIMER, _TIMER_LINK = "timer", "anon_inode:[timerfd]"
_EXCLUSIVE, _TERMINALS = "exclusive", "/dev/pts/"
_ATTRIBUTE = "attribute"  # of a removed file; followed by its name
_REMOVED, _IN_MEMORY = " (deleted)", "/memfd:"
_MOST_ATTRIBUTES = 1 << 16  # bytes of one file
_GROUP = "group"  # of multicast; followed by level and interface
_PERSONALITY_CALL = 135  # the number of personality(2) on x86-64
_TIMES = struct.Struct("=qqqq")  # struct itimerspec
_PEER = struct.Struct("=iII")  # struct ucred
_LEFT = re.compile(rb"it_value: \((\d+), (\d+)\)")
_INFO_BYTES = 400
_CLOSED = (errno.EBADF, errno.ENOTSOCK)  # of a descriptor that was closed, and perhaps used again, before the dump
_MOST_COMPARED = 10_000  # pairs of a socket and a multicast group, in all processes: 0.3 s
_MOST_SOCKETS = 4096  # in all processes: 0.2 s
_FAKEROOT = "faked"
_SECOND_NS = 1_000_000_000


class Found(NamedTuple):
    """`settings`: for `set_again`. `lost`: what copies lose. `timers`: when the timers of processes (timerfd) would
    expire if their clock is the time of day, in nanoseconds, by pid (as seen inside) and descriptor.
    """

    settings: list[LeftOut]
    lost: list[Degradation]
    timers: dict[tuple[int, int], int]


class _Groups:
    """The multicast groups that sockets may have joined. `skipped`: the processes with sockets that were not compared
    with them, since a session may make as many of both as it likes.
    """

    def __init__(self) -> None:
        self.skipped: dict[int, None] = {}
        self._found: dict[int, list[Group]] = {}  # by network namespace
        self._compared = 0

    def of(self, pid: int) -> list[Group]:
        network = os.stat(namespaces.path(pid, "net")).st_ino
        if network not in self._found:
            self._found[network] = socket_options.groups(pid)
        self._compared += len(self._found[network])
        if self._compared > _MOST_COMPARED:
            self.skipped[pid] = None
            return []
        return self._found[network]


class _Search:
    """What is found about the open files of the processes `pids`, each socket and terminal once."""

    def __init__(self, pids: Collection[int]) -> None:
        self.kept: list[LeftOut] = []
        self.lost: list[Degradation] = []
        self.timers: dict[tuple[int, int], int] = {}
        self._pids = pids
        self._groups = _Groups()
        self._sockets: dict[str, None] = {}
        self._terminals: dict[str, None] = {}
        self._unseen: dict[int, None] = {}  # the processes with sockets that were not looked at

    def look(self, pid: int, fd: int, path: str) -> None:
        """Raises OSError if the process has ended, or has closed the file."""
        if path == _TIMER_LINK:
            self.timers[procfs.inner_pid(pid), fd] = time.time_ns() + _left_ns(pid, fd)
        elif path.startswith("socket:"):
            self._look_at_socket(pid, fd, path)
        elif path.startswith(_TERMINALS) and path not in self._terminals:
            self._terminals[path] = None
            with open_files.taken(pid, fd) as terminal:
                if terminals.is_exclusive(terminal):
                    self.kept.append(LeftOut(procfs.inner_pid(pid), fd, _EXCLUSIVE, ""))
        elif path.startswith("/") and open_files.is_watched_folder(pid, fd):
            self.lost.append(degradation("folder-notices", _who(pid), path))
        elif path.endswith(_REMOVED) and not path.startswith(_IN_MEMORY):
            self._look_at_removed(pid, fd, path)

    def _look_at_removed(self, pid: int, fd: int, path: str) -> None:
        if procfs.position(pid, fd)[1] & os.O_TMPFILE == os.O_TMPFILE:
            self.lost.append(degradation("unnamed-file", _who(pid), os.path.dirname(path)))
        values = open_files.attributes(pid, fd)
        if sum(map(len, values.values())) > _MOST_ATTRIBUTES:
            self.lost.append(degradation("setting-lost", _who(pid, fd), "attributes of a removed file: too large"))
            return
        inner = procfs.inner_pid(pid)
        self.kept += [LeftOut(inner, fd, f"{_ATTRIBUTE} {name}", value.hex()) for name, value in values.items()]

    def _look_at_socket(self, pid: int, fd: int, path: str) -> None:
        if path in self._sockets:
            return
        if len(self._sockets) == _MOST_SOCKETS:
            self._unseen[pid] = None
            return
        self._sockets[path] = None
        with sockets.take(pid, fd) as sock:
            self.kept += _of_socket(pid, fd, sock, self._groups)
            self.lost += _lost_by_socket(pid, fd, sock, self._pids)

    def note_skipped(self) -> None:
        for skipped, what in ((self._groups.skipped, "multicast groups"), (self._unseen, "options of sockets")):
            for pid in skipped:
                with contextlib.suppress(OSError):
                    self.lost.append(degradation("setting-lost", _who(pid), f"{what}: the session has too many"))


def find(init: int, pids: Collection[int]) -> Found:
    """Look at the processes `pids` of a session, which run. `init`: its pid 1. Processes that have ended are skipped.

    Takes 0.1 ms for each process, 0.05 ms for each thread and socket, 0.01 ms for each other descriptor.
    """
    usual = settings.own()
    found = _Search(pids)
    has_semaphores = functools.cache(functools.partial(shared_memory.has_semaphores, init))
    for pid in pids:
        with contextlib.suppress(OSError):
            for tid, values in settings.differing(pid, procfs.threads(pid), usual).items():
                with contextlib.suppress(OSError):  # the thread has ended
                    inner = procfs.inner_pid(pid), procfs.inner_pid(tid)
                    found.kept += [LeftOut(*inner, name, value) for name, value in values.items()]
        with contextlib.suppress(OSError):
            found.lost += _lost_by(pid)
            if kcmp.undoes_semaphores(pid, init) and has_semaphores():
                found.lost.append(degradation("semaphore-undo", _who(pid)))
        with contextlib.suppress(OSError):
            for fd, path in procfs.open_files(pid).items():
                with contextlib.suppress(OSError):  # it was closed
                    found.look(pid, fd, path)
    found.note_skipped()
    with contextlib.suppress(OSError):
        if names := shared_memory.message_queues(init):
            found.lost.append(degradation("message-queues", some_of(sorted(names))))
    return Found(found.kept, found.lost, found.timers)


def wall_timers(timers: Iterable[WallTimer], now_ns: int, seen: Mapping[tuple[int, int], int]) -> list[LeftOut]:
    """Timers that expire at a time of day, whatever the age of the copy. `now_ns`: the time of day at the end of the
    dump. `seen`: `Found.timers`, which are exact, but may have changed before the dump.
    """
    found = []
    for one in timers:
        at, exact = now_ns + one.left_ns, seen.get((one.pid, one.fd), 0)
        at = exact if abs(at - exact) < _SECOND_NS else at
        found.append(LeftOut(one.pid, one.fd, _TIMER, f"{at} {one.interval_ns} {one.flags}"))
    return found


def set_again(kept: Collection[LeftOut], pids: Collection[int]) -> list[Degradation]:
    """Make the settings again in the restored processes `pids`, which are frozen, except those of `needs_calls`. Return
    what could not be set.
    """
    return _each([one for one in kept if one.name != settings.PERSONALITY], pids, _give)


def needs_calls(kept: Collection[LeftOut]) -> list[LeftOut]:
    """The settings that only a task itself can make."""
    return [one for one in kept if one.name == settings.PERSONALITY]


def call_again(kept: Collection[LeftOut], pids: Collection[int]) -> list[Degradation]:
    """Have the restored tasks, which are `stopped`, make the settings that only they can make. Return what could not be
    set.
    """
    return _each(kept, pids, _make_call)


def _each(kept: Collection[LeftOut], pids: Collection[int], work: Callable[[int, LeftOut], None]) -> list[Degradation]:
    if not kept:
        return []
    restored = {procfs.inner_pid(pid): pid for pid in pids}
    lost = []
    for one in kept:
        if one.pid not in restored:  # it had ended before the dump
            continue
        try:
            work(restored[one.pid], one)
        except ProcessLookupError:  # the thread had ended before the dump
            continue
        except (OSError, KeyError, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno in _CLOSED:
                continue
            reason = (error.strerror if isinstance(error, OSError) else None) or repr(error)
            who = f"{procfs.stat(restored[one.pid]).name} (pid {one.pid})"
            lost.append(degradation("setting-lost", who, f"{one.name}: {reason}"))
    return lost


def _give(pid: int, one: LeftOut) -> None:
    if one.name in settings.SETTINGS:
        settings.give(_thread(pid, one.number), one.name, one.value)
    elif one.name == narrow_limits.NAME:
        narrow_limits.give(pid, one.number, one.value)
    elif one.name == _TIMER:
        at, interval, flags = map(int, one.value.split())
        value = _TIMES.pack(*divmod(interval, _SECOND_NS), *divmod(at, _SECOND_NS))
        with open_files.taken(pid, one.number) as timer:
            libc.call("timerfd_settime", timer, flags, value, None)
    elif one.name == _EXCLUSIVE:
        with open_files.taken(pid, one.number) as terminal:
            terminals.make_exclusive(terminal)
    elif one.name.startswith(_ATTRIBUTE):
        open_files.give_attribute(pid, one.number, one.name.partition(" ")[2], bytes.fromhex(one.value))
    else:
        with sockets.take(pid, one.number) as sock:
            kind, _, where = one.name.partition(" ")
            if kind == _GROUP:
                level, _, device = where.partition(" ")
                socket_options.join(sock, int(level), device, bytes.fromhex(one.value))
            else:
                socket_options.give(sock, one.name, bytes.fromhex(one.value))


def _make_call(pid: int, one: LeftOut) -> None:
    if machine.architecture() != "x86_64":
        raise OSError(0, "on this machine, a process cannot be made to set it")
    tid = _thread(pid, one.number)
    result = ptrace.system_call(tid, ptrace.code_place(tid), _PERSONALITY_CALL, int(one.value, 16))
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def _thread(pid: int, inner: int) -> int:
    if procfs.inner_pid(pid) == inner:
        return pid
    for tid in procfs.threads(pid):
        if procfs.inner_pid(tid) == inner:
            return tid
    raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))


def _left_ns(pid: int, fd: int) -> int:
    """How long the timer runs until it expires."""
    match = _LEFT.search(procfs.fdinfo(pid, fd, _INFO_BYTES))
    return int(match[1]) * _SECOND_NS + int(match[2]) if match else 0


def _who(pid: int, fd: int = -1) -> str:
    return f"{procfs.stat(pid).name} (pid {procfs.inner_pid(pid)}{f', fd {fd}' if fd >= 0 else ''})"


def _of_socket(pid: int, fd: int, sock: socket.socket, groups: _Groups) -> Iterator[LeftOut]:
    values = list(socket_options.differing(sock).items())
    if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type != socket.SOCK_STREAM:
        for group in groups.of(pid):
            if kept := socket_options.filter_of(sock, group):
                values.append((f"{_GROUP} {group.level} {group.device}", kept))
    if values:
        inner = procfs.inner_pid(pid)
        yield from (LeftOut(inner, fd, name, value.hex()) for name, value in values)


def _lost_by_socket(pid: int, fd: int, sock: socket.socket, pids: Collection[int]) -> Iterator[Degradation]:
    if sock.family == socket.AF_UNIX and sock.type != socket.SOCK_DGRAM and _has_other_peer(sock, pids):
        yield degradation("peer-pid", _who(pid, fd))
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLPRI)
    for _, events in poll.poll(0):
        who = _who(pid, fd)
        if events & select.POLLERR:
            yield degradation("pending-error", who)
        if events & select.POLLPRI:
            yield degradation("urgent-data", who)
        is_named = (sock.family, sock.type) == (socket.AF_UNIX, socket.SOCK_DGRAM) and bool(sock.getsockname())
        if is_named and events & select.POLLIN and sockets.has_other_senders(pid, os.fstat(sock.fileno()).st_ino):
            yield degradation("datagram-sender", who)


def _has_other_peer(sock: socket.socket, pids: Collection[int]) -> bool:
    """Whether the process that the kernel names as the other end of a connection (SO_PEERCRED) is another one in a
    copy: there, the process that has the client's end makes the connection.
    """
    try:
        is_client = bool(sock.getpeername())
    except OSError:  # it is not connected
        return False
    peer = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0]
    return is_client or peer not in pids


def _lost_by(pid: int) -> Iterator[Degradation]:
    name = procfs.stat(pid).name
    who = f"{name} (pid {procfs.inner_pid(pid)})"
    if name.startswith(_FAKEROOT):
        yield degradation("device-numbers", who)
    if procfs.has_waiting_timer(pid):
        yield degradation("timer-overruns", who)
    if procfs.has_timer_of_day(pid):
        yield degradation("timer-of-day", who)
    if (limit := resource.prlimit(pid, resource.RLIMIT_CPU)[0]) != resource.RLIM_INFINITY:
        yield degradation("processor-limit", who, str(limit))
