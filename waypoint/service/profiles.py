"""Workload profiles: those that count, and which process of a session gets which."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from waypoint.linux.tasks import procfs
from waypoint.model.details.profile_facts import MatchFacts, ProfileFacts, ProfilesFacts
from waypoint.model.errors import as_text
from waypoint.model.requests import ProfileTestRequest
from waypoint.processes.profiles.known import Named, Profiles, arguments
from waypoint.processes.respawn.redact import command_line
from waypoint.service.home import Home
from waypoint.service.sessions import own_session

_TRYING = ThreadPoolExecutor(1, "profile")
"""One profile is tried at a time: it is a text of whoever was let in."""


async def profiles(home: Home) -> ProfilesFacts:
    """Those that count now, the home's own first, and what is wrong with files that do not count."""
    return await asyncio.to_thread(_facts, home)


async def test_profiles(home: Home, request: ProfileTestRequest) -> list[MatchFacts]:
    """The processes of the live session on `request.branch`, none if that is None, with the profiles that they get:
    with `request.text`, as if the home had that profile, too.

    Raises UsageProblem if the text is no profile, UnknownName, StateConflict if the branch has no live session,
    NotAllowed.
    """
    live = own_session(home, request.branch, "look at the processes of") if request.branch is not None else None
    if request.text is None:
        found = home.profiles.now()
    else:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(_TRYING, home.profiles.with_one, request.name, request.text)
    return await asyncio.to_thread(_matches, live.processes(), found) if live is not None else []


def _matches(pids: list[int], found: Profiles) -> list[MatchFacts]:
    matches = []
    for pid in pids:
        words = arguments(pid)
        if words:
            one = found.of(words)
            command = command_line(as_text(word) for word in words)
            matches.append(MatchFacts(pid=_inner(pid), command=command, profile=one.name if one else ""))
    return sorted(matches, key=lambda one: one.pid)


def _inner(pid: int) -> int:
    try:
        return procfs.session_pid(pid)
    except ProcessLookupError:
        return 0


def _facts(home: Home) -> ProfilesFacts:
    found = home.profiles.now()
    rows = [_fact(home, one) for one in found.all]
    return ProfilesFacts(profiles=rows, problems=[problem.to_json() for problem in found.problems])


def _fact(home: Home, one: Named) -> ProfileFacts:
    return ProfileFacts(
        name=one.name,
        path=one.path,
        is_own=one.path.startswith(f"{home.path}/"),
        programs=one.profile.match.programs,
        reason=one.profile.reason,
        test=one.profile.test,
        text=one.text,
    )
