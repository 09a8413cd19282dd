"""Answers about names, as records (model/facts). Standard library only."""

from dataclasses import dataclass
from typing import Literal

from waypoint.model.details.kept_in import KeptIn


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFacts:
    """`tip`: the capture that the branch goes on from, made at `captured`; None before the branch's first capture.
    `kept_in`: where the content of the tip is.
    """

    name: str
    tip: str | None
    live: bool
    tier: Literal["live", "respawn", "files"] | None
    created: str
    captured: str | None
    kept_in: KeptIn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFacts:
    """A name and what it is; `live`: a branch whose session runs."""

    name: str
    kind: Literal["branch", "checkpoint"]
    live: bool
