"""Pinned bases: making them of files of the machine, listing them, removing their names."""

import asyncio
import functools
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from waypoint.capture.bases import Created, Filled
from waypoint.capture.storing.images import OnProgress
from waypoint.launch.ground import homes
from waypoint.launch.ground.start_plan import plan_overlays
from waypoint.linux.storage import filesystem
from waypoint.linux.tasks.stages import OpenStage, stage
from waypoint.model.conditions import facts_of
from waypoint.model.errors import StateConflict, UnknownName, UsageProblem
from waypoint.model.facts import BaseFacts, BaseMadeFacts, BaseRemovedFacts, ImageFacts
from waypoint.model.names import parse_name
from waypoint.model.paths import is_below
from waypoint.model.records import BaseRef, Capture
from waypoint.model.requests import BaseRequest
from waypoint.model.stages import Stage
from waypoint.model.times import iso_time
from waypoint.model.verbs import did_you_mean
from waypoint.service.background.jobs import Job
from waypoint.service.home import Home
from waypoint.service.layers import caller_of, check_absolute
from waypoint.session.birth import rights

_EMPTIED = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp")
"""Folders of the machine of which a base has no content."""
Filling = Callable[[Path, OnProgress], Filled]
_LAYOUT = "oci-layout"
_ROOTS = "programs of root in sessions would trust your files"


async def create(home: Home, request: BaseRequest) -> BaseMadeFacts:
    """Make a base, as a job. If that fails, nothing is kept. Raises StateConflict if the name is taken."""
    name, on = parse_name(request.name), f"base {request.name}"
    rights.check_unrestricted(home.sessions.resources, "create", on, _ROOTS)
    fill = await asyncio.to_thread(_source, home, request, on)
    _check_free(home, request)
    made = await home.jobs.result(home.jobs.start("base", functools.partial(_work, home, request, fill)))
    assert isinstance(made, Created)
    return BaseMadeFacts(
        name=name, id=made.capture.id, image=made.image, left_out=facts_of(made.left_out), new_bytes=made.new_bytes
    )


async def list_bases(home: Home) -> list[BaseFacts]:
    return await asyncio.to_thread(_facts, home, home.names.bases())


async def show(home: Home, name: str) -> BaseFacts:
    """Raises UnknownName."""
    ref = _found(home, name, "show")
    (facts,) = await asyncio.to_thread(_facts, home, {name: ref})
    return facts


async def remove(home: Home, name: str) -> BaseRemovedFacts:
    """Remove the name. Sessions and captures on the base keep its files, and a gc removes them after the last of these.
    Raises UnknownName.
    """
    rights.check_unrestricted(home.sessions.resources, "remove", f"base {name}", "bases belong to root")
    ref = _found(home, name, "remove")
    with home.names.change("base rm") as change:
        change.put_base(name, None)
        change.note = f"{name} was {ref.capture[:12]}"
    return BaseRemovedFacts(name=name, id=ref.capture)


def _source(home: Home, request: BaseRequest, on: str) -> Filling:
    """A function that provides the files of the requested base. Raises UsageProblem."""
    source, gather = request.source, home.captures.bases.gather
    if source is None:
        return functools.partial(_copy_machine, home)
    check_absolute("create a base from", source)
    if os.path.isfile(source) or os.path.lexists(f"{source}/{_LAYOUT}"):
        return functools.partial(home.captures.bases.unpack, source, caller_of("container images"))
    if not os.path.isdir(source):
        said = "it is neither a file nor a directory" if os.path.lexists(source) else "there is no such file"
        next_step = "name a directory that has a root file system, a container image or a Dockerfile"
        raise UsageProblem("create a base from", source, said, next_step)
    homes.check_copied(source, "create", on)
    return lambda target, on_progress: gather([(os.path.realpath(source), "")], target, on_progress)


def _copy_machine(home: Home, target: Path, on_progress: OnProgress) -> Filled:
    """Copy the files of the machine that a new session sees."""
    places = home.sessions.resources.places
    places.follow_host()
    plan = plan_overlays("/", places)
    folders = [(point, point.strip("/")) for point in plan.overlays if not _is_in_emptied(point)]
    hidden = {*homes.known(), *places.hidden, *filesystem.swap_files()}
    found = home.captures.bases.gather(folders, target, on_progress, sorted(hidden), _EMPTIED)
    return Filled([*found.left_out, *(one for one in plan.left_out if not _is_in_emptied(one.subject))])


def _is_in_emptied(path: str) -> bool:
    return path not in _EMPTIED and any(is_below(path, folder) for folder in _EMPTIED)


def _check_free(home: Home, request: BaseRequest) -> None:
    if request.name in home.names.bases() and not request.force:
        said, next_step = "there is a base of this name", "choose another name, or replace it: --force"
        raise StateConflict("create", f"base {request.name}", said, next_step, code="name-taken")


async def _work(home: Home, request: BaseRequest, fill: Filling, job: Job) -> Created:
    await home.jobs.ended("gc")  # it may be removing a base with the same files

    def create() -> Created:
        with stage(Stage.STORE, unit="bytes") as under_way:
            report = functools.partial(_report, job, under_way)
            source = request.label or request.source or "this machine"

            def copy(target: Path) -> Filled:
                return fill(target, report)

            return home.captures.bases.create(request.name, source, copy, home.storing.lock, report)

    thread = asyncio.ensure_future(asyncio.to_thread(create))
    try:
        made = await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait([thread])
        raise
    home.due_for_removal.pop(made.capture.id, None)
    return made


def _report(job: Job, under_way: OpenStage, done: int) -> None:
    job.report(bytes=done)
    under_way.report(done)


def _found(home: Home, name: str, tried: str) -> BaseRef:
    found = home.names.bases()
    if name not in found:
        said = f"there is no such base{did_you_mean(name, found)}"
        raise UnknownName(tried, f"base {name}", said, "'waypoint base list' lists the bases")
    return found[name]


def _facts(home: Home, found: dict[str, BaseRef]) -> list[BaseFacts]:
    captures = home.names.captures_of([ref.capture for ref in found.values()], may_lack=True)
    rows = home.names.live()
    return [
        BaseFacts(
            name=name,
            id=ref.capture,
            image=home.names.standing(ref.capture).image,
            source=ref.source,
            created=iso_time(ref.created),
            on_disk=ref.capture in captures and home.captures.images.is_hot(captures[ref.capture]),
            sessions=[row.branch for row in rows if row.setting.pinned == ref.capture],
            config=_config(captures.get(ref.capture)),
        )
        for name, ref in found.items()
    ]


def _config(base: Capture | None) -> ImageFacts | None:
    image = base.setting.image if base is not None else None
    return ImageFacts(**msgspec.structs.asdict(image)) if image is not None else None
