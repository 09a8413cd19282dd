"""The files of a live session go back to those of a capture, under its processes, which go on with what they have."""

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from waypoint.linux import cgroups, files, mounts, procfs
from waypoint.model.errors import CannotCapture, Failed, StoreDamaged, WaypointError
from waypoint.model.records import Capture
from waypoint.session.ground.base import Layer
from waypoint.session.home_ground import HomeGround
from waypoint.session.launch.spec import RUN_FOLDER
from waypoint.session.live import LiveSession
from waypoint.upper.rewind import Views, rewind

_NOTE = "rewind.json"
VIEW = "view-"

log = logging.getLogger(__name__)

# What the daemon and the session's shell share is not the user's.
_KEEP = frozenset({RUN_FOLDER, f"{RUN_FOLDER.partition('/')[0]}/lock"})


def rewind_files(ground: HomeGround, live: LiveSession, origin: Capture) -> int:
    """Bring all files back; how many entries were changed. The session must be frozen. Blocks.

    Raises CannotCapture if it has other mounts than the capture had, Failed if a file cannot be written (disk full);
    then a part of them has changed.
    """
    wanted = ground.pool.path(origin.layers.files.tree)
    present = ground.pool.path(live.record.row.tree)
    folders = {Layer(target).folder for target in live.record.overlays}
    foreign = sorted(set(os.listdir(wanted)) - folders)
    if foreign:
        said = f"it has changes in mounts that this session has not: {', '.join(foreign)}"
        raise CannotCapture("restore the files of", origin.id[:12], said, "restore all of it, or on a new branch")
    count = 0
    try:
        for target in live.record.overlays:
            folder = Layer(target).folder
            with _view(ground, live, f"{wanted}/{folder}/upper", target) as view:
                inside = f"{procfs.root_path(live.record.init_pid)}{target}".rstrip("/")
                count += rewind(f"{present}/{folder}/upper", view.upper, Views(view.path, inside), keep=_KEEP)
    except OSError as error:
        where = f" {os.fsdecode(error.filename)}" if error.filename else ""
        raise Failed(
            "restore the files of", origin.id[:12], f"{error.strerror}{where}", "make room, try again"
        ) from error
    return count


class _Note(msgspec.Struct):
    """Ids of captures: whose files are to come back, and what was there before."""

    origin: str
    aside: str


@contextlib.contextmanager
def noted(folder: Path, origin: Capture, aside: Capture) -> Iterator[None]:
    """Meanwhile, a daemon that finds the session sees through what this one had begun. `folder`: the session's own."""
    files.publish(str(folder / _NOTE), msgspec.json.encode(_Note(origin.id, aside.id)), durable=False)
    try:
        yield
    finally:
        (folder / _NOTE).unlink()


def see_through(ground: HomeGround, live: LiveSession, folder: Path) -> None:
    """If the last daemon was killed while it brought files back, bring back the rest; if that cannot be, what was there
    before. Nothing if it had not come so far as to record that. Leaves the session frozen.
    """
    try:
        note = msgspec.json.decode((folder / _NOTE).read_bytes(), type=_Note)
    except FileNotFoundError:
        return
    with contextlib.suppress(StoreDamaged):  # it is not on record: nothing was changed
        aside, origin = (ground.names.capture(capture) for capture in (note.aside, note.origin))
        cgroups.freeze(live.record.cgroup)
        for capture in (origin, aside):
            try:
                rewind_files(ground, live, capture)
                break
            except WaypointError as error:
                log.error("cannot bring back files on %s: %s", live.branch, error)
    (folder / _NOTE).unlink()


def sweep_views(ground: HomeGround) -> None:
    """Remove the places where a killed daemon had mounted what it compared; the mounts have gone with it."""
    for place in ground.places.runtime.glob(f"{VIEW}*"):
        place.rmdir()


class _View:
    """`path`: where the files can be seen. `upper`: the changes in them."""

    def __init__(self, path: str, upper: str) -> None:
        self.path = path
        self.upper = upper


@contextlib.contextmanager
def _view(ground: HomeGround, live: LiveSession, upper: str, target: str) -> Iterator[_View]:
    """The overlay at `target` as it was with this upper, mounted for reading in the daemon's own mount namespace."""
    places, setting = ground.places, live.record.row.setting
    place = places.runtime / f"{VIEW}{secrets.token_hex(8)}"
    empty = places.runtime / "empty"
    empty.mkdir(mode=0o700, exist_ok=True)
    above = upper if os.path.isdir(upper) else str(empty)
    lower = f"{setting.base.rstrip('/')}{target}".rstrip("/") or "/"
    skeleton = places.kit.skeleton(setting.base, target)
    lowers = ":".join(mounts.escape(path) for path in (above, skeleton, lower) if path)
    place.mkdir(mode=0o700)
    try:
        options = f"lowerdir={lowers},redirect_dir=follow,index=off,metacopy=off,xino=off,nfs_export=off"
        mounts.mount("overlay", place, "overlay", mounts.MS_RDONLY | mounts.MS_NODEV, options)
        try:
            yield _View(str(place), above)
        finally:
            mounts.umount(place, mounts.MNT_DETACH)
    finally:
        place.rmdir()
