"""Comparing restored processes, which have not run yet, with the images from which CRIU has restored them.

Formats, in CRIU's source: images/{pstree,core,fdinfo,regfile,sk-unix,remap-file-path,file-lock}.proto and
criu/include/magic.h.
"""

import contextlib
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from waypoint.linux.tasks import procfs
from waypoint.model.paths import is_below
from waypoint.processes.criu.ghosts import REMAP, REMAPS, REMAPS_MAGIC
from waypoint.processes.criu.image_files import (
    FILES,
    FILES_MAGIC,
    LOCKS,
    LOCKS_MAGIC,
    PSTREE,
    PSTREE_MAGIC,
    read_messages,
)
from waypoint.processes.criu.messages import LOCK_ENTRY, Field, Message, Value, decode

_FDINFO_MAGIC, _IDS_MAGIC, _CORE_MAGIC = 0x56213732, 0x54432030, 0x55053847

_PROCESS = Message(
    {
        **{name: Field(number, "uint32") for number, name in enumerate(("pid", "ppid", "pgid", "sid"), 1)},
        "threads": Field(5, "uint32", repeated=True),
    }
)
_CORE = Message({"tc": Field(3, Message({"comm": Field(6, "string")}))})
_IDS = Message({"files": Field(2, "uint32")})
_DESCRIPTOR = Message({name: Field(number, "uint32") for number, name in enumerate(("id", "flags", "type", "fd"), 1)})
_REG = Message(
    {
        "id": Field(1, "uint32"),
        "flags": Field(2, "uint32"),
        "pos": Field(3, "uint64"),
        "name": Field(6, "string"),
        "size": Field(8, "uint64"),
        "ext": Field(9, "bool"),
        "mode": Field(10, "uint32"),
    }
)
_SOCKET = Message({"name": Field(11, "string"), "name_dir": Field(14, "string")})
_FILE = Message({"id": Field(2, "uint32"), "reg": Field(3, _REG), "socket": Field(16, _SOCKET)})
_TIMER = Message(
    {
        "clock": Field(4, "uint32"),
        "ticks": Field(5, "uint64"),
        "flags": Field(6, "uint32"),
        **{name: Field(number, "uint64") for number, name in enumerate(("sec", "nsec", "isec", "insec"), 7)},
    }
)
_WITH_TIMER = Message({"id": Field(2, "uint32"), "timer": Field(12, _TIMER)})
_WALL_CLOCKS = (time.CLOCK_REALTIME, 8)  # 8: CLOCK_REALTIME_ALARM
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME

_REGULAR = 1
# By CRIU's number of the kind of file: its name here, and the beginnings of the link /proc/PID/fd/N to such a file.
_KINDS: Mapping[int, tuple[str, tuple[str, ...]]] = {
    _REGULAR: ("file", ("/",)),
    2: ("pipe", ("pipe:",)),
    3: ("FIFO", ("/",)),
    4: ("TCP or UDP socket", ("socket:",)),
    5: ("Unix socket", ("socket:",)),
    6: ("eventfd", ("anon_inode:[eventfd",)),
    7: ("epoll", ("anon_inode:[eventpoll",)),
    8: ("inotify", ("anon_inode:inotify", "anon_inode:[inotify")),
    9: ("signalfd", ("anon_inode:[signalfd",)),
    10: ("packet socket", ("socket:",)),
    11: ("terminal", ("/",)),
    12: ("fanotify", ("anon_inode:[fanotify",)),
    13: ("netlink socket", ("socket:",)),
    17: ("timerfd", ("anon_inode:[timerfd",)),
    18: ("memfd", ("/memfd:",)),
    20: ("pidfd", ("anon_inode:[pidfd", "pidfd:")),
}
_LEASE = 8  # FL_LEASE in criu/include/file-lock.h
_MODE = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK


class OpenedFile(NamedTuple):
    """A regular file that is open or mapped. `size`: which a restore requires; None: any."""

    path: str
    size: int | None


class Difference(NamedTuple):
    """A fact about the process `pid` (as seen inside) that differs. `fd`: of a descriptor; -1: the process itself."""

    pid: int
    fd: int
    captured: str
    restored: str


