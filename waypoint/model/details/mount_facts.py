"""Answers to a request to mount, as records (model/facts). Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedFacts:
    """The files of `capture` are mounted at `folder`, and the capture stays until they are unmounted."""

    capture: str
    folder: str
