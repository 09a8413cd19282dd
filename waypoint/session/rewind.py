"""Restoring the files of a live session from a capture, while its processes stay the same.

The session is frozen while files change. So what takes long is done before, against a snapshot of the running session
(`prepared`): the content of the capture is extracted, and all files that differ are found and read. In the pause only
those are compared again that have changed since the snapshot.
"""

import contextlib
import errno
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from waypoint.capture.captures import HeldCapture
from waypoint.launch import externals
from waypoint.linux.storage import beneath, files, idmapped
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import cgroups, pauses, procfs, users_of_paths
from waypoint.linux.tasks.stages import OpenStage, stage
from waypoint.model.conditions import Degradation, degradation, some_of
from waypoint.model.errors import CannotCapture, Failed, StoreDamaged, WaypointError, of_machine
from waypoint.model.ids import new_id
from waypoint.model.paths import RUN_FOLDER
from waypoint.model.records import Capture
from waypoint.model.stages import Stage
from waypoint.session.live.resources import Resources
from waypoint.session.live.same_files import Compared, after_restore, touched_in
from waypoint.session.live.session import LiveSession
from waypoint.session.views import mounted_view
from waypoint.upper import layout
from waypoint.upper.changes import changed_targets, has_entries
from waypoint.upper.comparing import Scope
from waypoint.upper.contract import NEXT_STEPS
from waypoint.upper.rewind import Rewound, rewind
from waypoint.upper.rewind_plan import Plan, compare_used, make_plan, merge
from waypoint.upper.views import Candidate, Pairs, Views, candidates, find_touched

_NOTE = "rewind.json"
_BETWEEN_PAUSES = 32  # entries that are compared before the thread waits for a frozen session

log = logging.getLogger(__name__)

# Files shared by the daemon and the session's shell: they belong to the running session and are not rewound.
_KEEP = frozenset({RUN_FOLDER, f"{RUN_FOLDER.partition('/')[0]}/lock"})


class Outcome(NamedTuple):
    """`degraded`: the programs that use files which were replaced or removed."""

    files: Rewound
    degraded: list[Degradation]


class _Known(NamedTuple):
    """An overlay before the pause. `view`: a descriptor of it with the files of the capture. `plan`: None: none was
    made, because the session's files cannot be compared with a snapshot of them. `compared`: for this plan.
    """

    view: int
    plan: Plan | None
    compared: list[Candidate]


class _Part(NamedTuple):
    """An overlay in the pause."""

    target: str
    views: Views
    plan: Plan
    compared: Compared


@contextlib.contextmanager
def prepared(resources: Resources, live: LiveSession, origin: Capture) -> Iterator["Rewind"]:
    """Prepare a restore of the files of `origin`, while the session runs. Blocks. Raises CannotCapture if `origin` has
    changes in mounts that the session lacks, Failed.
    """
    with contextlib.ExitStack() as standing:
        held = standing.enter_context(resources.captures.hold(origin))
        standing.enter_context(resources.writing())
        with _in_words(origin), stage(Stage.COMPARE) as comparing:
            resources.places.follow_host()
            _check_mounts(live, held)
            seen = _snapshot(resources, live, standing)
            known = {
                target: _know(resources, live, target, (held, seen), standing, comparing)
                for target in live.record.overlays
                if any(has_entries(layout.upper_of(tree, target)) for tree in (held.files, seen) if tree)
            }
        yield Rewind(resources, live, held, known, seen)


def rewind_files(resources: Resources, live: LiveSession, origin: Capture) -> Outcome:
    """Give the frozen session `live` the files of `origin`, without preparation. Blocks. Raises as `prepared`, and
    Failed as `Rewind.carry_out`.
    """
    with resources.captures.hold(origin) as held, resources.writing():
        with _in_words(origin):
            resources.places.follow_host()
            _check_mounts(live, held)
            tree = live.record.row.tree
            resources.pool.sync(tree)  # until a commit, btrfs does not report all changes
        return Rewind(resources, live, held, {}, "").carry_out(resources.pool.path(tree))


