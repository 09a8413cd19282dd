"""Restoring the files of a live session from a capture, while its processes stay the same."""

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from waypoint.capture.captures import HeldCapture
from waypoint.launch import externals
from waypoint.linux.storage import beneath, files, idmapped
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import cgroups, procfs
from waypoint.linux.tasks.stages import stage
from waypoint.model.errors import CannotCapture, Failed, StoreDamaged, WaypointError, of_machine
from waypoint.model.paths import RUN_FOLDER
from waypoint.model.records import Capture
from waypoint.model.stages import Stage
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.session.views import mounted_view
from waypoint.upper import layout
from waypoint.upper.changes import changed_targets, has_entries
from waypoint.upper.contract import NEXT_STEPS
from waypoint.upper.rewind import Rewound, rewind
from waypoint.upper.views import Views

_NOTE = "rewind.json"

log = logging.getLogger(__name__)

# Files shared by the daemon and the session's shell: they belong to the running session and are not rewound.
_KEEP = frozenset({RUN_FOLDER, f"{RUN_FOLDER.partition('/')[0]}/lock"})


@stage(Stage.EXCHANGE)
def rewind_files(resources: Resources, live: LiveSession, origin: Capture) -> Rewound:
    """Give the frozen session `live` the files of `origin`. Blocks.

    Raises CannotCapture, with nothing changed, if `origin` has changes in mounts that the session lacks; Failed, with
    some files changed, if a file cannot be written (disk full).
    """
    with resources.captures.hold(origin) as held, resources.writing():
        return _rewind(resources, live, held)


def _rewind(resources: Resources, live: LiveSession, held: HeldCapture) -> Rewound:
    origin, wanted = held.capture, held.files
    resources.places.follow_host()
    present = resources.pool.path(live.record.row.tree)
    foreign = sorted(changed_targets(wanted) - set(live.record.overlays))
    if foreign:
        said = f"the capture has changes in mounts that this session does not have: {', '.join(foreign)}"
        raise CannotCapture("restore the files of", origin.id[:12], said, "restore the whole capture, without --only")
    done: dict[str, Rewound] = {}

    def rewind_all() -> None:
        for target in live.record.overlays:
            # Without changes in either tree there is nothing to restore, and the host's mount may be gone.
            if any(has_entries(layout.upper_of(tree, target)) for tree in (present, wanted)):
                done[target] = _rewind_one(resources, live, target, (present, wanted))

    try:
        for target in live.record.overlays:  # all must be mounted, checked before anything is changed
            with procfs.opened_mount(live.record.init_pid, target, "overlay"):
                pass
        resources.pool.retry_if_full(rewind_all)
    except OSError as error:
        where = f" {os.fsdecode(error.filename)}" if error.filename else ""
        if error.errno in (errno.ENOENT, beneath.MISPLACED):
            next_step = (
                "mount it again, or restore the capture on a new branch: "
                f"waypoint restore {origin.id[:12]} --new BRANCH"
            )
        elif error.errno == errno.E2BIG:
            next_step = "restore the whole capture, without --only"
        else:
            next_step = NEXT_STEPS.get(error.errno or 0, "try again")
        said = f"{error.strerror}{where}"
        raise Failed("restore the files of", origin.id[:12], said, next_step, code=of_machine(error.errno)) from error
    return Rewound(sum(one.changed for one in done.values()), sum(one.written_bytes for one in done.values()))


def _rewind_one(resources: Resources, live: LiveSession, target: str, trees: tuple[str, str]) -> Rewound:
    present, wanted = (layout.upper_of(tree, target) for tree in trees)
    root = live.record.ids.first
    with (
        mounted_view(resources.places, live.record.row.setting.base, target, wanted, live.record.ids) as view,
        open_folder(view.path) as shown,
        procfs.opened_mount(live.record.init_pid, target, "overlay") as inside,
        idmapped.acting_as(root, root),  # ids that the session's map lacks cannot create files in its overlay
    ):
        keep = _KEEP | _mount_points_in(target, live.record.outside)
        return rewind(present, view.upper, Views(shown, inside), keep=keep)


def _mount_points_in(target: str, outside: list[str]) -> frozenset[str]:
    """Return the session's mount points below its mount at `target`, as relative paths."""
    above = target.rstrip("/") + "/"
    points = (*outside, externals.PROC)
    return frozenset(point.removeprefix(above) for point in points if point.startswith(above) and point != above)


class _Note(msgspec.Struct):
    origin: str
    aside: str


@contextlib.contextmanager
def noted(folder: Path, origin: Capture, aside: Capture) -> Iterator[None]:
    """Keep a note about the restore in the runtime folder during the `with` block. If this daemon is killed, the next
    daemon reads the note and finishes the restore (`finish_interrupted`).
    """
    files.publish(str(folder / _NOTE), msgspec.json.encode(_Note(origin.id, aside.id)), durable=False)
    try:
        yield
    finally:
        (folder / _NOTE).unlink()


def is_under_way(folder: Path) -> bool:
    """Whether a restore of files was interrupted in the session with this runtime folder."""
    return (folder / _NOTE).exists()


def finish_interrupted(resources: Resources, live: LiveSession, folder: Path) -> None:
    """Finish a restore of files that a killed daemon has begun. If that fails, bring back the files from before it.

    Do nothing if no restore was under way, or if the capture of the state before was not yet recorded, because no file
    had been changed then. The caller thaws the session. After an OSError the next daemon can try again.
    """
    try:
        note = msgspec.json.decode((folder / _NOTE).read_bytes(), type=_Note)
    except FileNotFoundError:
        return
    try:
        ways = [resources.names.capture(note.aside)]
    except StoreDamaged as error:  # usually because it is not yet recorded, so no file was changed
        log.warning("a restore of files on %s was interrupted and is not finished: %s", live.branch, error)
    else:
        with contextlib.suppress(StoreDamaged):  # without `origin` only the files from before can be restored
            ways.insert(0, resources.names.capture(note.origin))
        cgroups.freeze(live.record.cgroup)
        for capture in ways:
            try:
                rewind_files(resources, live, capture)
                break
            except WaypointError as error:
                log.error("cannot restore files on %s: %s", live.branch, error)
    (folder / _NOTE).unlink()
