"""Real overlays over a base, with the options of a session, and pictures of what they show."""

import contextlib
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from waypoint.launch.externals import OVERLAY_OPTIONS
from waypoint.linux.storage import beneath, mounts
from waypoint.linux.storage.deep import remove_path
from waypoint.linux.storage.descriptors import open_folder
from waypoint.upper.comparing.alike import How
from waypoint.upper.comparing.differing import EntryChange, differing
from waypoint.upper.comparing.stack import Spot, Stack

Picture = dict[bytes, tuple[object, ...]]
"""By path from the root, with a slash before it: all of an entry that a difference may be in."""


class Layered(NamedTuple):
    """A base, and a corner for the trees over it."""

    corner: Path
    base: Path

    def upper(self, name: str) -> Path:
        return self.corner / name / "m0/upper"

    @contextlib.contextmanager
    def mounted(self, name: str) -> Iterator[Path]:
        """The overlay with the tree `name`, made if it is missing."""
        upper, work, point = self.upper(name), self.corner / name / "m0/work", self.corner / f"{name}-mounted"
        for folder in (upper, work, point):
            folder.mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={self.base},upperdir={upper},workdir={work},{OVERLAY_OPTIONS}"
        mounts.mount("overlay", point, "overlay", mounts.MS_NODEV, options)
        try:
            yield point
        finally:
            mounts.umount(point)

    def copied(self, name: str, copy: str) -> None:
        """A snapshot of the tree."""
        subprocess.run(["cp", "-a", self.corner / name, self.corner / copy], check=True)

    def picture(self, name: str) -> Picture:
        with self.mounted(name) as point:
            return picture(point)

    @contextlib.contextmanager
    def stack(self, name: str) -> Iterator[Stack]:
        with open_folder(self.upper(name)) as upper, open_folder(self.base) as lower:
            yield Stack(upper, lower)

    def told(self, one: str | None, other: str) -> list[EntryChange]:
        """What `other` changes of `one`, of the base without one. Descriptors in it are closed."""
        with contextlib.ExitStack() as held:
            now = held.enter_context(self.stack(other))
            was = held.enter_context(self.stack(one)) if one else now.without_upper()
            return list(differing(was, now))

    def renew(self, furnish: Callable[[Path], None]) -> None:
        """Remove all trees, and make the base anew."""
        for folder in (self.corner, self.base):
            remove_path(folder)
            folder.mkdir()
        furnish(self.base)


def picture(root: Path) -> Picture:
    found: Picture = {}
    top = os.fsencode(root)
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            found[path.removeprefix(top)] = entry(path)
    return found


def entry(path: bytes) -> tuple[object, ...]:
    facts = os.lstat(path)
    content = b""
    if stat.S_ISREG(facts.st_mode):
        content = Path(os.fsdecode(path)).read_bytes()
    elif stat.S_ISLNK(facts.st_mode):
        content = os.readlink(path)
    names = [name for name in os.listxattr(path, follow_symlinks=False) if not name.startswith("trusted.")]
    attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
    return facts.st_mode, facts.st_uid, facts.st_gid, content, sorted(attributes.items())


def applied(ground: Layered, one: str | None, other: str) -> Picture:
    """What `other` shows by what is told alone: the picture of `one` with all changes made. Fails if something is told
    that does not differ.
    """
    bottom = picture(ground.base)
    shown = ground.picture(one) if one else dict(bottom)
    with contextlib.ExitStack() as held:
        now = held.enter_context(ground.stack(other))
        was = held.enter_context(ground.stack(one)) if one else now.without_upper()
        for change in differing(was, now):
            _apply(shown, bottom, change)
    return shown


def _apply(shown: Picture, bottom: Picture, change: EntryChange) -> None:
    path, before = change.path, shown.get(change.path)
    assert (before is None) == (change.how is How.ADDED), change
    if change.how in (How.ADDED, How.REMOVED, How.RETYPED):
        for inner in [one for one in shown if one == path or one.startswith(path + b"/")]:
            del shown[inner]
    if change.now_at is None:
        return
    came_from = change.source or (b"/" + os.fsencode(change.now_at.path) if change.is_whole else b"")
    if came_from:
        shown.update(
            {path + one.removeprefix(came_from): bottom[one] for one in bottom if one.startswith(came_from + b"/")}
        )
    shown[path] = facts_at(change.now_at)
    assert shown[path] != before, change


def facts_at(spot: Spot) -> tuple[object, ...]:
    with beneath.parent_of(spot.root, spot.path) as (folder, name):
        return entry(os.fsencode(f"{beneath.name_of(folder)}/{name}"))
