"""Where images of processes may be born: in memory, since CRIU makes some thirty small files while a session stands
still, which take time on a busy disk.

The folder is `/dev/shm/waypoint-<home id>-hot`, a tmpfs, which outlives every program of Waypoint and goes with the
machine's power. `<capture>/` in it is CRIU's work folder, with `images/` in it. settling.py brings these to the hot
area. Nothing on the disk leads here: everybody may make something in /dev/shm, also before the first daemon after a
reboot, so only what lies in a folder that was found to be root's own, and closed to others, is ever used.
"""

import contextlib
import logging
import os
import stat
import threading

from waypoint.linux import memory_limits
from waypoint.linux.calls import powers
from waypoint.linux.storage import filesystem, idmapped, mounts
from waypoint.linux.storage.deep import remove_path
from waypoint.model.paths import SHARED_MEMORY, hot_memory_path
from waypoint.model.records import IdMap

IMAGES = "images"  # the folder of a capture's images, here and in the hot area
MOST_EACH = 64 << 20
"""Larger images take no less time in memory: writing the pages of processes is what costs, not making files."""
MOST_USUAL = 1 << 30
"""Sixteen of the largest; they leave memory again after half a minute."""
_SHARE = 8  # of the memory that images usually have: an eighth
_SPARE_BYTES = 256 << 20  # of memory, and of the tmpfs, that is left to others
_BESIDE_BYTES = 1 << 20  # of each capture's images, besides the memory of its processes

log = logging.getLogger(__name__)


class HotMemory:
    """The images of one home that are in memory. Any thread may call the methods.

    `why_not`: in words, why no image is born in memory; "" if images are. `most_bytes`: what all together may have.
    """

    def __init__(self, home: str) -> None:
        self.folder = hot_memory_path(home)
        self.why_not = "the home is not open yet"
        self.most_bytes = 0
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}
        self._can_shift: dict[str, bool] = {}

    def open(self, most_bytes: int | None) -> None:
        """Find what an earlier daemon has left here, and take no more than `most_bytes` from now on; None: as much as
        is usual, an eighth of the memory that the machine has, or a limit of the daemon's group leaves, at most
        MOST_USUAL. Does not raise.
        """
        usual = min(MOST_USUAL, memory_limits.total_bytes() // _SHARE)
        self.most_bytes = usual if most_bytes is None else most_bytes
        try:
            self.why_not = self._without_place()
            with self._lock:
                self._taken = {} if self.why_not else {one: self._measured(one) for one in os.listdir(self.folder)}
        except FileNotFoundError:
            self.why_not = "nothing is to be there"
        except OSError as error:
            self.why_not = f"{self.folder}: {error.strerror}"
        if not self.why_not and not self.most_bytes:
            self.why_not = "nothing is to be there"

    def _without_place(self) -> str:
        """In words, why there is no place for images; "" if there is. Raises OSError: FileNotFoundError if there is
        none yet, nor is to be one.
        """
        if not powers.is_machines():
            return "without root: what lies in /dev/shm ends with its user's last login"
        if not any(one.mount_point == SHARED_MEMORY and one.fstype == "tmpfs" for one in mounts.read_mounts()):
            return f"{SHARED_MEMORY} is not in memory (tmpfs)"
        if self.most_bytes:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.folder, 0o700)
        found = os.lstat(self.folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            return f"{self.folder} is somebody else's"
        return ""

    def make(self, capture_id: str, needed_bytes: int, ids: IdMap) -> str | None:
        """Make the work folder for a capture of a session with these ids, whose processes have `needed_bytes` of
        memory, and return it; None if the images are to be on the disk: they are large, there is no room, or the kernel
        shows no tmpfs with other ids (before 6.3). Does not raise.
        """
        needed, folder = needed_bytes + _BESIDE_BYTES, f"{self.folder}/{capture_id}"
        try:
            if self.why_not or needed > MOST_EACH or not self._has_room(needed) or not self._shows_to(ids):
                return None
            with self._lock:
                if sum(self._taken.values()) + needed > self.most_bytes:
                    return None
                os.mkdir(folder, 0o700)
                self._taken[capture_id] = needed
        except OSError as error:  # somebody has emptied /dev/shm, or it is full
            log.warning("no images in memory: %s", error)
            return None
        return folder

    def _has_room(self, needed: int) -> bool:
        wanted = needed + _SPARE_BYTES
        return filesystem.free_bytes(self.folder) >= wanted and memory_limits.available_bytes() >= wanted

    def _shows_to(self, ids: IdMap) -> bool:
        """Whether a restore can read images here as the root of a session with these ids."""
        if not ids.is_shifted:
            return True
        lines = ids.lines()
        if lines not in self._can_shift:
            try:
                os.close(idmapped.clone(self.folder, idmapped.namespace(lines)))
                self._can_shift[lines] = True
            except OSError:
                self._can_shift[lines] = False
        return self._can_shift[lines]

    def images(self, capture_id: str) -> str | None:
        """The folder of the capture's images, if they are in memory."""
        return f"{self.folder}/{capture_id}/{IMAGES}" if capture_id in self._taken else None

    def note(self, capture_id: str) -> None:
        """All images of the capture are there: it counts with what it has."""
        with self._lock:
            if capture_id in self._taken:
                self._taken[capture_id] = self._measured(capture_id)

    def used_bytes(self, capture_id: str = "") -> int:
        """What the capture has in memory, 0 if nothing; "": what all have together."""
        with self._lock:
            return self._taken.get(capture_id, 0) if capture_id else sum(self._taken.values())

    def list(self) -> list[str]:
        """The ids of the captures with images in memory."""
        with self._lock:
            return list(self._taken)

    def forget(self, capture_id: str) -> bool:
        """The capture's images are elsewhere from now on. Returns whether they were in memory: then `remove` them."""
        with self._lock:
            return self._taken.pop(capture_id, None) is not None

    def remove(self, capture_id: str) -> None:
        """Remove the folder of a capture that was forgotten. What cannot be removed, the next daemon tries again."""
        try:
            remove_path(f"{self.folder}/{capture_id}")
        except OSError as error:
            log.warning("the images of %s stay in memory: %s", capture_id[:12], error)

    def _measured(self, capture_id: str) -> int:
        total = 0
        for folder, _folders, names in os.walk(f"{self.folder}/{capture_id}"):
            total += sum(os.lstat(f"{folder}/{name}").st_blocks * 512 for name in names)
        return total