class WallTimer(NamedTuple):
    """A timerfd that expires at a time of day. `flags`: of timerfd_settime(2)."""

    pid: int
    fd: int
    left_ns: int
    interval_ns: int
    flags: int


def differences(images_fd: int, pids: Collection[int]) -> list[Difference]:
    """The differences between the images and the restored processes `pids` (as the host sees them), which are frozen:
    ids, names and threads of processes; kind, path, position and mode of their descriptors.

    Raises OSError; ValueError if an image is malformed.
    """
    pids = {*pids, *(child for pid in pids for child in procfs.children(pid))}  # no cgroup lists zombies
    inner = {pid: procfs.inner_pid(pid) for pid in pids}
    restored = {number: pid for pid, number in inner.items()}
    files = {_number(file["id"]): file for file in _files(images_fd)}
    moved = {_number(decode(REMAP, one).get("orig_id")) for one in read_messages(images_fd, REMAPS, REMAPS_MAGIC)}
    found: list[Difference] = []
    captured = [decode(_PROCESS, message) for message in read_messages(images_fd, PSTREE, PSTREE_MAGIC)]
    for process in captured:
        number = _number(process["pid"])
        pid = restored.pop(number, 0)
        name = _name(images_fd, number)
        if not pid:
            found.append(Difference(number, -1, f"process {name}", "missing"))
            continue
        found += _of_process(process, name, pid, inner)
        links = procfs.open_files(pid)
        for entry in _descriptors(images_fd, number):
            is_moved = _number(entry["id"]) in moved
            file = {} if is_moved else files.get(_number(entry["id"]), {})
            found += _of_descriptor(number, pid, entry, file, links.get(_number(entry["fd"])))
    found += [Difference(number, -1, "no process", procfs.stat(pid).name) for number, pid in restored.items()]
    return found


def opened_files(images_fd: int) -> Iterator[OpenedFile]:
    """The regular files that have a name. Raises OSError; ValueError if an image is malformed."""
    moved = {_number(decode(REMAP, one).get("orig_id")) for one in read_messages(images_fd, REMAPS, REMAPS_MAGIC)}
    for file in _files(images_fd):
        reg = file.get("reg")
        if isinstance(reg, dict) and not reg.get("ext") and _number(reg.get("id")) not in moved:
            mode, size = _number(reg.get("mode")), reg.get("size")
            if stat.S_ISREG(mode):
                yield OpenedFile(str(reg["name"]), size if isinstance(size, int) else None)


def wall_timers(images_fd: int) -> Iterator[WallTimer]:
    """The timers that expire at a time of day, and have not yet. Raises OSError; ValueError if an image is
    malformed.
    """
    found: dict[int, tuple[int, int, int]] = {}
    for message in read_messages(images_fd, FILES, FILES_MAGIC):
        entry = decode(_WITH_TIMER, message)
        if isinstance(one := entry.get("timer"), dict):
            left, interval = (
                _number(one[a]) * 10**9 + _number(one[b]) for a, b in (("sec", "nsec"), ("isec", "insec"))
            )
            if left and one["clock"] in _WALL_CLOCKS and _number(one["flags"]) & _ABSOLUTE and not one["ticks"]:
                found[_number(entry["id"])] = left, interval, _number(one["flags"])
    for message in read_messages(images_fd, PSTREE, PSTREE_MAGIC) if found else ():
        pid = _number(decode(_PROCESS, message)["pid"])
        for descriptor in _descriptors(images_fd, pid):
            if timer := found.pop(_number(descriptor["id"]), None):
                yield WallTimer(pid, _number(descriptor["fd"]), *timer)


