"""Making the new files of an apply or of its undo."""

import contextlib
import errno
import os
from collections.abc import Callable, Mapping

from waypoint.upper import copying
from waypoint.upper.apply_journal import Step
from waypoint.upper.views import Entry


class Copies:
    """Makes new files as copies; names of one file become names of one copy. `find`: the original for a step. `merged`:
    content that replaces that of the original, by place and path. `former`: the originals are former files of the
    machine; the number of their names, by inode. One that has more names on the machine becomes one of them again.
    """

    def __init__(
        self,
        find: Callable[[Step], Entry | None],
        merged: Mapping[tuple[int, str], bytes] = {},
        *,
        former: Mapping[int, int] | None = None,
    ) -> None:
        self._find = find
        self._merged = merged
        self._former = former
        self._links: dict[tuple[int, int, int], int] = {}  # by place, device and inode: the number of the first copy

    def make(self, number: int, step: Step, target: Entry) -> None:
        source = self._find(step)
        facts = source.look() if source is not None else None
        if source is None or facts is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), step.name)
        if self._former is not None and facts.st_nlink > self._former.get(facts.st_ino, 0):
            with contextlib.suppress(OSError):  # another file system, or a file of another user
                os.link(
                    source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder, follow_symlinks=False
                )
                return
        key = step.place, facts.st_dev, facts.st_ino
        if facts.st_nlink > 1 and key in self._links:
            first = str(self._links[key])
            os.link(first, target.name, src_dir_fd=target.folder, dst_dir_fd=target.folder, follow_symlinks=False)
            return
        copying.copy(source, target, facts)
        merged = self._merged.get((step.place, step.name))
        if merged is not None:
            with open(
                os.open(target.name, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, dir_fd=target.folder), "wb"
            ) as file:
                file.write(merged)
            return
        self._links[key] = number
