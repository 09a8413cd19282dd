"""The layer `programs`: the manifest of what ran, for a capture of the tier `respawn`, and for a live one that is
brought back without its processes. It contains whole arguments and environments, so the file is the daemon's alone; the
record, which is shown, has the command lines without secrets.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterable

import msgspec

from waypoint.capture.layers import seen
from waypoint.capture.layers.files import damaged
from waypoint.capture.layers.layer import Area, Layer, Part, Taking
from waypoint.capture.layers.seen import MOST_SEEN
from waypoint.capture.layers.subject import family_of
from waypoint.linux.storage import files
from waypoint.linux.tasks import procfs
from waypoint.model.details.process_facts import SurveyedProcess
from waypoint.model.records import Capture, ProgramsLayer
from waypoint.processes.respawn.manifest import MOST_OF_ALL, Family, Manifest, as_far_as_now, collect
from waypoint.processes.respawn.renewed import without_pids
from waypoint.processes.survey import survey_by_pid

_MOST_BYTES = 2 * MOST_OF_ALL  # as JSON; a capture that was imported may have anything in its place


class ProgramsPart(Part):
    def __init__(self, taking: Taking) -> None:
        super().__init__(taking)
        self._manifest = Manifest(programs=[])
        self._surveyed: dict[int, SurveyedProcess] = {}
        self._looked_at: dict[int, tuple[object, ...]] = {}
        self._apart = {pid for one in taking.left_out for pid in one.program.pids}

    @property
    def _is_live(self) -> bool:
        """Whether the processes are kept as they are. Then what is told of them is the layer `processes`' to tell."""
        return self.taking.criu is not None

    def prepare(self) -> None:
        """Of a live capture, look at the programs while CRIU starts: in the pause that would slow it."""
        with contextlib.suppress(OSError):  # the session has ended
            if self._is_live:
                self._look(self._family())
                return
            subject = self.taking.subject
            processes = subject.processes()[:MOST_SEEN]
            self._surveyed = survey_by_pid(subject.facts.init_pid, processes, self.taking.profiles)

    def finish(self) -> None:
        """Look again, unless each process is the one that it was, in its place, and no other has come: then only how
        far each has read.
        """
        family = self._family()
        if self._looked_at != _as_they_are(family.members):
            self._look(family)
        else:
            programs = [as_far_as_now(one) for one in self._manifest.programs]
            self._manifest = msgspec.structs.replace(self._manifest, programs=programs)

    def _family(self) -> Family:
        return family_of(self.taking.subject, self._apart)

    def _look(self, family: Family) -> None:
        now, found = _as_they_are(family.members), collect(family)
        again = without_pids(found.programs, family.members, self.taking.profiles)
        programs = [msgspec.structs.replace(one, ended=not self._apart.isdisjoint(one.pids)) for one in again]
        self._manifest, self._looked_at = msgspec.structs.replace(found, programs=programs), now

    def record(self) -> ProgramsLayer:
        found, path = self._manifest, self.taking.area.hot.programs(self.taking.capture_id)
        data = msgspec.json.encode(found)
        files.publish(str(path), data, durable=False)
        os.chmod(path, 0o600)
        lost = [f"{one.shown}: {one.lost}" for one in found.programs if one.lost]
        lost += [f"{found.omitted} more: there are too many"] if found.omitted else []
        if self._is_live:
            lost_of = {one.pids[0]: one.lost for one in found.programs}
            self.taking.degraded += [one.told(lost_of.get(one.program.pids[0], "")) for one in self.taking.left_out]
        else:
            self.taking.degraded += [f"cannot be started again: {line}" for line in lost]
            lost_pids = {pid: one.lost for one in found.programs if one.lost for pid in one.pids}
            seen.write(self.taking, [_reached(one, lost_pids.get(pid, "")) for pid, one in self._surveyed.items()])
        shown = [one.shown for one in found.programs if not one.lost]
        ended_count = sum(one.ended for one in found.programs)
        return ProgramsLayer(size_bytes=len(data), programs=shown, lost=lost, ended=ended_count)


def _as_they_are(pids: Iterable[int]) -> dict[int, tuple[object, ...]]:
    """What changes with the program that a process executes, and with the program's place among the others."""
    found: dict[int, tuple[object, ...]] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            one = procfs.stat(pid)
            found[pid] = (one.parent, one.group, one.foreground, one.start_ticks, one.program)
    return found


def _reached(one: SurveyedProcess, lost: str) -> SurveyedProcess:
    """What is told of a process that was not kept. `lost`: in words, why it is not started again."""
    if lost:
        return dataclasses.replace(one, tier="files", why="; ".join(filter(None, (one.why, lost))))
    return dataclasses.replace(one, tier="respawn")


class Programs(Layer):
    kind = "programs"

    def part(self, taking: Taking) -> ProgramsPart:
        return ProgramsPart(taking)

    def read(self, area: Area, origin: Capture) -> Manifest:
        """The manifest; empty if the capture does not have the layer. Raises StoreDamaged."""
        if origin.layers.programs is None:
            return Manifest(programs=[])
        path = area.hot.programs(origin.id)
        try:
            return msgspec.json.decode(files.read_small(path, _MOST_BYTES), type=Manifest)
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            raise damaged(origin, f"the manifest of its programs: {error}") from error


PROGRAMS = Programs()
