"""Answers about the store, as records (model/facts). Standard library only."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedFacts:
    """What was looked at in the store, and found. `images`, `objects`: how many. `problems`: in words. `unknown`: the
    images that names.db does not know, and that are kept: another names.db may know them. `remedy`: what to do about
    the problems; "" if there are none.
    """

    images: int
    objects: int
    problems: list[str]
    unknown: list[str] = field(default_factory=list)
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictedFacts:
    """`evicted`: the ids of captures whose content is in the store alone now. `kept`: in words, which stay, and why."""

    evicted: list[str]
    kept: list[str]
