"""Read-only views of captures that users have mounted in the machine's mount namespace.

A mount keeps its capture on disk, also across restarts of the daemon: a note in the runtime folder tells the next one.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from waypoint.launch.ground.host_mounts import HostMounts
from waypoint.launch.ground.start_plan import plan_overlays
from waypoint.linux.calls import abilities
from waypoint.linux.storage import files, mounts
from waypoint.model.errors import Failed, HostLacks, StateConflict, StoreDamaged, UnknownName, UsageProblem
from waypoint.model.paths import SET_UP_BY_ROOT, is_below
from waypoint.model.records import Capture
from waypoint.session.live.resources import Resources
from waypoint.session.views import mounted_view
from waypoint.upper import layout
from waypoint.upper.changes import changed_targets

_NOTE = "mounts.json"  # capture ids by mount point


class UserMounts:
    """All methods block."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._lock = threading.Lock()
        self._held: dict[str, contextlib.ExitStack] = {}
        self._captures: dict[str, str] = {}

    def mount(self, name: str, capture: Capture, point: str) -> None:
        """Mount a view of the capture at the folder `point` of the machine. `name`: of the capture, for messages.
        Raises UsageProblem, StateConflict, Failed.
        """
        host, places, on = self._host("mount"), self._resources.places, f"{name} at {point}"
        point = host.within(lambda: os.path.realpath(point))
        if not host.within(lambda: os.path.isdir(point)):
            raise UsageProblem("mount", on, "there is no such folder", f"make it: mkdir {point}")
        with self._lock, contextlib.ExitStack() as held, _failing("mount", on):
            self._prune(host)
            if point in self._held:
                raise StateConflict("mount", on, "a capture is mounted there", f"waypoint umount {point}")
            if host.within(lambda: _mounts_below(point)):  # `umount` would unmount these, too
                raise StateConflict("mount", on, "something is mounted in this folder", "choose another folder")
            files_of = held.enter_context(self._resources.captures.hold(capture)).files
            places.follow_host()
            setting = capture.setting
            targets = {*plan_overlays(setting.base, places).overlays, *changed_targets(files_of)}
            with contextlib.ExitStack() as opened:
                trees: list[tuple[int, str]] = []
                for target in sorted(targets):
                    upper = layout.upper_of(files_of, target)
                    with mounted_view(places, setting.base, target, upper) as view:
                        trees.append((mounts.clone(view.path), f"{point}{target}".rstrip("/")))
                        opened.callback(os.close, trees[-1][0])
                host.within(lambda: _attach_all(trees, point))
            self._held[point] = held.pop_all()
            self._captures[point] = capture.id
            self._write()

    def umount(self, point: str) -> None:
        """Raises UnknownName if no capture is mounted there, StateConflict if the mount is in use."""
        host = self._host("unmount")
        point = host.within(lambda: os.path.realpath(point))
        with self._lock, _failing("unmount", point):
            self._prune(host)
            if point not in self._held:
                raise UnknownName("unmount", point, "no capture is mounted there", "see 'findmnt -t overlay'")
            host.within(lambda: _detach_all(point))
            self._prune(host)

    def prune(self) -> None:
        """Release the captures of mounts that were ended with umount(8)."""
        if self._held:
            with self._lock:
                self._prune(self._host("find"))

    def adopt(self) -> None:
        """Hold the captures of the mounts that an earlier daemon has made and that are still there."""
        note = self._note()
        if self._resources.places.host is None or not note.exists():
            return
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._captures = msgspec.json.decode(note.read_bytes(), type=dict[str, str])
            for point, capture_id in self._captures.items():
                self._held[point] = contextlib.ExitStack()
                with contextlib.suppress(StoreDamaged, UnknownName):  # its content was removed; the mount is useless
                    capture = self._resources.names.capture(capture_id)
                    self._held[point].enter_context(self._resources.captures.hold(capture))
            self._prune(self._host("find"))

    def close(self) -> None:
        """Forget the mounts; they stay."""
        self._held.clear()

    def _prune(self, host: HostMounts) -> None:
        """Release the captures of mounts that are gone."""
        present = host.within(lambda: {one.mount_point for one in _mounts_below("/") if one.fstype == "overlay"})
        for point in [point for point in self._held if point not in present]:
            self._held.pop(point).close()
            self._captures.pop(point, None)
        self._write()

    def _write(self) -> None:
        files.publish(str(self._note()), msgspec.json.encode(self._captures), durable=False)

    def _note(self) -> Path:
        return self._resources.places.runtime / _NOTE

    def _host(self, tried: str) -> HostMounts:
        host = self._resources.places.host
        if not abilities.own().whole_mounts:
            said = "this home works without root, which changes the machine's mounts"
            raise HostLacks(tried, "a view", said, SET_UP_BY_ROOT, code="needs-root")
        if host is None:
            said = "the daemon was started without the machine's mount namespace"
            raise HostLacks(tried, "a view", said, "restart it: waypoint daemon stop")
        return host


def _attach_all(trees: list[tuple[int, str]], point: str) -> None:
    try:
        for tree, place in trees:
            mounts.attach(tree, place)
    except OSError:
        _detach_all(point)
        raise


def _detach_all(point: str) -> None:
    for place in sorted((one.mount_point for one in _mounts_below(point)), reverse=True):
        mounts.umount(place, mounts.UMOUNT_NOFOLLOW)


def _mounts_below(folder: str) -> list[mounts.MountRecord]:
    """Mounts at or below the folder in the mount namespace of the calling thread, which is not that of the process."""
    return [one for one in mounts.read_mounts("thread-self") if is_below(one.mount_point, folder)]


@contextlib.contextmanager
def _failing(tried: str, on: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise StateConflict(tried, on, "it is in use", f"find the programs: fuser -vm {on}") from error
        where = f": {os.fsdecode(error.filename)}" if error.filename else ""
        raise Failed(tried, on, f"{error.strerror or error}{where}", "choose another folder") from error
