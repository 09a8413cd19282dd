"""Mounting the files of captures on the machine, for people and programs that look at them."""

import asyncio
import os

from waypoint.launch.ground.shown_mounts import source_of
from waypoint.linux.calls import powers
from waypoint.model.details.mount_facts import MountedFacts
from waypoint.model.errors import Failed, HostLacks, StateConflict, UsageProblem
from waypoint.model.requests import MountRequest
from waypoint.service.home import Home
from waypoint.service.shapes import Peer
from waypoint.session.birth import rights
from waypoint.session.birth.base_back import brought_to_see
from waypoint.session.live.holding import holding
from waypoint.session.looking.seen_files import CapturedFiles, mounted_nowhere
from waypoint.upper.contract import NEXT_STEPS


async def mount(home: Home, request: MountRequest, peer: Peer) -> MountedFacts:
    """Mount the files of the capture that `request.name` stands for on the machine, read-only, without set-user-id
    programs and devices. From then on the capture stays until it is unmounted. What is in the store alone is brought
    back first. Raises UnknownName, StateConflict (a live branch), NotAllowed, HostLacks, UsageProblem, Failed.
    """
    name, on = request.name, f"{request.name} at {request.folder}"
    said = "all users of the machine would see it"
    rights.check_unbound(home.sessions.resources, "mount", on, said)
    host = home.sessions.resources.places.host
    instead = f"copy what you need: waypoint cp {name}:/ {request.folder}"
    if host is None or not powers.is_machines():
        raise HostLacks("mount", on, "Waypoint runs without root, and mounts nothing on the machine", instead)
    if not await asyncio.to_thread(host.is_seen_by, peer.pid):
        raise HostLacks("mount", on, "you are in another mount namespace than the one that the daemon serves", instead)
    if name in home.sessions.running:
        next_step = f"make a capture first: waypoint checkpoint NEW -b {name} && waypoint mount NEW {request.folder}"
        raise StateConflict("mount", on, "it is a live branch, whose files change", next_step)
    async with holding(home.captures, home.names.find(name)) as (held,):
        captured = CapturedFiles(held, await brought_to_see(home.captures, held))
        await asyncio.to_thread(_mount, home, captured, request)
    return MountedFacts(capture=held.capture.id, folder=request.folder)


def _mount(home: Home, captured: CapturedFiles, request: MountRequest) -> None:
    places = home.sessions.resources.places
    assert places.host is not None
    on = f"{request.name} at {request.folder}"
    try:
        if places.host.shows_at(request.folder):
            next_step = f"unmount it first, or name another folder: umount {request.folder}"
            raise StateConflict("mount", on, "the files of a capture are mounted there already", next_step)
        tree = mounted_nowhere(places, captured, source_of(places.runtime.name, captured.held.capture.id))
        try:
            places.host.attach(tree, request.folder)
        finally:
            os.close(tree)
    except (FileNotFoundError, NotADirectoryError) as error:
        said = os.strerror(error.errno or 0)
        raise UsageProblem("mount", on, said, f"make the folder: mkdir -p {request.folder}") from error
    except OSError as error:
        next_step = NEXT_STEPS.get(error.errno or 0, "try again")
        raise Failed("mount", on, error.strerror or str(error), next_step) from error
