"""Bringing a capture back from the store, to places that were made for it (staging.py)."""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator

from waypoint.capture.base_files import base_listing
from waypoint.capture.base_files.base_bringing import BaseBringing
from waypoint.capture.base_files.base_part import listing_in
from waypoint.capture.base_files.open_inodes import made_first, note_others
from waypoint.capture.layers import hot
from waypoint.capture.steps import StoreStep, reach
from waypoint.capture.storing.image_manifest import BASE, FILES, MEMORY, PROCESSES, REST, manifest_in
from waypoint.capture.storing.orders import BringBase, BroughtBase, Recall
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.details.attached_records import ATTACHED_TO
from waypoint.model.errors import Failed, StoreDamaged, as_text
from waypoint.model.names import parse_kind
from waypoint.processes.criu.mends import give_ids
from waypoint.store.content.object_reader import ANOTHER
from waypoint.store.content.opened import Store
from waypoint.store.trees.bringing import Bringing
from waypoint.store.trees.earlier import Earlier


def recall(store: Store, order: Recall) -> None:
    """Bring all parts of the image to where the order says. Raises UnknownName, StoreDamaged, Failed, OSError; a part
    is there then.
    """
    manifest = manifest_in(store, order.image)
    parts = manifest.parts
    hot_places = {PROCESSES: f"{order.hot}/{hot.IMAGES}", MEMORY: f"{order.hot}/{hot.MEMORY}"}
    places = {FILES: order.tree, REST: order.hot, **hot_places, **_attached(parts, f"{order.hot}/{hot.ATTACHED}")}
    inodes = manifest.inodes or []
    for name, place in places.items():
        if name in parts:
            if name != FILES:
                os.makedirs(place, 0o700)
            first = made_first(place, inodes if name == FILES else [])
            with store.reading() as reader, open_folder(place) as fd, _told(order, place), first as made:
                Bringing(reader, bytes.fromhex(parts[name].root), made=made).to(fd)
            if name in (REST, PROCESSES):
                _check_plain(order, place, order.hot)
            reach(StoreStep.BROUGHT_ONE)
    _check_tree(order)
    if PROCESSES in parts:
        note_others(order.hot, order.tree, inodes)
        with store.reading() as reader:
            root = bytes.fromhex(parts[BASE].root) if BASE in parts else b""
            base_listing.save(order.hot, listing_in(Earlier(reader, root), manifest.base_left_out or []))
    if order.ids is not None:
        try:
            with open_folder(hot_places[PROCESSES]) as fd:
                give_ids(fd, order.ids)
        except (ValueError, FileNotFoundError) as error:
            said = f"its images are none of CRIU's: {error}"
            raise StoreDamaged("bring back the processes of", f"image {order.image[:16]}", said, ANOTHER) from error


@contextlib.contextmanager
def _told(order: Recall, place: str) -> Iterator[None]:
    """What the kernel says in the `with` block becomes Failed: else it would be told of the index of the store."""
    try:
        yield
    except OSError as error:
        from waypoint.upper.contract import NEXT_STEPS  # takes as long to load as a small order takes

        next_step = NEXT_STEPS.get(error.errno or 0, "see the kernel's log (dmesg), and try again")
        on = f"image {order.image[:16]} to {place}"
        raise Failed("bring back", on, error.strerror or str(error), next_step) from error


def _check_tree(order: Recall) -> None:
    """Raise StoreDamaged if what a session has its layers of is no folder, but leads elsewhere."""
    with os.scandir(order.tree) as mounts:
        for mount in mounts:
            if not mount.is_dir(follow_symlinks=False):
                raise _no_tree(order, mount.name)
            with os.scandir(mount.path) as layers:
                for layer in layers:
                    if not layer.is_dir(follow_symlinks=False):
                        raise _no_tree(order, f"{mount.name}/{layer.name}")
            # Others are copied over files of the base, with the machine's rights.
            _check_plain(order, f"{mount.path}/base", order.tree)


def _check_plain(order: Recall, folder: str, within: str) -> None:
    """Raise StoreDamaged if the folder has anything but files and folders: who reads or writes there follows links, and
    has the machine's rights. `within`: a folder above, for the message.
    """
    for above, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(above, name)
            if not stat.S_ISDIR(mode := os.lstat(path).st_mode) and not stat.S_ISREG(mode):
                shown = as_text(os.path.relpath(path, within))
                said = f"its files are none of a session: {shown} is neither a file nor a folder"
                raise StoreDamaged("bring back", f"image {order.image[:16]}", said, ANOTHER)


def _no_tree(order: Recall, name: str) -> StoreDamaged:
    said = f"its files are none of a session: {as_text(name)} is no folder"
    return StoreDamaged("bring back the files of", f"image {order.image[:16]}", said, ANOTHER)


def bring_base(store: Store, order: BringBase) -> BroughtBase:
    """Raises UnknownName, StoreDamaged, CannotCapture, Failed; some of the files are there then."""
    part = manifest_in(store, order.image).parts.get(BASE)
    with store.reading() as reader:
        root = bytes.fromhex(part.root) if part is not None else b""
        return BroughtBase(files=BaseBringing(reader, root, order.base, order.tree).bring(order.files))


def _attached(parts: Iterable[str], folder: str) -> dict[str, str]:
    """Where each part goes that was attached. Raises UsageProblem for one whose name no kind can have."""
    kinds = [part.removeprefix(ATTACHED_TO) for part in parts if part.startswith(ATTACHED_TO)]
    return {f"{ATTACHED_TO}{kind}": f"{folder}/{parse_kind(kind)}" for kind in kinds}
