"""Answers of the control interface about attached layers, as records (model/facts). Standard library only."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedFacts:
    """A file or folder that is attached to a capture. `size_bytes`: of its files, without their holes. `files`: how
    many these are, links among them. `stamp`: as the client gave it. `digest`: of its folder in the image
    (docs/format.md), in hex; None until it is in the store. `left_out`: in words, the first of what was left out of the
    folder, as it has no content of its own (sockets, FIFOs, devices) or is a home of Waypoint.
    """

    kind: str
    size_bytes: int
    files: int
    is_folder: bool
    stamp: str
    digest: str | None
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachingFacts:
    """What attaching to a name has made. `capture`: for which it stands now. `before`: for which it stood before, and
    from which that goes on. `layers`: all that is attached to it.
    """

    name: str
    capture: str
    before: str
    layers: list[AttachedFacts]
