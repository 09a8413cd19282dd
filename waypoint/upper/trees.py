"""What all drivers share: trees are folders, side by side in one folder, and what starts with a dot is the driver's
own.
"""

import os

from waypoint.linux import filesystem, mounts
from waypoint.model.errors import StateConflict, UnknownName
from waypoint.upper.contract import checked_name, refusals


class FolderOfTrees:
    """The part of `contract.Pool` that only looks."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def path(self, name: str) -> str:
        return f"{self._folder}/{checked_name(name)}"

    def list(self) -> tuple[str, ...]:
        with refusals("list the pool", self._folder), os.scandir(self._folder) as entries:
            found = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
            return tuple(sorted(entry.name for entry in found if not entry.name.startswith(".")))

    def usage(self, name: str) -> int:
        path = self._existing("measure the upper tree", name)
        with refusals("measure the upper tree", name):
            return filesystem.used_bytes(path)

    def free_bytes(self) -> int:
        with refusals("look at the pool", self._folder):
            return filesystem.free_bytes(self._folder)

    def _existing(self, tried: str, name: str) -> str:
        """The path of a tree that is there."""
        path = self.path(name)
        if not os.path.isdir(path):
            raise UnknownName(tried, name, "there is no such tree in the pool")
        return path

    def _unmounted(self, name: str) -> str:
        """The path of a tree, there or not, in which nothing is mounted: removing would reach through a mount."""
        path = self.path(name)
        points = mounts.list_mount_points_in(path)
        if points:
            raise StateConflict("remove the upper tree", name, f"{points[-1]} is mounted", f"umount {points[-1]}")
        return path
