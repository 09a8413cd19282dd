"""Bringing images that were born in memory to the hot area, when their session has gone on for a while."""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from waypoint.capture.in_memory.hot_memory import IMAGES, HotMemory
from waypoint.capture.steps import SettleStep, reach
from waypoint.linux.storage import files, filesystem
from waypoint.linux.storage.deep import remove_path

SETTLING = ".images"  # beside a capture's images in the hot area: their copy, until all of it is there
SETTLE_AFTER_S = 30.0
"""So long images stay in memory alone, which is as long as Linux usually keeps what was written before it goes to the
disk (vm.dirty_expire_centisecs). Many captures are gone by then.
"""

log = logging.getLogger(__name__)


class Settling:
    """The images of one home, on their way from memory to the disk. The calls block."""

    def __init__(self, hot: Path, memory: HotMemory) -> None:
        """`hot`: the hot area. `memory`: where the images are born."""
        self._hot = hot
        self.memory = memory

    def has_room(self, capture_id: str, floor_bytes: int) -> bool:
        """Whether the disk has room for the images, and `floor_bytes` besides."""
        return filesystem.free_bytes(self._hot) >= self.memory.used_bytes(capture_id) + floor_bytes

    def copy_out(self, capture_id: str, between: Callable[[], None], of: str = "") -> None:
        """Copy the images, which are in memory, to the capture's folder on the disk. `between` is called before each
        file. `of`: another capture's images are copied. Raises OSError; then nothing of the copy is left.
        """
        source, target = self.memory.images(of or capture_id), self._copies(capture_id)
        if source is None:
            return
        remove_path(target)  # a daemon was killed here
        if os.path.isdir(self._settled(capture_id)):  # somebody has held the capture since
            return
        files.make_folder(target, 0o711)
        try:
            with os.scandir(source) as images:
                for image in images:
                    between()
                    shutil.copy2(image.path, f"{target}/{image.name}", follow_symlinks=False)
                    reach(SettleStep.ONE_COPIED)
            os.rename(target, self._settled(capture_id))
            reach(SettleStep.IN_PLACE)
        except BaseException:
            remove_path(target)
            raise

    def has_images(self, capture_id: str) -> bool:
        """Whether what is said to be in memory is there: somebody may have emptied /dev/shm."""
        return os.path.isdir(self.memory.images(capture_id) or "")

    def without_images(self) -> list[str]:
        """The ids in the hot area of what has no images, be they of captures that have processes or not."""
        return [name for name in os.listdir(self._hot) if self.is_lost(name)]

    def finish(self, known: Iterable[str]) -> None:
        """See to what an earlier daemon has left in memory, when this one begins, after the sweep. `known`: the
        captures on record. What no capture has there is removed, and what a capture has on the disk by now; what lies
        in the hot area unknown to names.db comes to the disk now, since nobody will ask for it. What fails is logged.
        """
        recorded = set(known)
        for capture_id in os.listdir(self._hot):
            with contextlib.suppress(OSError):
                remove_path(self._copies(capture_id))
        for capture_id in self.memory.list():
            try:
                if self.is_kept(capture_id) and not os.path.isdir(self._settled(capture_id)):
                    if capture_id in recorded:
                        continue
                    self.copy_out(capture_id, lambda: None)
                self.memory.forget(capture_id)
                self.memory.remove(capture_id)
            except OSError as error:
                log.warning("the images of %s stay in memory: %s", capture_id[:12], error)

    def is_kept(self, capture_id: str) -> bool:
        """Whether the hot area has anything of the capture."""
        return os.path.isdir(self._hot / capture_id)

    def is_lost(self, capture_id: str) -> bool:
        """Whether the hot area has something of the capture, which is of the tier `live`, and its images are neither
        there nor in memory: they were in memory when the machine went down.
        """
        is_somewhere = self.memory.images(capture_id) is not None or os.path.isdir(self._settled(capture_id))
        return self.is_kept(capture_id) and not is_somewhere

    def _settled(self, capture_id: str) -> str:
        return f"{self._hot}/{capture_id}/{IMAGES}"

    def _copies(self, capture_id: str) -> str:
        return f"{self._hot}/{capture_id}/{SETTLING}"
