"""The base class of all drivers: each tree is a folder in the pool's folder. Names with a leading dot are the
driver's.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from waypoint.linux.storage import files, filesystem, mounts
from waypoint.model.errors import READ_ONLY, Failed, StateConflict, UnknownName, of_machine
from waypoint.upper.contract import (
    GIB,
    NEXT_STEPS,
    Growth,
    GrowthOutcome,
    Outlook,
    PoolUsage,
    Shares,
    checked_name,
    refusals,
)


class FolderOfTrees:
    """The methods of `contract.Pool` that do not depend on the driver. Sizes are those of a pool that lies directly on
    the disk's file system.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.limits = dict[str, int]()

    @property
    def folder(self) -> str:
        return self._folder

    def path(self, name: str) -> str:
        return f"{self._folder}/{checked_name(name)}"

    def list(self) -> tuple[str, ...]:
        with refusals("list the pool", self._folder), os.scandir(self._folder) as entries:
            found = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
            return tuple(sorted(entry.name for entry in found if not entry.name.startswith(".")))

    def usage(self, name: str, limit_s: float | None = None) -> int:
        tried = "measure the upper tree"
        try:
            with self._tree(tried, name) as path:
                return filesystem.used_bytes(path, limit_s)
        except Failed:
            self._existing(tried, name)  # raises if the tree has been removed meanwhile
            raise

    def measure(self, names: Iterable[str], limit_s: float | None = None) -> PoolUsage:
        trees, failed = dict[str, Shares](), dict[str, Failed]()
        for name in names:
            try:
                trees[name] = self._shares(name, limit_s)
            except UnknownName:  # removed meanwhile
                continue
            except Failed as error:
                failed[name] = error
        return PoolUsage(trees, failed, self.unique_bytes())

    def _shares(self, name: str, limit_s: float | None) -> Shares:
        used = self.usage(name, limit_s)
        return Shares(used, used)

    def disk_bytes(self) -> int:
        with refusals("measure the pool", self._folder):
            return filesystem.used_bytes(self._folder)

    def unique_bytes(self) -> int:
        return self.disk_bytes()

    def free_bytes(self) -> int:
        with refusals("look at the pool", self._folder):
            return filesystem.free_bytes(self._folder)

    def outlook(self) -> Outlook:
        with refusals("look at the pool", self._folder):
            return Outlook(self.free_bytes(), GIB, is_readonly=filesystem.is_readonly(self._folder))

    def grow_if_needed(self, ahead_bytes: int = 0) -> Growth:
        return Growth(GrowthOutcome.FIXED, self.free_bytes())

    def settle(self) -> None:
        return

    def spare_bytes(self) -> int:
        return 0

    def compact(self, is_idle: Callable[[], bool]) -> int:
        return 0

    def stop_compacting(self) -> None:
        return

    def why_stays(self) -> str:
        return ""

    def retry_if_full(self, act: Callable[[], None]) -> None:
        act()

    def check_writable(self) -> None:
        with refusals("look at the pool", self._folder):
            if not filesystem.is_readonly(self._folder):
                return
        tried, on = "write to", f"the pool {self._folder}"
        refused = files.refusal_to_write(f"{os.path.dirname(self._folder)}/trial", 0)
        if refused is not None:  # the home's whole disk cannot be written
            next_step = NEXT_STEPS.get(refused.errno or 0, READ_ONLY)
            raise Failed(tried, on, str(refused.strerror), next_step, code=of_machine(refused.errno))
        trees = mounts.seen_from_outside(self._folder)
        raise Failed(
            tried,
            on,
            "its file system has become read-only",
            "copy the files that you need: those of a live session from /proc/PID/root ('waypoint ps' shows the PID), "
            f"those of a capture from {trees}/TREE ('waypoint show NAME' shows the tree); then open the pool again: "
            "'waypoint stop --all', 'waypoint daemon stop'; if it is still read-only: 'waypoint setup --remove'",
        )

    @contextmanager
    def _tree(self, tried: str, name: str) -> Iterator[str]:
        """Yield the path of the tree `name`. Errors in the `with` block are converted by `contract.refusals`. Raises
        UnknownName if the tree does not exist.
        """
        path = self._existing(tried, name)
        with refusals(tried, name):
            yield path

    def _existing(self, tried: str, name: str) -> str:
        """The path of the tree `name`. Raises UnknownName if the tree does not exist."""
        path = self.path(name)
        if not os.path.isdir(path):
            next_step = "choose another capture ('waypoint log --all' lists them)"
            raise UnknownName(tried, name, "there is no such tree in the pool", next_step)
        return path

    def _unmounted(self, name: str) -> str:
        """The path of the tree `name`, which need not exist. Raises StateConflict if something is mounted in it."""
        path = self.path(name)
        points = mounts.list_mount_points_in(path)
        if points:
            said = f"a file system is mounted in it, at {points[-1]}"
            raise StateConflict("remove the upper tree", name, said, f"unmount it: umount {points[-1]}")
        return path
