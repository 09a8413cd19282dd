"""Answers about captures, as records (model/facts). Standard library only."""

from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

from waypoint.model.details.kept_in import KeptIn
from waypoint.model.details.process_facts import SurveyedProcess
from waypoint.model.facts.limit_facts import LimitFacts


class LayerFacts(TypedDict):
    """One layer of a capture. `files` also has `tree` (the name of its folder in the pool), `processes` also `count`
    to `criu`, `terminal` also `rows` and `cols`, `shell` also `moment`, what is attached also `files` and
    `is_folder` (model/records.py).

    `digest`: of the layer's folder in the image (docs/format.md), in hex; None until it is in the store, and for what
    shares a folder there (`programs`, `shell`, `terminal`). `frozen_ms`: how long CRIU held the processes, in
    milliseconds. `ids`, `seccomp`: as in SessionFacts; processes come back with what they had.
    """

    size_bytes: int | None
    digest: str | None
    tree: NotRequired[str]
    count: NotRequired[int]
    programs: NotRequired[list[str]]
    lost: NotRequired[list[str]]
    frozen_ms: NotRequired[float]
    criu: NotRequired[str]
    ids: NotRequired[Literal["shifted", "host"]]
    seccomp: NotRequired[Literal["default", "userns", "none"]]
    moment: NotRequired[Literal["now", "prompt"]]
    rows: NotRequired[int]
    cols: NotRequired[int]
    files: NotRequired[int]
    is_folder: NotRequired[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFacts:
    """One moment of a session.

    `image`: None until the capture is in the store. `names`: checkpoints, and branches whose tip the capture is.
    `limits`: how much of the machine its session was asked to use at most; null: what is usual where it goes on.
    `layers`: the layers by kind (files, processes, programs, shell, terminal, and what is attached); None for a layer
    that the capture does not have. `removed`: whether `waypoint gc` has removed all that it kept, so that only these
    facts are left; `kept_in`: where it is if not. `processes`: those that it had; `elsewhere`: in words, what of it
    cannot come back on this machine; `evicted`: whether it is in the store alone, so that its processes are not told;
    `damaged`: in words, what is known to be wrong with it in the store; all where one capture is asked for.
    """

    capture: str
    image: str | None
    names: list[str]
    branch: str
    parents: list[str]
    tier: Literal["live", "respawn", "files"]
    reason: str
    message: str
    created: str
    durable: bool
    base: str
    user: str
    cwd: str
    exit: int | None
    paused_ms: float | None
    degraded: list[str]
    environment: list[str]
    machine: dict[str, str]
    layers: dict[str, LayerFacts | None]
    removed: bool = False
    kept_in: KeptIn | None = None
    limits: LimitFacts | None = None
    processes: list[SurveyedProcess] | None = None
    elsewhere: list[str] | None = None
    evicted: bool | None = None
    damaged: str = ""
