"""Programs that CRIU cannot dump, held apart while it dumps all others of the session (docs/architecture.md, "A part of
what runs is left out").

CRIU follows pid 1's descendants, in /proc. The programs are in a cgroup of their own meanwhile, frozen, so that CRIU
does not stop them. In CRIU's own mount namespace their folders in /proc are others, which say that they have ended and
that nobody has waited for them. So what CRIU dumps is a process that was killed: a copy's shell waits for it, and says
so as always.
"""

import contextlib
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from waypoint.linux.tasks import cgroups, namespaces
from waypoint.linux.tasks.states import show_as_ended, state_now
from waypoint.model.details.process_facts import ENDED_IN_COPIES, SurveyedProcess, first_few
from waypoint.model.errors import CannotCapture, as_text
from waypoint.processes.profiles.known import arguments
from waypoint.processes.respawn.manifest import Family, Program, collect
from waypoint.processes.respawn.redact import command_line

log = logging.getLogger(__name__)

_SUFFIX = ".apart"
_GROUP = "CRIU refuses another of its process group"


class LeftOut(NamedTuple):
    """A program that CRIU does not dump. `reason`: in words, why it is left out; `why`: the same of each of its
    processes. `below`: what it has started, as people see it.
    """

    program: Program
    reason: str
    why: Mapping[int, str]
    below: str

    def told(self, lost: str) -> str:
        """What the capture says of it. `lost`: why it cannot be started again, "" if it can."""
        below = f", with {self.below}" if self.below else ""
        not_again = f", and not started again ({lost})" if lost else ""
        return f"{self.program.shown}: {ENDED_IN_COPIES}{below}{not_again}: {self.reason}"


def choose(family: Family, culprits: Mapping[int, str]) -> list[LeftOut]:
    """The programs to which the processes `culprits` belong, and those of the same pipelines. Empty if one of them
    belongs to none: the shell itself is in the way; or if one is in the terminal session that another leads: CRIU may
    hang when it restores two such that have ended. `culprits`: why CRIU refuses each.
    """
    tracers = {tracer: pid for pid in culprits if (tracer := _tracer(pid)) in family.members}
    why = {tracer: f"it traces {_name(pid)}" for tracer, pid in tracers.items()} | {**culprits}
    programs = collect(family).programs
    refused = {(one.role, one.group) for one in programs if not why.keys().isdisjoint(one.pids)}
    found = [_left_out(one, why) for one in programs if (one.role, one.group) in refused]
    heads = {one.program.pids[0] for one in found}
    is_whole = why.keys() <= {pid for one in found for pid in one.program.pids}
    return found if is_whole and not any(_session(pid) in heads - {pid} for pid in heads) else []


def set_apart(cgroup: str, left_out: Sequence[LeftOut]) -> None:
    """Freeze the programs in a cgroup beside that of their session, which is frozen. Call `take_back` in any case.
    Raises OSError; CannotCapture if the session has made groups in its own, to which nothing would be taken back.
    """
    if cgroups.children(cgroup):
        raise CannotCapture("hold apart", "what CRIU refuses", "the session has made groups in its own")
    group = f"{cgroup}{_SUFFIX}"
    cgroups.create(group)
    cgroups.hold_frozen(group)
    for pid in (pid for one in left_out for pid in one.program.pids):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            cgroups.write(group, "cgroup.procs", str(pid))
    cgroups.freeze(group)


def take_back(cgroup: str) -> None:
    """Have what was set apart from the group `cgroup` in that again, running or frozen as that is; what that does not
    take ends, since no process of a session may be outside of its group. Does nothing if nothing was set apart.
    """
    group = f"{cgroup}{_SUFFIX}"
    if not os.path.isdir(group):
        return
    try:
        for pid in cgroups.members(group):
            with contextlib.suppress(ProcessLookupError):
                cgroups.write(cgroup, "cgroup.procs", str(pid))
        cgroups.remove(group)
    except OSError as error:  # the group is gone, or has handed its controllers on to groups in it
        log.warning("%s: what was set apart is ended: %s", cgroup, error)
        try:
            cgroups.end(group)
        except OSError as failed:
            log.error("%s: what was set apart cannot be ended: %s", cgroup, failed)


def let_seem_ended(criu: int, left_out: Sequence[LeftOut]) -> None:
    """Have the process `criu`, which has a mount namespace of its own, see each of the programs as one that has ended.
    Raises OSError.
    """
    fd = os.open(namespaces.path(criu, "mnt"), os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespaces.call_within(fd, functools.partial(show_as_ended, [one.program.pids[0] for one in left_out]))
    finally:
        os.close(fd)


def marked(family: Family, found: Mapping[int, SurveyedProcess]) -> dict[int, SurveyedProcess]:
    """The processes of a session that were `found` each for itself, by pid, with the tier that a capture of all of them
    would reach.
    """
    culprits = {pid: one.why for pid, one in found.items() if one.tier != "live"}
    left_out = choose(family, culprits)
    why = {pid: said for one in left_out for pid, said in one.why.items()}
    if culprits and not left_out:
        why = dict.fromkeys(found, "CRIU refuses another process, without which the others cannot be kept") | culprits
    return {pid: replace(one, tier="respawn", why=why[pid]) if pid in why else one for pid, one in found.items()}


def _left_out(program: Program, why: Mapping[int, str]) -> LeftOut:
    """`why`: the reason of each process that CRIU refuses; of some programs, CRIU refuses another of the same group."""
    first, *below = program.pids
    refused = [why[pid] for pid in program.pids if pid in why]
    reason, of_first, of_others = _GROUP, _GROUP, _GROUP
    if refused:
        reason, of_first = refused[0], "CRIU refuses what it has started"
        of_others = f"it belongs to {_name(first)}, which cannot be kept"
    own = {first: of_first, **dict.fromkeys(below, of_others)} | {pid: why[pid] for pid in program.pids if pid in why}
    return LeftOut(program, reason, own, first_few([command_line(map(as_text, arguments(pid))) for pid in below]))


def _name(pid: int) -> str:
    found = state_now(pid)
    return found.name if found else f"pid {pid}"


def _session(pid: int) -> int:
    found = state_now(pid)
    return found.session if found else 0


def _tracer(pid: int) -> int:
    found = state_now(pid)
    return found.tracer if found else 0
