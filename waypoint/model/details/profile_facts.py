"""Answers about workload profiles, as records (model/facts). Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFacts:
    """A workload profile that counts. `path`: its file. `is_own`: it is one of the home's own. `programs`: file names,
    or patterns of them. `text`: the file's content.
    """

    name: str
    path: str
    is_own: bool
    programs: list[str]
    reason: str
    test: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilesFacts:
    """All profiles of a home. `problems`: errors, as in an answer, about files of the home that do not count."""

    profiles: list[ProfileFacts]
    problems: list[dict[str, str | int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchFacts:
    """A process of a session, with the profile that it gets; "" if it gets none. `pid`, `command`: as in
    SurveyedProcess.
    """

    pid: int
    command: str
    profile: str
