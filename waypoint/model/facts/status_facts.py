"""Answers about the daemon, as records (model/facts). Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFacts:
    """The daemon itself. `home`: the home's real path. `sessions`: the number of live sessions. `started`: when the
    daemon was started. `pool`: how the home keeps the files of sessions: `btrfs`, or `copy`, where each capture copies
    them. `problem`: the error that all get now who would write to the pool, as in an answer. `is_behind`: whether
    others may use the home, or are trusted, or captures have other room, by config.json, which holds from the daemon's
    next start. `is_bound`: whether whoever asks is a user who may have the own things only.
    """

    pid: int
    version: str
    home: str
    sessions: int
    started: str
    pool: str = ""
    problem: dict[str, str | int] | None = None
    is_behind: bool = False
    is_bound: bool = False
