"""An export becomes captures of this home: in the store alone, from where they are brought back by who needs them."""

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import asdict
from typing import TypeVar

import msgspec

from waypoint.capture.elsewhere import is_of_here, lacking_here
from waypoint.capture.steps import StoreStep, reach
from waypoint.capture.storing.orders import ArrivedImage, Ingested, Inspect, Inspected, TakeExport
from waypoint.egress.allowed import is_network
from waypoint.launch.ground import homes
from waypoint.launch.ground.base import OWN_PLACES, is_below
from waypoint.launch.ground.limits import fill_in
from waypoint.launch.ground.start_plan import plan_overlays
from waypoint.launch.walls import masks
from waypoint.linux.storage import files, mounts
from waypoint.model.details.image_facts import ImportedFacts
from waypoint.model.errors import MAKE_ROOM, Failed, HostLacks, UsageProblem
from waypoint.model.ids import new_id
from waypoint.model.names import parse_name
from waypoint.model.records import Capture, FilesLayer, Ref, SessionLimits, Standing, User
from waypoint.model.requests import ImportRequest
from waypoint.model.streams import Inlet, Outlet, StreamDeserted
from waypoint.model.times import BEGAN_ELSEWHERE
from waypoint.service.background.jobs import Job
from waypoint.service.durable.keeping import others_end, store_of
from waypoint.service.durable.store_process import carry_out, keep_record
from waypoint.service.home import Home
from waypoint.service.shapes import Stream
from waypoint.session.birth import rights
from waypoint.store.change import Change

_LEAST_FREE = 64 << 20
"""What an export leaves of the disk while it is looked at, in bytes: others need it meanwhile."""
Gained = TypeVar("Gained")


async def import_(home: Home, request: ImportRequest) -> Stream:
    """A stream that takes the bytes of an export, to an empty frame; its end has ImportedFacts. Raises UsageProblem
    (the name), StateConflict (it is taken), NotAllowed; the stream StoreDamaged (what has come is no whole export, or
    not as it was signed), HostLacks (the passphrase), Failed. After a failure nothing of it is here.
    """
    said = "its programs come back as whoever they were, also as root"
    rights.check_unbound(home.sessions.resources, "import", "an image", said)
    if request.name is not None:
        home.names.check_new(parse_name(request.name), "checkpoint")
    return functools.partial(_receive, home, request)


