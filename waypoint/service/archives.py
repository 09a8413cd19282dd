"""Requests to export a capture to a file, and to import such a file."""

import asyncio
import functools
from collections.abc import Callable
from typing import TypeVar

from waypoint.capture.storing.base_records import base_id
from waypoint.capture.storing.orders import ArchiveFile, Inspected
from waypoint.launch.ground import id_choice
from waypoint.linux.tasks.stages import OpenStage, stage
from waypoint.model.errors import StateConflict, StoreDamaged, UsageProblem
from waypoint.model.facts import ExportFacts, ImportFacts
from waypoint.model.names import parse_name
from waypoint.model.records import Capture, ProcessesLayer
from waypoint.model.requests import ExportRequest, ImportRequest
from waypoint.model.stages import Stage
from waypoint.service.background.jobs import Job
from waypoint.service.home import Home
from waypoint.service.layers import caller_of, check_absolute
from waypoint.session.birth import rights

_ARCHIVES = "archives"
Result = TypeVar("Result")


async def export(home: Home, request: ExportRequest) -> ExportFacts:
    """Write a capture and its ancestors to a new file, with the caller's rights, as a job. The capture, and ancestors
    with a name, are stored first. Ancestors of other users are left out, if the caller may not use them.
    Raises UnknownName, StateConflict if the file exists.
    """
    resources, name = home.sessions.resources, request.name
    user = caller_of(_ARCHIVES)
    rights.check_name(resources, name, "export")
    capture = await asyncio.to_thread(home.names.resolve, name)
    rights.check_origin(resources, capture.setting.user, "export", name)
    for path in filter(None, (request.dest, request.sign)):
        check_absolute("export", path)

    def may_have(ancestor: Capture) -> bool:
        return rights.may_use(resources, ancestor.setting.user.uid)

    history = await asyncio.to_thread(home.captures.archives.history, capture, may_have)
    for one in history:
        if one is capture or (home.names.names_of(one.id) and not home.names.standing(one.id).removed):
            await home.storing.wait(one)
    image = home.names.standing(capture.id).image
    assert image is not None
    file = ArchiveFile(path=request.dest, user=user, key=request.sign or "")
    label = name if home.names.ref(name) is not None else (home.names.names_of(capture.id) or [capture.branch])[0]

    def work(job: Job) -> Callable[[], ExportFacts]:
        def write() -> ExportFacts:
            with stage(Stage.EXPORT, unit="bytes") as under_way:
                report = functools.partial(_report, job, under_way)
                done = home.captures.archives.export(history, label, file, report, oci_layers=request.oci_layers)
            return ExportFacts(
                name=label,
                capture=capture.id,
                image=image,
                path=request.dest,
                digest=done.digest,
                size_bytes=done.size_bytes,
                captures=len(history),
                signed=request.sign is not None,
                exposes=home.captures.images.keys.encryption is not None,
            )

        return write

    return await _as_job(home, "export", work, ExportFacts)


async def import_archive(home: Home, request: ImportRequest) -> ImportFacts:
    """Import the captures of a file, as a job. If that fails, nothing is kept. Raises StateConflict if the name is
    taken, StoreDamaged for what Waypoint cannot have written.
    """
    resources, user = home.sessions.resources, caller_of(_ARCHIVES)
    # It may contain files of root, such as /etc/sudoers, which a user's own session could not have made.
    said = "sessions made from it could have rights that you do not have"
    rights.check_unrestricted(resources, "import", request.source, said)
    for path in filter(None, (request.source, request.require_signature)):
        check_absolute("import", path)
    file = ArchiveFile(path=request.source, user=user, key=request.require_signature or "")
    await home.jobs.ended("gc")  # it may be removing a base that the archive has

    def work(job: Job) -> Callable[[], ImportFacts]:
        def take_in() -> ImportFacts:
            with stage(Stage.IMPORT, unit="bytes") as under_way:
                return _import(home, request, file, functools.partial(_report, job, under_way))

        return take_in

    return await _as_job(home, "import", work, ImportFacts)


