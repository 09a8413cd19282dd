"""Finding the names of files that processes watch (inotify(7)): a restore needs them to watch the files again.

The kernel reports a watched file by its device, its inode and a handle. CRIU cannot open the handle of an overlay, and
would search one folder after the other for the inode. But the overlay's handle contains the handle of the file in its
layer, which can be opened (linux/calls/handles.py). The path in the layer is the path in the session, unless the
session has renamed something of a lower layer. Only then the name is searched for: in the upper layer, and near the
root.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from waypoint.linux.calls.handles import OverlayHandle, open_handle, parse_overlay
from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import path_of
from waypoint.linux.tasks import pidfd, procfs
from waypoint.linux.tty.terminals import unread_bytes
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import CannotCapture
from waypoint.processes.criu.causes import name_of
from waypoint.processes.refusals import Refusal

MOST_WATCHES = 20_000
"""The most watched files of a session. Each file takes CRIU microseconds while the session is frozen, and more if many
files are in the same one of CRIU's 32 hash buckets.
"""
_MOST_BYTES = MOST_WATCHES * 400  # how much of the kernel's list is read; its lines have 150 to 330 bytes
_MOST_SEARCHED = 20_000  # how many entries of an upper layer are searched
_NEAR = 2  # levels below an overlay's root in which a folder of an unknown layer is searched for
_NEXT_STEP = "end the process, or make it stop watching files"
_INOTIFY = "anon_inode:inotify"
_LINE = re.compile(
    rb"^inotify wd:\w+ ino:(\w+) sdev:(\w+) .*fhandle-bytes:(\w+) fhandle-type:(\w+) f_handle:(\w+)", re.MULTILINE
)
_ORIGIN, _REDIRECT = "trusted.overlay.origin", "trusted.overlay.redirect"

Key = tuple[int, int]
"""A file: its device and inode as numbered by the kernel."""


class OverlayLayers(NamedTuple):
    """The host folders of one overlay. `target`: its mount point in the session."""

    target: str
    upper: str
    lower: str


class _Watcher(NamedTuple):
    """An inotify instance: descriptor `fd` of process `pid`."""

    pid: int
    fd: int


class _List(NamedTuple):
    """The last read list of the watched files of one inotify instance. `text`: the list as the kernel writes it in
    fdinfo. `seen`: the files in it.
    """

    text: bytes = b""
    seen: frozenset[Key] = frozenset()


class Watches:
    """The watched files on overlays of one session. For one thread, in a `with` block. `number`: how many files the
    last `look` has found; an inotify instance without files counts as one.
    """

    def __init__(self, init_pid: int, overlays: Iterable[OverlayLayers]) -> None:
        """`init_pid`: the host's pid of the session's pid 1."""
        self.number = 0
        self._known: set[Key] = set()
        self._new: dict[Key, str] = {}
        self._lists: dict[int, dict[_Watcher, _List]] = {}
        self._nameless: dict[Key, _Watcher] = {}
        self._init_pid = init_pid
        self._layers = {overlay.target: overlay for overlay in overlays}
        self._finders: dict[int, _Finder] = {}
        self._held = contextlib.ExitStack()

    def __enter__(self) -> "Watches":
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def look(self, pids: Iterable[int]) -> None:
        """Find the names of all files that the session's processes watch now. `pids`: all of these processes.

        The first call finds the inotify descriptors; later calls only read their lists again, and find the descriptors
        of new processes. Raises OSError; CannotCapture for more than MOST_WATCHES files, before it looks for any name.
        Skips processes that have ended. Takes one readlink(2) for each open file of a new process, 20 microseconds for
        each new watched file, and one microsecond for each file of an unchanged list.
        """
        pids = list(pids)
        unknown = self.read(pids)
        for finder in self._finders.values():
            finder.forget_folder()
        for key, (watcher, kind, handle) in unknown.items():
            self._find(watcher, key, parse_overlay(kind, handle))
        lists = [item for pid in pids for item in self._lists[pid].items()]
        nameless = self._nameless.keys()
        self._nameless = {key: watcher for watcher, one in lists for key in nameless & one.seen} if nameless else {}

    def totals(self) -> tuple[int, int]:
        """The least numbers of inotify instances and of watched files that `look` has found: processes that have the
        same list may share it.
        """
        sizes = {one.text: len(one.seen) for lists in self._lists.values() for one in lists.values()}
        return max(len(sizes), *map(len, self._lists.values()), 0), sum(sizes.values())

    def take_new(self) -> dict[Key, str]:
        """The names found since the last call, for `add_names`."""
        new, self._new = self._new, {}
        return new

    def check(self) -> None:
        """Raise CannotCapture if no name was found for a watched file."""
        for refusal in self.refusals():
            raise refusal.error()

    def refusals(self) -> Iterator[Refusal]:
        """The processes that watch a file for which no name was found."""
        for watcher in self._nameless.values():
            said = f"{_who(watcher)} watches a file that was removed, is a symbolic link, or whose name is unknown"
            yield Refusal(watcher.pid, "criu-inotify", said, _NEXT_STEP)

    def unread(self) -> list[Degradation]:
        """Descriptions of the inotify instances with unread notices, which images lack; sorted."""
        found = []
        for watcher in (watcher for lists in self._lists.values() for watcher in lists):
            with contextlib.ExitStack() as held, contextlib.suppress(OSError):  # closed by now
                taken = pidfd.take(*watcher)
                held.callback(os.close, taken)
                if unread_bytes(taken):
                    found.append(degradation("unread-notices", _who(watcher)))
        return sorted(found, key=lambda one: one.subject)

    def read(self, pids: Iterable[int]) -> dict[Key, tuple[_Watcher, int, bytes]]:
        """Read the lists of all watched files. Returns those whose names are unknown, with watcher and handle. Raises
        CannotCapture for more than MOST_WATCHES files.
        """
        self.number, unknown = 0, dict[Key, tuple[_Watcher, int, bytes]]()
        for pid in pids:
            if pid not in self._lists:
                self._lists[pid] = _inotify_of(pid)
            lists = self._lists[pid]
            for watcher, before in lists.items():
                text = procfs.fdinfo(*watcher, _MOST_BYTES)
                if text != before.text:
                    _check_number(watcher, MOST_WATCHES if len(text) < _MOST_BYTES else MOST_WATCHES + 1)
                    listed = {(int(found[1], 16), int(found[0], 16)): found for found in _LINE.findall(text)}
                    lists[watcher] = _List(text, frozenset(listed))
                    for key, (_, _, size, kind, handle) in listed.items():  # neighbours are often in one folder
                        if key not in self._known and key not in self._nameless:
                            content = bytes.fromhex(handle.decode())[: int(size, 16)]
                            unknown[key] = (watcher, int(kind, 16), content)
                self.number += max(1, len(lists[watcher].seen))  # 1 for an empty list, because reading it takes time
                _check_number(watcher, self.number)
        return unknown

    def _find(self, watcher: _Watcher, key: Key, handle: OverlayHandle | None) -> None:
        finder = self._finder(key[0])
        if handle is None or finder is None:
            return  # CRIU can open the handles of other file systems
        path = finder.find(key, handle)
        if path is None:
            self._nameless[key] = watcher
        else:
            self._known.add(key)
            self._new[key] = path

    def _finder(self, device: int) -> "_Finder | None":
        if not self._finders:
            root = procfs.open_root(self._init_pid)
            self._held.callback(os.close, root)
            for overlay in self._layers.values():
                with contextlib.suppress(OSError):  # the mount point is gone: CRIU will report it
                    finder = _Finder(overlay, root, self._held)
                    self._finders[finder.device] = finder
        return self._finders.get(device)


def check_number(init_pid: int, pids: Iterable[int]) -> None:
    """Raise CannotCapture if the processes `pids` of the session watch more than MOST_WATCHES files."""
    with Watches(init_pid, ()) as watches:
        watches.read(pids)


class _Finder:
    """Finds files of one overlay."""

    def __init__(self, overlay: OverlayLayers, root: int, held: contextlib.ExitStack) -> None:
        """`root`: the session's root. `held`: closes the opened folders. Raises OSError."""
        self._overlay = overlay
        self._root = root
        with beneath.opened(root, overlay.target) as fd:
            self.device = _kernel_number(os.fstat(fd).st_dev)
        self._upper, self._lower = (_open_folder(path, held) for path in (overlay.upper, overlay.lower))
        self._above = {fd: path_of(fd).rstrip("/") for fd in (self._upper, self._lower)}
        self._folder = contextlib.ExitStack()  # of the file that was found last
        self._folder_path, self._folder_fd = "", -1
        held.callback(self._folder.close)
        self._renamed: tuple[dict[bytes, str], dict[str, str]] | None = None

    def find(self, key: Key, handle: OverlayHandle) -> str | None:
        """The path of the file in the session, or None."""
        return next((path for path in self._candidates(key, handle) if self._is_at(path, key)), None)

    def _candidates(self, key: Key, handle: OverlayHandle) -> Iterator[str]:
        layer = self._upper if handle.is_upper else self._lower
        below = _path_in(layer, self._above[layer], handle)
        if below is not None:
            yield self._inside(below)
        if handle.is_upper:
            return
        if self._renamed is None:
            self._renamed = _find_renamed(self._upper)
        files, folders = self._renamed
        if handle.origin in files:
            yield self._inside(files[handle.origin])
        above, rest = below or "", ""
        while above:
            if above in folders:
                yield self._inside(os.path.join(folders[above], rest))
            above, name = os.path.split(above)
            rest = os.path.join(name, rest) if rest else name
        # The layer is not known: it may be Waypoint's own lower layer, which has only a few folders near the root.
        with beneath.opened(self._root, self._overlay.target, os.O_RDONLY | os.O_DIRECTORY) as fd:
            yield from map(self._inside, _folders_near(fd))

    def _inside(self, below: str) -> str:
        return os.path.join(self._overlay.target, below) if below else self._overlay.target

    def forget_folder(self) -> None:
        """To be called when files may have been moved since the last `find`."""
        self._folder.close()
        self._folder_path, self._folder_fd = "", -1

    def _is_at(self, path: str, key: Key) -> bool:
        folder, _, name = path.rstrip("/").rpartition("/")
        try:
            if self._folder_fd < 0 or folder != self._folder_path:
                self.forget_folder()
                self._folder_fd = self._folder.enter_context(beneath.opened(self._root, folder))
                self._folder_path = folder
            found = os.stat(name or ".", dir_fd=self._folder_fd, follow_symlinks=False)
        except OSError:
            return False
        # A link does not count: CRIU would watch the link's target instead, and fail if the target is missing.
        return (_kernel_number(found.st_dev), found.st_ino) == key and not stat.S_ISLNK(found.st_mode)


