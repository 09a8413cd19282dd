"""Exporting captures to archives, and importing them as new captures."""

import contextlib
import time
from collections.abc import Callable

import msgspec

from waypoint.capture.layers.layer import Area
from waypoint.capture.storing.base_records import base_id, record_base
from waypoint.capture.storing.images import Images, OnProgress
from waypoint.capture.storing.orders import (
    ArchiveFile,
    Arrived,
    Export,
    Exported,
    Import,
    Imported,
    Inspect,
    Inspected,
)
from waypoint.linux.storage import filesystem
from waypoint.linux.storage.deep import remove_path
from waypoint.model.ids import new_id
from waypoint.model.records import BaseRef, Capture, Ref, Standing
from waypoint.model.times import iso_time
from waypoint.records.names import Names

_ANCESTORS = 1000
VERB = "import"
BaseName = Callable[[str], str]


class Archives:
    """All methods block."""

    def __init__(self, images: Images, area: Area, names: Names) -> None:
        self._images = images
        self._area = area
        self._names = names

    def history(self, capture: Capture, may_have: Callable[[Capture], bool]) -> list[Capture]:
        """The capture and those of its ancestors that `may_have` accepts, parents first."""
        found, waiting = {capture.id: capture}, [capture]
        while waiting and len(found) < _ANCESTORS:
            for parent in filter(may_have, self._names.parents_of(waiting.pop(0), found)):
                found[parent.id] = parent
                waiting.append(parent)
        return _parents_first(found, capture)

    def export(
        self, captures: list[Capture], name: str, file: ArchiveFile, on_progress: OnProgress, *, oci_layers: bool
    ) -> Exported:
        """Write a `history` to the new file `file.path`. The last capture
        must be stored. Of others that are not stored, the archive has only the records.
        """
        ids = [one.id for one in captures]
        standings, names = self._names.standings(ids), self._checkpoint_names(ids) | {ids[-1]: name}
        told = [
            Arrived(
                image=None if standings[one.id].removed else standings[one.id].image,
                capture=msgspec.structs.replace(one, parents=[parent for parent in one.parents if parent in standings]),
                name=names[one.id],
            )
            for one in captures
        ]
        told = [*self._bases_of(told), *told]
        scratch = new_id()
        with self._names.change("export") as change:
            change.add_disposable(scratch)
        folder = self._area.hot.folder / scratch
        folder.mkdir(mode=0o700)
        order = Export(
            store=str(self._images.store),
            file=file,
            scratch=str(folder),
            name=name,
            images=list(dict.fromkeys(one.image for one in told if one.image is not None)),
            records=msgspec.json.encode(told).decode(),
            created=iso_time(captures[-1].created),
            oci_layers=oci_layers,
        )
        try:
            return self._images.workers.run(order, Exported, on_progress)
        finally:
            with contextlib.suppress(OSError):
                remove_path(folder)

    def inspect(self, file: ArchiveFile, on_progress: OnProgress, *, may_be_privileged: bool) -> Inspected:
        """Check an archive; nothing is kept. `may_be_privileged`: as in the order Inspect."""
        order = Inspect(
            store=str(self._images.store),
            file=file,
            max_bytes=self._free_bytes(),
            may_be_privileged=may_be_privileged,
        )
        return self._images.workers.run(order, Inspected, on_progress)

    def take_in(
        self, file: ArchiveFile, found: Inspected, names: list[str], on_progress: OnProgress, base_name: BaseName
    ) -> tuple[list[Capture], int]:
        """Store the images of an archive that was inspected, and record their captures. `names`: the checkpoint of each
        capture, or "". `base_name`: the name of a pinned base, from that in the archive; a name that is taken, and "",
        is not given. Returns the captures, and by how many bytes the store has grown. No image may be removed
        meanwhile. Raises StateConflict if a name is taken.
        """
        order = Import(
            store=str(self._images.store),
            file=file,
            digest=found.digest,
            max_bytes=self._free_bytes(),
        )
        done = self._images.workers.run(order, Imported, on_progress)
        captures = _with_new_ids(found.captures)
        with self._names.change(VERB) as change:
            for capture, one, name in zip(captures, found.captures, names, strict=True):
                if capture.is_base and one.image is not None:
                    record_base(change, capture, one.image)
                    wanted = base_name(one.base)
                    if wanted and wanted not in change.bases():
                        ref = BaseRef(capture=capture.id, source=file.path, created=time.time())
                        change.put_base(wanted, ref)
                    continue
                change.add(capture)
                standing = Standing(image=one.image, durable=one.image is not None, removed=one.image is None)
                change.set_standing(capture.id, standing)
                if name:
                    change.check_new(name, "checkpoint")
                    change.create(name, Ref(kind="checkpoint", capture=capture.id, created=time.time()))
        return captures, done.new_bytes

    def _bases_of(self, told: list[Arrived]) -> list[Arrived]:
        """The pinned bases below these captures, of which more than the record is in the archive."""
        wanted = {one.capture.setting.pinned for one in told if one.image is not None} - {None}
        found = self._names.captures_of(sorted(filter(None, wanted)), may_lack=True)
        names = {ref.capture: name for name, ref in reversed(self._names.bases().items())}
        return [
            Arrived(image=self._names.standing(one.id).image, capture=one, base=names.get(one.id, ""))
            for one in found.values()
        ]

    def _checkpoint_names(self, captures: list[str]) -> dict[str, str]:
        """The first checkpoint of each capture, or ""."""
        refs = self._names.refs()
        return {
            capture: next((name for name in names if refs[name].kind == "checkpoint"), "")
            for capture, names in self._names.names_of_all(captures).items()
        }

    def _free_bytes(self) -> int:
        return filesystem.free_bytes(self._images.store.parent)


def _parents_first(found: dict[str, Capture], tip: Capture) -> list[Capture]:
    ordered: dict[str, Capture] = {}
    waiting = [tip]
    while waiting:
        missing = [found[one] for one in waiting[-1].parents if one in found and one not in ordered]
        if missing:
            waiting += missing
        else:
            one = waiting.pop()
            ordered[one.id] = one
    return list(ordered.values())


def _with_new_ids(found: list[Arrived]) -> list[Capture]:
    """The captures with new ids: those in an archive may be the ids of other captures here. The id of a base is that of
    its content.
    """
    ids = {one.capture.id: base_id(one.image) if one.capture.is_base and one.image else new_id() for one in found}
    return [
        msgspec.structs.replace(
            one.capture,
            id=ids[one.capture.id],
            parents=[ids[parent] for parent in one.capture.parents],
            layers={**one.capture.layers, "files": {"tree": ids[one.capture.id]}},
            branch_created=0.0,
        )
        for one in found
    ]