class Rewind:
    """A restore of the files of the capture `held` in the session `live`. `known`: overlays by mount point. `seen`: the
    snapshot of the session's files with which they were compared; "": none.
    """

    def __init__(
        self, resources: Resources, live: LiveSession, held: HeldCapture, known: dict[str, _Known], seen: str
    ) -> None:
        self._resources = resources
        self._live = live
        self._held = held
        self._known = known
        self._seen = seen

    def carry_out(self, tree: str) -> Outcome:
        """Change the files of the session, which is frozen. `tree`: the path of an upper tree with its present files.
        Raises Failed, with some files changed, if a file cannot be written (disk full).
        """
        with _in_words(self._held.capture), contextlib.ExitStack() as held:
            # All overlays must be mounted, which is checked before anything is changed.
            found = [self._part(target, tree, held) for target in self._live.record.overlays]
            parts = [part for part in found if part is not None]
            users = _users(self._live, parts)
            if users:
                parts = [_with_used_compared(part, _all_paths(users)) for part in parts]
                users = _users(self._live, parts)
            earlier, self._live.same_files = self._live.same_files, None
            done = Outcome(self._write(parts, _all_paths(users)), _reported(users))
            if self._seen:
                compared = {part.target: part.compared for part in parts}
                self._live.same_files = after_restore(self._held.capture.id, compared, earlier, self._mark)
            return done

    def _mark(self) -> int | None:
        try:
            return self._resources.pool.mark(self._live.record.row.tree)
        except (OSError, WaypointError) as error:
            log.info("the next restore of files on %s compares all of them: %s", self._live.branch, error)
            return None

    def _write(self, parts: Sequence[_Part], used: set[str]) -> Rewound:
        root, done = self._live.record.ids.first, list[Rewound]()
        with stage(Stage.EXCHANGE, total=sum(len(part.plan.differences) for part in parts)) as exchanging:

            def act() -> None:
                done.clear()
                exchanging.report(0)
                with idmapped.acting_as(root, root):  # ids that the session's map lacks cannot create files there
                    done.extend(_rewind(part, used, exchanging) for part in parts)

            self._resources.pool.retry_if_full(act)
        return Rewound(sum(one.changed for one in done), sum(one.written_bytes for one in done))

    def _part(self, target: str, tree: str, held: contextlib.ExitStack) -> _Part | None:
        live, known = self._live, self._known.get(target)
        inside = held.enter_context(procfs.opened_mount(live.record.init_pid, target, "overlay"))
        wanted, present = (layout.upper_of(one, target) for one in (self._held.files, tree))
        if not any(map(has_entries, (wanted, present))):  # nothing to restore, and the host's mount may be gone
            return None
        keep = _kept_in(live, target)
        scope = Scope(excluded=keep)
        earlier = known.plan if known is not None else None
        shown = known.view if known is not None else _view(self._resources, live, target, wanted, held)
        touched = find_touched(tree, self._seen if earlier is not None else self._held.files, target)
        differing = candidates(wanted, present, scope.concerns, touched)
        views = Views(shown, inside)
        with Pairs(views, across=True) as pairs:
            plan = make_plan(differing, pairs, scope)
        compared = differing if known is None else [*known.compared, *differing]
        if earlier is not None and touched is not None:
            plan = merge(earlier, plan, {one.path for one in differing})
        return _Part(target, views, plan, Compared(keep, compared))


def _rewind(part: _Part, used: set[str], exchanging: OpenStage) -> Rewound:
    return rewind(
        part.plan,
        part.views,
        keep=part.compared.kept,
        in_use=lambda path: _inside(part, path) in used,
        on_step=exchanging.step,
    )


def _check_mounts(live: LiveSession, held: HeldCapture) -> None:
    foreign = sorted(changed_targets(held.files) - set(live.record.overlays))
    if foreign:
        said = f"the capture has changes in mounts that this session does not have: {', '.join(foreign)}"
        next_step = "restore the whole capture, without --only"
        raise CannotCapture("restore the files of", held.capture.id[:12], said, next_step)


