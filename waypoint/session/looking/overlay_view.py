"""An overlay of a session or a capture, mounted read-only in the daemon's mount namespace: an upper over the base."""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.launch.ground import apart, homes
from waypoint.launch.ground.places import SharedPlaces
from waypoint.launch.ground.start_plan import needs_now
from waypoint.linux.calls import powers
from waypoint.linux.storage import filesystem, idmapped, mounts
from waypoint.linux.storage.beneath import MountPlace
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.ids import random_hex
from waypoint.model.records import HOST_IDS, IdMap, Setting
from waypoint.upper import layout

VIEW = "view-"


class ShownMount(NamedTuple):
    """What is to be shown: the mount at `target` of a session with this setting, whose changes there are in the folder
    `upper`. Its owners are those that a session with the map `ids` sees: as they are on disk, or shifted. `kept`:
    folders with files of the base that the session has had in place of the machine's, the topmost first.
    """

    setting: Setting
    target: str
    upper: str
    ids: IdMap = HOST_IDS
    kept: tuple[str, ...] = ()


class View(NamedTuple):
    """`path`: the mount point. `upper`: the folder of the upper layer."""

    path: str
    upper: str


@contextlib.contextmanager
def shown_upper(places: SharedPlaces, shown: ShownMount) -> Iterator[View]:
    """The view, mounted at a place of its own during the `with` block. Raises OSError: FileNotFoundError if the machine
    has no such mount any more.
    """
    with made_place(places) as place:
        upper = mount_view(places, shown, MountPlace(place))
        try:
            yield View(place, upper)
        finally:
            mounts.umount(place, mounts.MNT_DETACH)


def mount_view(places: SharedPlaces, shown: ShownMount, point: MountPlace, source: str = "overlay") -> str:
    """Mount the view at `point`. `source`: what mountinfo tells as its source. Returns the folder of its upper layer.
    Raises OSError, as `shown_upper`; then nothing is mounted.
    """
    has_upper = os.path.isdir(shown.upper)
    is_upper = has_upper and not powers.is_machines()
    try:
        return _mount(places, shown, point, source, is_upper=is_upper)
    except OSError as error:
        if error.errno != errno.ELOOP or is_upper or not (has_upper or shown.kept):
            raise
    # Where the pool, or the hot area, is on the base's own file system, only an upper may lie within a lower.
    with _copied(places, shown.kept) as kept:
        try:
            return _mount(places, shown._replace(kept=kept), point, source, is_upper=False)
        except OSError as error:
            if error.errno != errno.ELOOP or not has_upper:
                raise
        return _mount(places, shown._replace(kept=kept), point, source, is_upper=True)


@contextlib.contextmanager
def _copied(places: SharedPlaces, folders: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Copies of the folders, in memory: for what is mounted of them in the `with` block, and as long as that is."""
    with contextlib.ExitStack() as held:
        copies: list[str] = []
        for folder in folders:
            place = held.enter_context(made_place(places))
            mounts.mount("tmpfs", place, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, "mode=0755")
            held.callback(mounts.umount, place, mounts.MNT_DETACH)
            with open_folder(folder) as origin, open_folder(place) as copy:
                filesystem.copy_tree_within(None, origin, copy, xattrs=False)
            copies.append(place)
        yield tuple(copies)


def _mount(places: SharedPlaces, shown: ShownMount, point: MountPlace, source: str, *, is_upper: bool) -> str:
    """As `mount_view`. `is_upper`: the upper is that of the overlay, though nobody writes to it; else its topmost lower
    layer, for which the file system may be read-only.
    """
    setting, target, ids, upper = shown.setting, shown.target, shown.ids, shown.upper
    empty = (places.runtime if powers.is_machines() else places.kit.layers) / "empty"
    empty.mkdir(mode=0o700, exist_ok=True)
    above = upper if os.path.isdir(upper) else str(empty)
    lower = f"{setting.base.rstrip('/')}{target}".rstrip("/") or "/"
    needs = needs_now(setting, places)
    if not os.path.isdir(lower):
        raise FileNotFoundError(errno.ENOENT, "the machine has no such mount any more", lower)
    with contextlib.ExitStack() as held:

        def with_ids(path: str) -> str:
            """Where the folder has the owners that are shown."""
            if not ids.is_shifted or path == str(empty):  # that one is on a tmpfs, which Linux idmaps only since 6.3
                return path
            place = held.enter_context(made_place(places))
            idmapped.attach(path, place, idmapped.namespace(ids.lines()))
            held.callback(mounts.umount, place, mounts.MNT_DETACH)
            return place

        ours = [*_skeleton(places, shown, needs), *map(with_ids, shown.kept)]
        below = [] if target in needs.stand_ins else [with_ids(lower)]
        if is_upper:
            layers = [*ours, *below]
            top = os.path.join(with_ids(os.path.dirname(above)), os.path.basename(above))  # beside its work folder
            held.enter_context(idmapped.acting_as(ids.first or os.geteuid(), ids.first or os.getegid()))
        else:
            layers, top = [with_ids(above), *ours, *below], ""
        with point.opened() as place:
            flags = mounts.MS_RDONLY | mounts.MS_NODEV | mounts.MS_NOSUID
            mounts.mount(source, place, "overlay", flags, _options(layers, top))
        return above


def _skeleton(places: SharedPlaces, shown: ShownMount, needs: apart.Apart) -> list[str]:
    setting = shown.setting
    known = homes.hidden_from(setting.user)
    found = places.kit.skeleton(setting.base, shown.target, shown.ids, known, apart=needs)
    return [found] if found else []


def _options(layers: list[str], upper: str) -> str:
    """The options of mount(2); `upper`: "" if the topmost of the layers, which is not written to, is that."""
    lowers = ":".join(map(mounts.escape, layers))
    marks = "redirect_dir=follow" if powers.is_machines() else "userxattr"
    if upper:
        work = os.path.join(os.path.dirname(upper), os.path.basename(layout.work_of("")))
        marks += f",upperdir={mounts.escape(upper)},workdir={mounts.escape(work)}"
    return f"lowerdir={lowers},{marks},index=off,metacopy=off,xino=off,nfs_export=off"


@contextlib.contextmanager
def made_place(places: SharedPlaces) -> Iterator[str]:
    """A mount point for the `with` block."""
    place = places.runtime / f"{VIEW}{random_hex(8)}"
    place.mkdir(mode=0o700)
    try:
        yield str(place)
    finally:
        place.rmdir()


def sweep_views(places: SharedPlaces) -> None:
    """Remove the mount points that a killed daemon had made; the mounts ended with the daemon."""
    for place in places.runtime.glob(f"{VIEW}*"):
        place.rmdir()
