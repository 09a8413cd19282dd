"""Facts about captures, for answers to clients."""

import dataclasses
from collections.abc import Sequence

from waypoint.model.facts import CaptureFacts, LayerFacts
from waypoint.model.records import Capture, Layers, Standing
from waypoint.model.times import iso_time
from waypoint.session.birth.rights import MaySee
from waypoint.session.session_facts import of_limits
from waypoint.store.reading import Reader


def of_all(names: Reader, captures: Sequence[Capture], sees: MaySee) -> list[CaptureFacts]:
    """The facts about each of these captures, without the sizes of their files."""
    ids = [capture.id for capture in captures]
    found, standings = names.names_of_all(ids), names.standings(ids)
    return [of(capture, found[capture.id], standings[capture.id], sees) for capture in captures]


def of(
    capture: Capture, names: list[str], standing: Standing, sees: MaySee, files_bytes: int | None = None
) -> CaptureFacts:
    """The facts about one capture, without its programs, folder and environment if the caller may not see them.

    `names`: the names that stand for it. `files_bytes`: the size of its files layer; None: not measured.
    """
    facts = _of(capture, names, standing, files_bytes)
    if sees(capture.setting.user):
        return facts
    layers = {kind: _without_programs(layer) if layer else None for kind, layer in facts.layers.items()}
    return dataclasses.replace(facts, cwd="", environment=[], degraded=[], layers=layers)


def _without_programs(layer: LayerFacts) -> LayerFacts:
    hidden: LayerFacts = {**layer}
    hidden.pop("programs", None)
    hidden.pop("lost", None)
    return hidden


def _of(capture: Capture, names: list[str], standing: Standing, files_bytes: int | None) -> CaptureFacts:
    processes, machine = capture.layers.processes, capture.machine
    return CaptureFacts(
        capture=capture.id,
        image=standing.image,
        names=names,
        branch=capture.branch,
        parents=capture.parents,
        tier=capture.tier,
        reason=capture.reason,
        message=capture.message,
        created=iso_time(capture.created),
        durable=standing.durable,
        base=capture.setting.base,
        user=capture.setting.user.name,
        cwd=capture.setting.cwd,
        exit=capture.exit,
        paused_ms=capture.paused_ms,
        degraded=capture.degraded,
        environment=sorted(processes.env if processes else capture.setting.env),
        machine={"kernel": machine.kernel, "architecture": machine.architecture, "cpu": machine.cpu} if machine else {},
        layers=_layers(capture.layers, files_bytes),
        removed=standing.removed,
        limits=of_limits(capture.setting.limits),
    )


def _layers(layers: Layers, files_bytes: int | None) -> dict[str, LayerFacts | None]:
    processes, programs = layers.processes, layers.programs
    shell, terminal = layers.shell, layers.terminal
    return {
        "files": {**_of_any(files_bytes), "tree": layers.files.tree},
        "processes": {
            **_of_any(processes.size_bytes),
            "count": processes.count,
            "programs": processes.programs,
            "frozen_ms": processes.frozen_us / 1000,
            "criu": processes.criu,
            "ids": "shifted" if processes.ids.is_shifted else "host",
            "seccomp": processes.seccomp,
        }
        if processes
        else None,
        "programs": {**_of_any(programs.size_bytes), "programs": programs.programs, "lost": programs.lost}
        if programs
        else None,
        "shell": {**_of_any(shell.size_bytes), "moment": shell.moment} if shell else None,
        "terminal": {**_of_any(terminal.size_bytes), "rows": terminal.rows, "cols": terminal.cols}
        if terminal
        else None,
    }


def _of_any(size_bytes: int | None) -> LayerFacts:
    """Return the facts that every kind of layer has."""
    return {"size_bytes": size_bytes, "digest": None}
