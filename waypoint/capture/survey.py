"""Predicting the tier of a capture by the checks that a capture makes, and the refusal with which it would begin."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator

from waypoint.capture import bounds
from waypoint.capture.layers.layer import Area
from waypoint.capture.layers.processes import find_watches
from waypoint.capture.layers.subject import Subject
from waypoint.linux.tasks import procfs
from waypoint.model.errors import CannotCapture, HostLacks
from waypoint.model.records import Tier
from waypoint.model.session_facts import SurveyedProcess
from waypoint.processes import freeze, refusals, watches
from waypoint.processes.refusals import Refusal
from waypoint.processes.respawn.redact import command_line


def check_refused(area: Area, subject: Subject) -> None:
    """Raise CannotCapture if a capture with processes would be refused. Makes the checks that take little time, and
    leaves out states that may end in a moment: the names of watched files, and the states at the freeze, are checked
    later.
    """
    init, pids = subject.facts.init_pid, subject.processes()
    for refusal in _advised(area, refusals.find(init, pids)):
        raise refusal.error()
    watches.check_number(init, pids)


def no_criu(error: HostLacks) -> CannotCapture:
    """The error for processes that cannot be dumped because of `error`: no CRIU works, or it has no rights."""
    is_certain = error.code == "no-root"
    next_step = error.next_step if is_certain else "see 'waypoint doctor'"
    return CannotCapture("dump", "the processes", error.said, next_step, code=error.code if is_certain else "no-criu")


def survey(area: Area, subject: Subject, lacking: CannotCapture | None) -> list[SurveyedProcess]:
    """Survey the processes of a live session, without a pause. `lacking`: why no CRIU works; None if one does. CRIU
    itself may find more reasons (waypoint/processes/refusals.py).
    """
    init, pids = subject.facts.init_pid, subject.processes()
    found = {one.pid: one for one in reversed(list(_refusals(area, subject, pids)))}
    if lacking is not None:
        found[init] = _of_error(init, lacking)
    rows: list[SurveyedProcess] = []
    tier: Tier = "respawn" if lacking is not None else "live"
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has ended
            command = command_line(procfs.command_line(pid)) or procfs.stat(pid).name
            row = SurveyedProcess(pid=procfs.session_pid(pid), command=command, tier=tier)
            if pid in found:
                _, code, said, next_step, *_ = found[pid]
                row = dataclasses.replace(row, tier="respawn", code=code, why=said, remedy=next_step)
            rows.append(row)
    return sorted(rows, key=lambda row: row.pid)


def _refusals(area: Area, subject: Subject, pids: list[int]) -> Iterator[Refusal]:
    """In the order in which a capture checks them."""
    try:
        bounds.check_open_files(pids)
    except CannotCapture as error:
        yield _of_error(subject.facts.init_pid, error)
        return  # looking at so many files would take many seconds
    yield from _advised(area, refusals.find(subject.facts.init_pid, pids, brief_s=freeze.WAIT_S))
    with find_watches(area, subject) as watched:
        try:
            watched.look(pids)
        except CannotCapture as error:
            yield _of_error(subject.facts.init_pid, error)
        yield from watched.refusals()


def _advised(area: Area, found: Iterable[Refusal]) -> Iterator[Refusal]:
    """The refusals, with the remedies of workload profiles where there is one for the program."""
    for one in found:
        yield one._replace(next_step=area.profiles.remedy(one.pid, one.code) or one.next_step)


def _of_error(pid: int, error: CannotCapture) -> Refusal:
    return Refusal(pid, error.code, error.said, error.next_step)
