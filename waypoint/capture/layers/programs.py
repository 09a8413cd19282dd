"""The layer `programs`: the manifest of the running programs, from which they can be started again if their processes
were not captured or cannot be restored. The file contains whole arguments and environments, so only the daemon may read
it; the record has command lines without secrets.
"""

import os
from concurrent.futures import Future
from typing import Any

import msgspec

from waypoint.capture.layers.files import damaged
from waypoint.capture.layers.layer import Area, Layer, Part, StoredFolder, Taking
from waypoint.linux.storage import files
from waypoint.model.conditions import degradation, facts_of
from waypoint.model.records import Capture, ProgramsLayer
from waypoint.processes.respawn.manifest import Family, Manifest, collect


class ProgramsPart(Part):
    def __init__(self, taking: Taking) -> None:
        super().__init__(taking)
        self._collected: Future[Manifest] | None = None

    def begin(self) -> None:
        """Gather the manifest in another thread: this one must answer CRIU, which waits for it several times."""
        subject = self.taking.subject
        family = Family(subject.facts.init_pid, subject.leader(), subject.processes())
        self._collected = self.taking.executor.submit(collect, family)

    def finish(self) -> None:
        assert self._collected is not None
        self._collected.result()

    def cancel(self) -> None:
        if self._collected is not None:
            self._collected.exception()  # waits for its end

    def record(self) -> ProgramsLayer:
        assert self._collected is not None
        found, path = self._collected.result(), self.taking.area.hot.programs(self.taking.capture_id)
        data = msgspec.json.encode(found)
        files.publish(str(path), data, durable=False)
        os.chmod(path, 0o600)
        lost = [degradation("program-not-restartable", one.shown, one.lost) for one in found.programs if one.lost]
        lost += [degradation("programs-omitted", str(found.omitted))] if found.omitted else []
        if self.taking.criu is None:  # else the capture has their processes
            self.taking.degraded += lost
        shown = [one.shown for one in found.programs if not one.lost]
        return ProgramsLayer(size_bytes=len(data), programs=shown, lost=lost)


class Programs(Layer):
    kind = "programs"
    tiers = frozenset(["live", "respawn"])

    def part(self, taking: Taking) -> ProgramsPart:
        return ProgramsPart(taking)

    def folders(self, area: Area, origin: Capture, kind: str) -> dict[str, StoredFolder]:
        path = area.hot.programs(origin.id)
        return {"programs": StoredFolder(path.parent, only=(path.name,))}

    def facts(self, record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "lost": facts_of(msgspec.convert(record, ProgramsLayer).lost)}

    def read(self, area: Area, origin: Capture) -> Manifest:
        """The manifest; empty if the capture lacks the layer. Raises StoreDamaged."""
        if origin.layer(ProgramsLayer) is None:
            return Manifest(programs=[])
        path = area.hot.programs(origin.id)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            raise damaged(origin, f"the manifest of its programs: {error}") from error


PROGRAMS = Programs()
