"""Views: read-only mounts, in the daemon's mount namespace, of the files of a session with a given upper tree."""

import contextlib
import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from waypoint.launch.ground import homes
from waypoint.launch.ground.places import SharedPlaces
from waypoint.launch.ground.start_plan import OWN_PLACES, plan_overlays
from waypoint.linux.calls import abilities
from waypoint.linux.storage import idmapped, mounts
from waypoint.model.errors import UsageProblem
from waypoint.model.ids import random_hex
from waypoint.model.paths import is_below
from waypoint.model.records import HOST_IDS, IdMap, Setting
from waypoint.upper.comparing import Scope
from waypoint.upper.pool_image import FOLDER

log = logging.getLogger(__name__)

_PREFIX = "view-"
_WORK_PREFIX = f".{_PREFIX}"  # in the pool, where names of trees have no dot


_OF_THE_SESSION = ("/run", *OWN_PLACES)
"""Folders of a session that are none of the machine's."""


def common_setting(on: str, settings: Sequence[Setting]) -> Setting:
    """The setting of captures that are compared. Raises UsageProblem if they have different bases."""
    bases = {setting.base: setting.base_text for setting in settings}
    if len(bases) > 1:
        said = f"they have different bases: {', '.join(sorted(bases.values()))}"
        raise UsageProblem("compare", on, said, "compare each of them with its own base: waypoint diff NAME")
    return settings[-1]


def scope_of(places: SharedPlaces, setting: Setting, target: str, paths: Sequence[str]) -> Scope | None:
    """What is compared in the overlay at `target`; None if the `paths`, absolute in the session, are all elsewhere.
    Excluded are the session's own folders, binds, and Waypoint's homes.
    """
    above = target.rstrip("/") + "/"
    paths = [os.path.normpath(path) for path in paths]
    if paths and not any(is_below(path, target) or is_below(target, path) for path in paths):
        return None
    is_all = not paths or any(is_below(target, path) for path in paths)
    base = setting.base.rstrip("/")
    hidden = [path.removeprefix(base) for path in (*homes.known(), str(places.home)) if is_below(path, setting.base)]
    excluded = [*_OF_THE_SESSION, *(bind.target for bind in setting.binds), *hidden]
    return Scope(
        () if is_all else tuple(path.removeprefix(above) for path in paths if path.startswith(above)),
        tuple(path.removeprefix(above) for path in excluded if path.startswith(above)),
    )


class View(NamedTuple):
    """`path`: the mount. `upper`: the upper directory that it shows; an empty folder if there is none."""

    path: str
    upper: str


def lower_of(base: str, target: str) -> str:
    """The folder of the machine below a session's overlay at `target`. Raises FileNotFoundError."""
    lower = f"{base.rstrip('/')}{target}".rstrip("/") or "/"
    if not os.path.isdir(lower):
        raise FileNotFoundError(errno.ENOENT, "the machine no longer has this mount", lower)
    return lower


@contextlib.contextmanager
def mounted_view(places: SharedPlaces, base: str, target: str, upper: str, ids: IdMap = HOST_IDS) -> Iterator[View]:
    """Mount a view of a session's overlay at `target` of `base` (`Setting.base`), with the upper layer `upper`, which
    need not exist.

    With the session's `ids` its files have the same owners as in the session's own overlay; without, those on disk.
    Call `places.follow_host` first. Raises OSError.
    """
    empty = places.kit.folder / "empty"  # on the kit's tmpfs: no layer may lie in the tree of another one (ELOOP)
    empty.mkdir(mode=0o755, exist_ok=True)
    above = upper if os.path.isdir(upper) else str(empty)
    asked, base = base, places.folder_of(base)
    lower = lower_of(base, target)
    skeleton = places.kit.skeleton(base, target, ids, homes.known())
    frame = None if abilities.own().whole_mounts else plan_overlays(asked, places).frame
    if frame is not None and target in frame.folders:
        skeleton, lower = None, f"{places.kit.skeleton(base, '/', ids, homes.known(), frame=frame)}{target}"
    with contextlib.ExitStack() as mounted:

        def on_disk(path: str) -> str:
            if not ids.is_shifted or path == str(empty):  # it is on a tmpfs, which Linux idmaps only since 6.3
                return path
            place = mounted.enter_context(_place(places))
            idmapped.attach(path, place, idmapped.namespace(ids.lines()))
            mounted.callback(mounts.umount, place, mounts.MNT_DETACH)
            return place

        lowers = [*([skeleton] if skeleton else []), on_disk(lower)]
        place = mounted.enter_context(_place(places))
        try:
            _mount(place, [on_disk(above), *lowers])
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            _mount_over_itself(place, above, lowers, on_disk, mounted)
        mounted.callback(mounts.umount, place, mounts.MNT_DETACH)
        yield View(place, above)


def _mount(place: str, lowers: Sequence[str], more: str = "") -> None:
    options = f"lowerdir={':'.join(map(mounts.escape, lowers))}{more}"
    follow = "redirect_dir=follow" if abilities.own().owners else "userxattr,redirect_dir=nofollow"
    options += f",{follow},index=off,metacopy=off,xino=off,nfs_export=off"
    mounts.mount("overlay", place, "overlay", mounts.MS_RDONLY | mounts.MS_NODEV | mounts.MS_NOSUID, options)


def _mount_over_itself(
    place: str, above: str, lowers: Sequence[str], on_disk: Callable[[str], str], mounted: contextlib.ExitStack
) -> None:
    """Mount a view whose upper layer lies in the tree of the base: the pool is a folder on the file system of `/`.

    overlayfs refuses such a lower layer, but not such an upper directory. The mount is read-only, so nothing is written
    there. overlayfs also wants a folder for its work, in the same mount; it must not be that of a live session.
    """
    pool = str(Path(above).parents[2])
    work = mounted.enter_context(tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=pool))
    shown = on_disk(pool)
    upper, work = (mounts.escape(f"{shown}/{os.path.relpath(path, pool)}") for path in (above, work))
    _mount(place, lowers, f",upperdir={upper},workdir={work}")


@contextlib.contextmanager
def _place(places: SharedPlaces) -> Iterator[str]:
    place = places.runtime / f"{_PREFIX}{random_hex(8)}"
    place.mkdir(mode=0o700)
    try:
        yield str(place)
    finally:
        place.rmdir()


def sweep_views(places: SharedPlaces) -> None:
    """Remove the mount points that a killed daemon has left; its mounts have gone with it.

    A pool whose file system has failed cannot be listed (EIO): its folders stay, and the daemon can start.
    """
    for place in places.runtime.glob(f"{_PREFIX}*"):
        place.rmdir()
    try:
        left = list((places.home / FOLDER).glob(f"{_WORK_PREFIX}*"))
    except OSError as error:
        log.warning("mount points of views are not removed: %s", error)
        return
    for place in left:
        shutil.rmtree(place, ignore_errors=True)