def _import(home: Home, request: ImportRequest, file: ArchiveFile, on_progress: Callable[[int], None]) -> ImportFacts:
    is_shifted = not home.why_host_ids()
    found = home.captures.archives.inspect(file, on_progress, may_be_privileged=is_shifted)
    names = _new_names(home, request, found)
    _check_rights(home, found, is_shifted=is_shifted)
    with home.storing.lock:
        prefix = None if request.name is not None else request.prefix
        captures, new_bytes = home.captures.archives.take_in(
            file, found, names, on_progress, lambda name: f"{prefix}{name}" if name and prefix is not None else ""
        )
    for one in captures:
        if one.is_base:
            home.captures.readmit(one.id)
            home.due_for_removal.pop(one.id, None)
    tip = captures[-1]
    image = home.names.standing(tip.id).image
    assert image is not None
    return ImportFacts(
        name=names[-1],
        names=[name for name in names if name],
        capture=tip.id,
        image=image,
        tier=tip.tier,
        captures=sum(not one.is_base for one in captures),
        new_bytes=new_bytes,
        digest=found.digest,
        signed=request.require_signature is not None,
        asks_for=_asks_for(tip),
    )


def _new_names(home: Home, request: ImportRequest, found: Inspected) -> list[str]:
    """The name of each capture, or "". Raises StateConflict if one is taken."""
    names = [f"{request.prefix}{one.name}" if one.name else "" for one in found.captures]
    if request.name is not None:
        names = [*("" for _ in names[1:]), request.name]
    try:
        for name in filter(None, names):
            home.names.check_new(parse_name(name), "checkpoint")
    except (StateConflict, UsageProblem) as error:
        error.next_step = "choose other names: waypoint import FILE --as NEW, or --prefix PREFIX"
        raise
    return names


def _check_rights(home: Home, found: Inspected, *, is_shifted: bool) -> None:
    """Check users, bases, binds and networks of the captures, as for the start of a session."""
    inside = {base_id(one.image) for one in found.captures if one.capture.is_base and one.image is not None}
    for one in found.captures:
        if one.image is None:
            continue
        pinned = one.capture.setting.pinned
        if pinned is not None and pinned not in inside and not home.names.captures_of([pinned], may_lack=True):
            said = f"neither it nor this home has the base {pinned[:12]}, on which a capture in it depends"
            raise StoreDamaged("import", "the archive", said, "export the capture again", code="archive-refused")
        rights.restricted(home.sessions.resources, one.capture.setting)
        said = _why_not_ids(one.capture, is_shifted=is_shifted)
        if said:
            next_step = "export the capture at another tier: waypoint checkpoint NAME --tier respawn"
            raise StoreDamaged("import", "the archive", said, next_step, code="image-refused")


def _why_not_ids(capture: Capture, *, is_shifted: bool) -> str:
    """Why the processes of the capture may not run with the ids that they had; "" if they may."""
    processes = capture.layer(ProcessesLayer)
    if processes is None:
        return ""
    ids = processes.ids
    if not ids.is_shifted:
        return "its processes have the user ids of the machine, and sessions here have not" if is_shifted else ""
    if not all(id_choice.is_of_sessions(ids.outside(one)) for one in (0, ids.last)) or len(set(ids.more)) < len(
        ids.more
    ):
        return "its processes have user ids that no session has"
    return ""


def _asks_for(capture: Capture) -> list[str]:
    setting, processes = capture.setting, capture.layer(ProcessesLayer)
    found = [f"user {setting.user.name} ({setting.user.uid})"]
    found += [f"base {setting.base}"] if setting.base != "/" and setting.pinned is None else []
    found += [f"{'read' if one.readonly else 'write'} access to {one.source}" for one in setting.binds]
    found += ["the host's network"] if setting.net == "host" else []
    is_open = processes is not None and processes.seccomp == "none"
    found += ["all system calls"] if is_open else []
    return found


def _report(job: Job, under_way: OpenStage, done: int) -> None:
    job.report(bytes=done)
    under_way.report(done)


async def _as_job(home: Home, kind: str, work: Callable[[Job], Callable[[], Result]], result: type[Result]) -> Result:
    async def run(job: Job) -> object:
        thread = asyncio.ensure_future(asyncio.to_thread(work(job)))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            await asyncio.wait([thread])
            raise

    found = await home.jobs.result(home.jobs.start(kind, run))
    assert isinstance(found, result)
    return found
