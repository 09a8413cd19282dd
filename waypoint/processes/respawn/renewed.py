"""How the programs of a manifest are started again, as their workload profiles say."""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from waypoint.linux.tasks import procfs
from waypoint.processes.profiles.known import Profiles
from waypoint.processes.respawn.manifest import Program


def renewed(program: Program, profiles: Profiles) -> Program:
    """The program with the words that its profile starts it again with; lost, if the profile says that it is not."""
    if program.lost:
        return program
    again = profiles.again([os.fsdecode(word) for word in program.argv])
    return msgspec.structs.replace(program, argv=[os.fsencode(word) for word in again.argv], lost=again.never)


def may_run_unasked(line: Sequence[Program], profiles: Profiles) -> bool:
    """Whether the programs of this pipeline, which are `renewed`, may run without being asked for."""
    return all(profiles.again([os.fsdecode(word) for word in program.argv]).unasked for program in line)


def without_pids(programs: Sequence[Program], members: Collection[int], profiles: Profiles) -> list[Program]:
    """The programs; lost are those whose arguments name one of the processes `members` by its number in the session:
    where they are started again that number is another's, or nobody's.
    """
    named = [profiles.pids_named([os.fsdecode(word) for word in program.argv]) for program in programs]
    running = set(_session_pids(members)) if any(named) else set()
    return [_lost(program, numbers & running) for program, numbers in zip(programs, named, strict=True)]


def _session_pids(members: Iterable[int]) -> Iterator[int]:
    for pid in members:
        with contextlib.suppress(ProcessLookupError):
            yield procfs.session_pid(pid)


def _lost(program: Program, pids: Collection[int]) -> Program:
    if program.lost or not pids:
        return program
    said = f"it is told of a process by its number, {min(pids)}, which will be another's"
    return msgspec.structs.replace(program, lost=said)