def changed_outside(images_fd: int, folders: Collection[str]) -> list[str]:
    """The paths below `folders` (in the session) whose files a restore of the images changes: Unix sockets and removed
    files, which it makes again, FIFOs, and files with a lease (F_SETLEASE), which it breaks. Raises OSError; ValueError
    if an image is malformed.
    """
    changed = {_number(decode(REMAP, one).get("orig_id")) for one in read_messages(images_fd, REMAPS, REMAPS_MAGIC)}
    for lock in (decode(LOCK_ENTRY, one) for one in read_messages(images_fd, LOCKS, LOCKS_MAGIC)):
        if lock.get("flag") == _LEASE:
            entries = _descriptors(images_fd, _number(lock.get("pid")))
            changed |= {_number(entry["id"]) for entry in entries if entry["fd"] == lock.get("fd")}
    paths = set[str]()
    for file in _files(images_fd):
        reg, sock = file.get("reg"), file.get("socket")
        if isinstance(reg, dict) and (_number(file["id"]) in changed or stat.S_ISFIFO(_number(reg.get("mode")))):
            paths.add(str(reg["name"]))
        if isinstance(sock, dict):
            bound = os.path.join(str(sock.get("name_dir") or ""), str(sock["name"]).rstrip("\0"))
            # As the program spelled it, perhaps //a/../b, but without links (moved_sockets.py).
            paths.add("/" + os.path.normpath(bound).lstrip("/"))
    return sorted(path for path in paths if any(is_below(path, folder) for folder in folders))


def _of_process(process: Mapping[str, Value], name: str, pid: int, inner: Mapping[int, int]) -> Iterator[Difference]:
    """The differences of the process `pid` itself. `inner`: the pids inside, by those on the host."""
    number, stat_of = _number(process["pid"]), procfs.stat(pid)
    threads = process.get("threads", [])
    facts = (
        ("name", name, stat_of.name),
        ("parent", _number(process["ppid"]), inner.get(stat_of.parent, 0)),
        ("process group", _number(process["pgid"]), inner.get(stat_of.group, _number(process["pgid"]))),
        ("session", _number(process["sid"]), inner.get(stat_of.session, _number(process["sid"]))),
        ("threads", len(threads) if isinstance(threads, list) else 0, len(procfs.threads(pid))),
    )
    for what, was, now in facts:
        if was != now:
            yield Difference(number, -1, f"{what} {was}", f"{what} {now}")


def _of_descriptor(
    number: int, pid: int, entry: Mapping[str, Value], file: Mapping[str, Value], link: str | None
) -> Iterator[Difference]:
    """The differences of one descriptor. `file`: its entry in files.img; empty if its path is not to be compared.
    `link`: of `procfs.open_files`; None if it is closed.
    """
    fd, kind = _number(entry["fd"]), _number(entry["type"])
    if kind not in _KINDS:
        return
    name, beginnings = _KINDS[kind]
    if link is None:
        yield Difference(number, fd, name, "closed")
        return
    if link and not link.startswith(beginnings):
        yield Difference(number, fd, name, link)
        return
    reg = file.get("reg")
    if kind != _REGULAR or not isinstance(reg, dict) or reg.get("ext"):
        return
    path, mode = str(reg["name"]), _number(reg.get("mode"))
    if link and link != path and not is_below(path, "/proc"):
        yield Difference(number, fd, f"file {path}", link)
    position, flags = procfs.position(pid, fd)
    if stat.S_ISREG(mode) and position != reg["pos"]:
        yield Difference(number, fd, f"{path} at byte {reg['pos']}", f"at byte {position}")
    if (flags ^ _number(reg["flags"])) & _MODE:
        yield Difference(number, fd, f"{path} with flags {_number(reg['flags']):#o}", f"flags {flags:#o}")


def _descriptors(images_fd: int, number: int) -> list[dict[str, Value]]:
    """The descriptors of the process with this pid; a zombie has none."""
    ids = read_messages(images_fd, f"ids-{number}.img", _IDS_MAGIC)
    if not ids:
        return []
    table = _number(decode(_IDS, ids[0])["files"])
    return [decode(_DESCRIPTOR, one) for one in read_messages(images_fd, f"fdinfo-{table}.img", _FDINFO_MAGIC)]


def _name(images_fd: int, number: int) -> str:
    """The name of the captured process, in the form of `procfs.stat`."""
    with contextlib.suppress(IndexError, KeyError):
        core = decode(_CORE, read_messages(images_fd, f"core-{number}.img", _CORE_MAGIC)[0])["tc"]
        if isinstance(core, dict):
            return os.fsencode(str(core["comm"])).decode(errors="backslashreplace")
    raise ValueError(f"core-{number}.img lacks the name of its process")


def _files(images_fd: int) -> list[dict[str, Value]]:
    return [decode(_FILE, message) for message in read_messages(images_fd, FILES, FILES_MAGIC)]


def _number(value: Value | None) -> int:
    return value if isinstance(value, int) else 0
