"""Answers about limits, as records (model/facts). Standard library only."""

from typing import TypedDict


class LimitFacts(TypedDict):
    """How much of the machine a session may use; null: as much as there is. `pids`: processes and threads."""

    memory_bytes: int | None
    cpus: float | None
    pids: int | None
    disk_bytes: int | None