def _snapshot(resources: Resources, live: LiveSession, standing: contextlib.ExitStack) -> str:
    """The path of a snapshot of the session's upper tree, which exists until `standing` ends. "" if the pool would have
    to copy all files for it, or cannot tell what has changed since.
    """
    if resources.pool.driver != "btrfs":
        return ""
    resources.pool.check_writable()
    name = new_id()
    with resources.names.change("capture") as change:
        change.add_disposable(name)
    path = resources.pool.snapshot(live.record.row.tree, name, sealed=True)
    standing.callback(resources.pool.remove, name)
    return path


def _know(
    resources: Resources,
    live: LiveSession,
    target: str,
    states: tuple[HeldCapture, str],
    standing: contextlib.ExitStack,
    comparing: OpenStage,
) -> _Known:
    held, seen = states
    trees = (held.files, seen)
    uppers = [layout.upper_of(tree, target) for tree in trees]
    view = _view(resources, live, target, uppers[0], standing)
    if not seen:
        return _Known(view, None, [])
    kept = _kept_in(live, target)
    scope = Scope(excluded=kept)
    touched = touched_in(trees, target, kept, held.capture.id, live.same_files)
    differing = candidates(uppers[0], uppers[1], scope.concerns, touched)
    with contextlib.ExitStack() as opened:
        # In these views, ids are those on disk, as in the upper directories.
        mounted = [
            opened.enter_context(mounted_view(resources.places, live.record.row.setting.base, target, upper))
            for upper in uppers
        ]
        shown, sealed = (
            [opened.enter_context(open_folder(place)) for place in places]
            for places in ([one.path for one in mounted], [one.upper for one in mounted])
        )
        with Pairs(Views(*shown), (sealed[0], sealed[1])) as pairs:
            return _Known(view, make_plan(_with_breaks(differing, comparing), pairs, scope), differing)


def _with_breaks(found: Sequence[Candidate], comparing: OpenStage) -> Iterator[Candidate]:
    """Yield the candidates, and report the progress; wait now and then while a session is frozen."""
    for number, candidate in enumerate(found):
        if number % _BETWEEN_PAUSES == 0:
            comparing.report(number, len(found))
            pauses.wait()
        yield candidate


def _view(resources: Resources, live: LiveSession, target: str, upper: str, standing: contextlib.ExitStack) -> int:
    base, ids = live.record.row.setting.base, live.record.ids
    view = standing.enter_context(mounted_view(resources.places, base, target, upper, ids))
    return standing.enter_context(open_folder(view.path))


def _with_used_compared(part: _Part, used: set[str]) -> _Part:
    with Pairs(part.views, across=True) as pairs:
        return part._replace(plan=compare_used(part.plan, pairs, lambda path: _inside(part, path) in used))


def _users(live: LiveSession, parts: Sequence[_Part]) -> dict[int, list[str]]:
    """By process, the files that it uses and that are about to be replaced or removed."""
    gone = {
        _inside(part, one.path)
        for part in parts
        for one in part.plan.differences
        if one.how in ("changed", "removed", "type")
    }
    return users_of_paths.find(live.processes(), gone) if gone else {}


def _all_paths(users: dict[int, list[str]]) -> set[str]:
    return {path for paths in users.values() for path in paths}


def _inside(part: _Part, path: str) -> str:
    """The path in the session."""
    return f"{part.target.rstrip('/')}/{path}"


def _reported(users: dict[int, list[str]]) -> list[Degradation]:
    pids = dict[tuple[str, str], list[str]]()
    for pid, paths in users.items():
        with contextlib.suppress(ProcessLookupError):
            pids.setdefault((procfs.stat(pid).name, some_of(paths)), []).append(str(procfs.session_pid(pid)))
    return [
        degradation("replaced-files-open", paths, f"{name} (pid {some_of(numbers)})")
        for (name, paths), numbers in pids.items()
    ]


@contextlib.contextmanager
def _in_words(origin: Capture) -> Iterator[None]:
    """Turn an OSError of the `with` block into Failed."""
    try:
        yield
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


def _kept_in(live: LiveSession, target: str) -> frozenset[str]:
    """The paths in the overlay at `target` that are not restored."""
    return _KEEP | _mount_points_in(target, live.record.outside)


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
