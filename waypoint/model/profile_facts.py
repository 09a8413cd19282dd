"""Workload profiles as records: the daemon reads them from files, the SDK parses them. Standard library only."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTest:
    """How a program is started and asked in a session, and what is expected of its copies. The program gets words one
    at a time and must remember all of them.

    Start: `start` is shell text for the session's shell, which may leave jobs; `typed` is typed afterwards, for
    programs that use the terminal. The program works when `ready` (shell text) succeeds and the terminal has shown the
    expression `shows`. All shell text runs in one folder, which is empty at first.

    Words: `tell` is shell text that passes the word $1 to the program; or `keys` are typed, with the word in place of
    WORD. `told` is shell text that prints all words ("": only the terminal shows the last one). `knows`: words from the
    start. `early`: the program gets a word before the capture, too.

    Expected: the capture's `tier`, its reason `because` if that is not `live`, and expressions for the lines of
    `degraded`. `again`: beginnings of the lines about programs of the tier `respawn`, each after `respawned`, `offered`
    or `lost`.

    Needs: `uses`: the programs that must exist; packages of Debian, npm and PyPI that have them. `patience_s`: how long
    the program may take to know a word.
    """

    start: str = ""
    typed: str = ""
    ready: str = ""
    shows: str = ""
    tell: str = ""
    keys: str = ""
    told: str = "cat told"
    knows: str = ""
    early: bool = True
    tier: Literal["live", "respawn"] = "live"
    because: str = ""
    degraded: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    pypi: tuple[str, ...] = ()
    patience_s: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFacts:
    """A workload profile (criu_profiles/README.md explains the fields). `where`: `built-in`, or the path of the file in
    the home. `problem`: why the file is not used; then the other fields are empty.
    """

    name: str
    where: str
    programs: list[str] = field(default_factory=list)
    reason: str = ""
    env: dict[str, str] = field(default_factory=dict)
    remedies: dict[str, str] = field(default_factory=dict)
    shown_by: str = ""
    test: ProgramTest | None = None
    problem: str = ""