def _inotify_of(pid: int) -> dict[_Watcher, _List]:
    found: dict[_Watcher, _List] = {}
    with contextlib.suppress(ProcessLookupError):
        for fd, path in procfs.open_files(pid).items():
            if path == _INOTIFY:
                found[_Watcher(pid, fd)] = _List()
                _check_number(_Watcher(pid, fd), len(found))
    return found


def _check_number(watcher: _Watcher, number: int) -> None:
    if number > MOST_WATCHES:
        said = f"{_who(watcher)} and other processes watch more than {MOST_WATCHES} files (inotify)"
        raise CannotCapture("dump", "the processes", said, _NEXT_STEP, code="criu-inotify")


def _who(watcher: _Watcher) -> str:
    """A description of the process."""
    return name_of(*watcher) or f"a process that has ended (fd {watcher.fd})"


def _kernel_number(device: int) -> int:
    """A st_dev as the kernel writes it in /proc/PID/fdinfo (include/linux/kdev_t.h)."""
    return os.major(device) << 20 | os.minor(device)


def _open_folder(path: str, held: contextlib.ExitStack) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    held.callback(os.close, fd)
    return fd


def _path_in(layer: int, above: str, handle: OverlayHandle) -> str | None:
    """The path of the file below the folder `layer`, whose path is `above`; None if it is not there."""
    try:
        fd = open_handle(layer, handle.kind, handle.real)
    except OSError:
        return None
    try:
        path = path_of(fd)
    except OSError:  # a path that is too long
        return None
    finally:
        os.close(fd)
    return path[len(above) :].strip("/") if f"{path}/".startswith(f"{above}/") else None


