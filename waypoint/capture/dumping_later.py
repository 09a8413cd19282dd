"""Dumping a session that a restore has replaced, after the restore was acknowledged.

Such a session stays frozen from the capture on. Files, terminal, shell and the list of programs are captured before the
acknowledgement, as always; CRIU's dump, which would compete with CRIU's restore for the processors, comes after it.
Until then the layer `processes` is `awaited`, whoever wants to read the capture waits (`Captures.hold`), and names.db
has the session (`LiveRow.leaves_to`), so that the next daemon dumps it if this one is killed.

That is done only if CRIU will certainly dump the session (processes/certain.py). If CRIU refuses it nevertheless, or
its processes have been killed (the machine has no memory left), the capture has the tier `respawn`.
"""

import contextlib
import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast

from waypoint.capture.layers.layer import Area, CaptureOptions, Taking
from waypoint.capture.layers.processes import PROCESSES
from waypoint.capture.layers.subject import Subject, SubjectFacts
from waypoint.linux.tasks import cgroups
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import CannotCapture, Failed
from waypoint.model.records import Capture, Layers, ProcessesLayer, Tier, layers_of
from waypoint.processes import tcp_repair
from waypoint.processes.copied_memory import CopiedMemory
from waypoint.processes.criu.options import ERRORS_ONLY, EVERYTHING
from waypoint.processes.criu.rpc import Criu, CriuProgram

log = logging.getLogger(__name__)


class FrozenSession(NamedTuple):
    """A session that stays frozen: all that its dump needs of a Subject. `copied`: copies of its memory, of which the
    first try uses those that are present.
    """

    facts: SubjectFacts
    copied: CopiedMemory | None = None

    def processes(self) -> list[int]:
        return cgroups.members(self.facts.cgroup)


class Completion(NamedTuple):
    """What completes the record of a capture (`Change.complete`)."""

    tier: Tier
    layers: Layers
    degraded: list[Degradation]


def is_awaited(capture: Capture) -> bool:
    return bool(capture.layers.get(ProcessesLayer.KIND, {}).get("awaited"))


def without_processes(capture: Capture, code: str, said: str) -> Completion:
    layers = {kind: record for kind, record in capture.layers.items() if kind != ProcessesLayer.KIND}
    return Completion("respawn", layers, [degradation("no-processes", code, said)])


def dump(area: Area, capture: Capture, session: FrozenSession, program: CriuProgram, criu: Criu) -> Completion:
    """Dump the frozen session into `capture`, in one or two tries. Blocks. May be called again after an exception:
    Failed or OSError, if CRIU was killed or the disk is full.
    """
    first: BaseException | None = None
    for log_level in (ERRORS_ONLY, EVERYTHING):
        if not session.processes():
            break
        try:
            return _with_ended(capture, _attempt(area, capture, session, program, criu, log_level))
        except (CannotCapture, Failed, OSError) as error:
            log.warning("capture of the replaced session on %s: %s", capture.branch, error)
            if first is None:
                first = error
            elif not isinstance(error, CannotCapture):
                raise
            elif isinstance(first, CannotCapture):
                return without_processes(capture, error.code, error.said)
            else:  # a killed CRIU may leave traces in the processes, which the next one refuses
                raise first from error
    return without_processes(capture, "", "they were killed before CRIU had dumped them")


def _with_ended(capture: Capture, found: Completion) -> Completion:
    """Add the programs that have ended since the session was frozen: killed for memory, or with a killed CRIU."""
    before, now = (layers[ProcessesLayer.KIND]["programs"] for layers in (capture.layers, found.layers))
    if ended := ", ".join(sorted((Counter(before) - Counter(now)).elements())):
        return found._replace(degraded=[*found.degraded, degradation("programs-ended", ended)])
    return found


def _attempt(
    area: Area, capture: Capture, session: FrozenSession, program: CriuProgram, criu: Criu, log_level: int
) -> Completion:
    tcp_repair.end(session.processes())  # an earlier CRIU may have been killed
    copied = session.copied if log_level == ERRORS_ONLY else None
    if copied is not None and not copied.is_current(session.facts.cgroup):
        copied = None
    # The copies are on the disk. At the second try, memory may be full.
    area.hot.renew_images(capture.id, to_disk=copied is not None or log_level == EVERYTHING)
    if copied is not None and not copied.prepare(session.facts.cgroup, area.hot.copied(capture.id), None):
        copied = None
    with ThreadPoolExecutor(1) as executor, contextlib.ExitStack() as cancelling:
        taking = Taking(
            capture_id=capture.id,
            subject=cast(Subject, session),  # the part `processes` uses nothing else of it
            area=area,
            options=CaptureOptions(tier="live", keep_frozen=True),
            executor=executor,
            program=program,
            criu=criu,
            copied=copied,
            log_level=log_level,
        )
        part = PROCESSES.part(taking)
        cancelling.callback(part.cancel)
        for step in (part.prepare, part.ready, part.begin, part.finish, part.release):
            step()
        cancelling.pop_all()
        layers = capture.layers | layers_of(part.record())
        later = [one for work in taking.afterwards for one in work()]
    found = [one for one in taking.degraded if one not in capture.degraded]
    return Completion("live", layers, [*found, *later])
