"""Answers about what names.db does not know, as records (model/facts). Standard library only."""

from dataclasses import dataclass
from typing import Literal

StrangerKind = Literal["processes", "files", "capture", "session", "image", "journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerFacts:
    """A thing in the home that names.db does not know, and that is kept: another names.db may know it.

    `kind`: `processes` (`path` is their cgroup), `files` (an upper tree, which only the daemon sees if the pool is a
    file), `capture` (a folder with the processes and the terminal of a capture), `session` (a runtime folder), `image`
    (of a capture, in the store), `journal` (what an apply has replaced of the machine's files). `id`: that of the
    capture, session, image or journal.
    """

    kind: StrangerKind
    id: str
    path: str