def _find_renamed(upper: int) -> tuple[dict[bytes, str], dict[str, str]]:
    """Search the first _MOST_SEARCHED entries of the upper layer. Returns the paths of files copied up, by their
    origins, and the paths of renamed folders, by their paths in the lower layer.
    """
    origins: dict[bytes, str] = {}
    folders: dict[str, str] = {}
    lower_of = {"": ""}
    number = 0
    for folder, names, fd in _folders_of(upper):
        for name in names:
            number += 1
            if number > _MOST_SEARCHED:
                return origins, folders
            path = os.path.join(folder, name)
            marks = _marks(fd, name)
            if _ORIGIN in marks:
                origins[marks[_ORIGIN]] = path
            was = os.fsdecode(marks.get(_REDIRECT, os.fsencode(name)))
            below = was.strip("/") if was.startswith("/") else os.path.join(lower_of.get(folder, folder), was)
            lower_of[path] = below
            if below != path:
                folders[below] = path
    return origins, folders


def _marks(folder: int, name: str) -> dict[str, bytes]:
    """The marks of overlayfs on the file `name` in the folder."""
    found = {}
    for mark in (_ORIGIN, _REDIRECT):
        with contextlib.suppress(OSError):
            found[mark] = os.getxattr(f"{beneath.name_of(folder)}/{name}", mark, follow_symlinks=False)
    return found


def _folders_near(root: int) -> Iterator[str]:
    """The paths of `root` itself ("") and of the folders at most _NEAR levels below it."""
    return (folder for folder, _names, _fd in _folders_of(root, _NEAR))


def _folders_of(root: int, levels: int | None = None) -> Iterator[tuple[str, list[str], int]]:
    """`root` and the folders at most `levels` below it, parents first: the path ("" for `root`), the names in the
    folder, and a descriptor that is valid until the next item. Folders that cannot be opened are skipped.
    """
    waiting = [("", 0)]
    while waiting:
        path, level = waiting.pop()
        with contextlib.suppress(OSError), beneath.opened(root, path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            with os.scandir(fd) as found:
                names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in found}
            if levels is None or level < levels:
                folders = (name for name, is_folder in names.items() if is_folder)
                waiting += [(os.path.join(path, name), level + 1) for name in folders]
            yield path, list(names), fd
