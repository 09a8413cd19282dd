"""Answers to a checkpoint, as records (model/facts). Standard library only."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """The answer to a checkpoint.

    `image`: None until the capture is in the store. `degraded`: in words, what was kept less faithfully than asked.
    """

    name: str
    capture: str
    image: str | None
    tier: Literal["live", "respawn", "files"]
    paused_ms: float
    total_ms: float
    durable: bool
    degraded: list[str]