async def _receive(home: Home, request: ImportRequest, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
    with _unnamed(home) as fd:
        while (frame := await inlet.receive()) is not None and frame.payload:
            await asyncio.to_thread(_keep, fd, frame.payload)
        if frame is None:
            raise StreamDeserted("the client has gone")
        return asdict(await _while_there(inlet, _take_in(home, request, fd)))


@contextlib.contextmanager
def _unnamed(home: Home) -> Iterator[int]:
    """A file for what comes. Nothing of it is left, whoever is killed."""
    try:
        fd = files.open_unnamed(str(home.path))
    except OSError as error:
        raise Failed("import into", str(home.path), error.strerror or str(error), MAKE_ROOM) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _keep(fd: int, content: bytes) -> None:
    try:
        if _free_bytes(fd) < _LEAST_FREE + len(content):
            raise Failed("import", "the export", "the disk of the home has no room for it", MAKE_ROOM)
        files.write_all(fd, content)
    except OSError as error:
        raise Failed("import", "the export", error.strerror or str(error), MAKE_ROOM) from error


def _free_bytes(fd: int) -> int:
    facts = os.fstatvfs(fd)
    return facts.f_bavail * facts.f_frsize


async def _while_there(inlet: Inlet, work: Awaitable[Gained]) -> Gained:
    """What `work` gives. It is cancelled when the client has gone."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(inlet.receive())
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise StreamDeserted("the client has gone")
        return await task
    finally:
        for one in (gone, task):
            one.cancel()
        await asyncio.gather(gone, task, return_exceptions=True)


async def _take_in(home: Home, request: ImportRequest, fd: int) -> ImportedFacts:
    looked = os.dup(fd)
    most = max(0, _free_bytes(fd))
    looking = Inspect(
        store=store_of(home), fd=looked, passphrase=request.passphrase, signer=request.signer, most_bytes=most
    )
    found = await carry_out(home, looking, Inspected, fds=[looked])
    await asyncio.to_thread(reach, StoreStep.INSPECTED)
    name = request.name or found.name
    if not name:
        said = "it has no name, neither here nor where it was made"
        raise UsageProblem("import", "the export", said, "give it one: waypoint import FILE --as NAME")
    home.names.check_new(parse_name(name), "checkpoint")
    if not request.trust and not request.signer:
        await asyncio.to_thread(_check_walls, home, found.images)
    while await others_end(home):
        pass
    putting = home.jobs.start("store", functools.partial(_put, home, found, name, request.passphrase, os.dup(fd)))
    facts = await home.jobs.result(putting)
    assert isinstance(facts, ImportedFacts)
    return facts


async def _put(home: Home, found: Inspected, name: str, passphrase: str, fd: int, job: Job) -> ImportedFacts:
    order = TakeExport(store=store_of(home), fd=fd, passphrase=passphrase, digest=found.digest)
    done = await carry_out(home, order, Ingested, job, fds=[fd])
    new: list[Capture] = []
    with home.names.change("import") as change:
        known = change.captures_of_images([one.image for one in found.images])
        for one in found.images:
            if one.image not in known:
                capture = _as_ours(home, change, one, [known[parent] for parent in one.parents if parent in known])
                change.add(capture)
                change.set_standing(capture.id, Standing(image=one.image, durable=True, parts=one.parts))
                known[one.image] = capture.id
                new.append(capture)
        capture = change.capture(known[done.image])
        change.check_new(name, "checkpoint")
        change.create(name, Ref(kind="checkpoint", capture=capture.id, created=time.time()))
    await asyncio.to_thread(keep_record, home)
    there = {one.image for one in found.images}
    lacking = len({parent for one in found.images for parent in one.parents} - there)
    return ImportedFacts(
        name=name,
        capture=capture.id,
        image=done.image,
        images=len(found.images),
        new=len(new),
        added_bytes=done.added_bytes,
        signer=found.signer,
        elsewhere=await asyncio.to_thread(lacking_in, home, capture),
        left_out=[f"{lacking} that it goes on from"] if lacking else [],
    )


def lacking_in(home: Home, capture: Capture) -> list[str]:
    """In words, what of the capture cannot come back on this machine. Blocks."""
    processes = capture.layers.processes
    criu = processes.criu if processes is not None and is_of_here(capture) else ""
    if processes is not None and not criu:  # which may have to be looked for, and that takes time
        with contextlib.suppress(HostLacks, Failed):
            criu = home.captures.find_criu().version
    return lacking_here(capture, criu)


def _as_ours(home: Home, change: Change, one: ArrivedImage, parents: list[str]) -> Capture:
    """The record of an image's capture, for this home: its id if that is free, and was not that of a capture that is
    just being removed, or was; and what has a meaning in one home or on one machine only as it is here.
    """
    theirs = one.capture
    is_taken = theirs.id in home.captures.leaving or bool(change.captures_of([theirs.id], may_lack=True))
    ident = new_id() if is_taken else theirs.id
    layers = msgspec.structs.replace(theirs.layers, files=FilesLayer(tree=new_id()))
    processes, own = layers.processes, home.sessions.resources.places.ids.first
    if processes is not None and processes.ids.is_shifted and own:
        ids = msgspec.structs.replace(processes.ids, first=own)
        layers = msgspec.structs.replace(layers, processes=msgspec.structs.replace(processes, ids=ids))
    age = max(0.0, time.time() - theirs.created)
    return msgspec.structs.replace(
        theirs,
        id=ident,
        parents=parents,
        layers=layers,
        clock=time.clock_gettime(time.CLOCK_BOOTTIME) - age,
        branch_created=BEGAN_ELSEWHERE,
    )


def _check_walls(home: Home, images: Sequence[ArrivedImage]) -> None:
    """Raise UsageProblem if a session that is made of one of these would have more of this machine than is usual. Looks
    at files. What CRIU's images say themselves is looked at when it has made them (launch/walls/restored.py).
    """
    for one in images:
        more = _beyond(home, one.capture)
        if more:
            said = f"a session of its image {one.image[:12]} would have more of this machine than others: {more}"
            next_step = "if you trust who made it: waypoint import FILE --trust; or have it signed: --require-signature"
            raise UsageProblem("import", "the export", said, next_step)


def _beyond(home: Home, capture: Capture) -> str:
    """What of this machine a session of the capture would have beyond the usual, in words; "" if that is nothing."""
    setting, processes, places = capture.setting, capture.layers.processes, home.sessions.resources.places
    networks = [one for one in setting.allow_net if is_network(one)]
    asked = {
        f"the folder {setting.base} (--base)": setting.base != "/",
        **{f"{bind.source} (--bind)": True for bind in setting.binds},
        "its network (--net host)": setting.net == "host",
        f"--allow {' '.join(setting.allow)}": bool(setting.allow),
        f"--publish {' '.join(setting.publish)}": bool(setting.publish),
        f"--allow-net {' '.join(networks)}": bool(networks),
        **{f"--{name} {limit}": limit > usual for name, limit, usual in _limits(setting.limits)},
    }
    if processes is not None:
        open_to_it = sorted({*masks.masked(), *masks.readonly()} - {*processes.masked, *processes.proc_readonly})
        asked["its ids: its root would be root here"] = bool(places.ids.first) and not processes.ids.is_shifted
        asked |= {f"{one}, through an overlay": True for one in _beyond_base(home, setting.user, processes.overlays)}
        asked["every system call"] = places.filters and processes.seccomp == "none"
        asked[" ".join(open_to_it[:3])] = bool(open_to_it)
    return ", ".join(said for said, is_so in asked.items() if is_so)


def _limits(asked: SessionLimits) -> list[tuple[str, int, int]]:
    """Of those that every session has, by name: what is asked for, and what is usual here."""
    usual = fill_in(SessionLimits())
    pairs = ((name, getattr(asked, name), getattr(usual, name)) for name in ("memory", "pids"))
    return [(name, limit, most) for name, limit, most in pairs if limit is not None and most is not None]


def _beyond_base(home: Home, user: User, overlays: list[str]) -> list[str]:
    """Those of the mount points of overlays under which the machine has what no session sees: overlays are made over
    whatever lies there. The machine where the capture was taken may have had others than this one.
    """
    places = home.sessions.resources.places
    places.follow_host()
    plan = plan_overlays("/", places)

    def is_usual(target: str) -> bool:
        if os.path.normpath(target) != target or any(is_below(target, one) for one in OWN_PLACES):
            return False
        if not os.path.lexists(target):
            return not any(is_below(target, one) for one in plan.homes or ())
        mount, whole = mounts.holding(target)
        return whole == target and mount.mount_point in plan.overlays and not homes.shows_one(target, user)

    return [one for one in overlays if one not in plan.overlays and not is_usual(one)]
