"""Answers to a `gc`, as records (model/facts). Standard library only."""

from dataclasses import dataclass, field
from typing import Literal, TypedDict

from waypoint.model.facts.stranger_facts import StrangerFacts


class RemovedFacts(TypedDict):
    """A capture that was removed, or would be. `size_bytes`: of the images of its processes; its files may share what
    they have on disk with other captures.
    """

    capture: str
    branch: str
    created: str
    tier: Literal["live", "respawn", "files"]
    size_bytes: int


class SparedFacts(TypedDict):
    """A capture that is kept. `why`: in words: `branch NAME`, `checkpoint NAME`, `undo N (VERB)`, and of a policy
    `last`, `hourly`, `daily`, `weekly`, `monthly`.
    """

    capture: str
    branch: str
    created: str
    why: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GcFacts:
    """The answer to a `gc`.

    `removed`: the captures that were removed, the oldest first; with `dry_run`, those that would be. `strangers`: the
    same for what names.db did not know. `kept_operations_s`: so many last seconds' operations can still be taken back.
    `freed_bytes`: what the home has given back to the disk, and of memory with images. `home_bytes`: what it has on the
    disk now. `failed`: in words, what could not be removed; the next daemon tries it again. `stays`: in words, what no
    gc can give back. `spared`: with `dry_run` or a policy, the captures that are kept, the newest first.
    """

    dry_run: bool
    removed: list[RemovedFacts]
    strangers: list[StrangerFacts]
    kept_operations_s: float
    freed_bytes: int
    home_bytes: int
    failed: list[str]
    stays: list[str] = field(default_factory=list)
    spared: list[SparedFacts] = field(default_factory=list)
