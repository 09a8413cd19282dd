"""Facts about captures, for answers to clients."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from waypoint.capture.layers.table import NAMED, layer_of
from waypoint.model.conditions import facts_of
from waypoint.model.facts import CaptureFacts, DifferenceFacts, LayerFacts, ProofFacts
from waypoint.model.records import Capture, ChangeCount, ProcessesLayer, Proof, Standing
from waypoint.model.session_facts import ChangeCountFacts
from waypoint.model.times import iso_time
from waypoint.records.reading import Reader
from waypoint.session.birth.rights import MaySee
from waypoint.session.session_facts import of_base, of_limits

Measured = Mapping[str, Mapping[str, object]]
_NOTHING: Measured = MappingProxyType({})


def of_all(names: Reader, captures: Sequence[Capture], sees: MaySee) -> list[CaptureFacts]:
    """The facts about each of these captures, without measured sizes."""
    ids = [capture.id for capture in captures]
    found, standings = names.names_of_all(ids), names.standings(ids)
    return [of(capture, found[capture.id], standings[capture.id], sees) for capture in captures]


def of(
    capture: Capture, names: list[str], standing: Standing, sees: MaySee, measured: Measured = _NOTHING
) -> CaptureFacts:
    """The facts about one capture, without its message, programs, folder and environment if the caller may not see
    them. The message of a point is a prompt or a command line.

    `names`: the names that stand for it. `measured`: facts about its layers that were measured, by kind.
    """
    facts = _of(capture, names, standing, measured)
    if sees(capture.setting.user):
        return facts
    layers = {kind: _without_programs(layer) if layer else None for kind, layer in facts.layers.items()}
    proof = facts.proof and ProofFacts({**facts.proof, "said": "", "differences": []})
    return dataclasses.replace(facts, message="", cwd="", environment=[], degraded=[], layers=layers, proof=proof)


def _without_programs(layer: LayerFacts) -> LayerFacts:
    hidden: LayerFacts = {**layer}
    hidden.pop("programs", None)
    hidden.pop("lost", None)
    hidden.pop("source", None)
    return hidden


def _of(capture: Capture, names: list[str], standing: Standing, measured: Measured) -> CaptureFacts:
    processes, machine = capture.layer(ProcessesLayer), capture.machine
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
        base=of_base(capture.setting),
        user=capture.setting.user.name,
        cwd=capture.setting.cwd,
        exit=capture.exit,
        paused_ms=capture.paused_ms,
        degraded=facts_of(capture.degraded),
        environment=sorted(processes.env if processes else capture.setting.env),
        machine={"kernel": machine.kernel, "architecture": machine.architecture, "cpu": machine.cpu} if machine else {},
        layers=_layers(capture, measured),
        removed=standing.removed,
        limits=of_limits(capture.setting.limits),
        proof=of_proof(standing.proof) if standing.proof is not None else None,
        changes=of_changes(standing.changes),
    )


def of_changes(counted: ChangeCount | None) -> ChangeCountFacts | None:
    if counted is None:
        return None
    return {"files": counted.files, "insertions": counted.insertions, "deletions": counted.deletions}


def of_proof(proof: Proof) -> ProofFacts:
    return ProofFacts(
        proved=not proof.code,
        at=iso_time(proof.at),
        ms=proof.ms,
        code=proof.code,
        said=proof.said,
        differences=[
            DifferenceFacts(pid=pid, fd=fd if fd >= 0 else None, captured=captured, restored=restored)
            for pid, fd, captured, restored in proof.differences
        ],
    )


def _layers(capture: Capture, measured: Measured) -> dict[str, LayerFacts | None]:
    """The facts about the layers, by kind; None for a usual layer that the capture lacks."""
    found: dict[str, LayerFacts | None] = dict.fromkeys(layer.kind for layer in NAMED)
    for kind, record in capture.layers.items():
        facts = {"size_bytes": None, "digest": None, **layer_of(kind).facts(record)}
        facts |= measured.get(kind, {})
        found[kind] = facts  # type: ignore[assignment]  # each kind has its own fields
    return found
