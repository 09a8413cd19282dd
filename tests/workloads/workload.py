"""The type of a row in the table of workloads: one program that is checkpointed, restored and forked
(docs/workloads.md). `rows.py` lists the modules with the rows.
"""

from dataclasses import dataclass
from typing import Literal

PLACE = "/opt/workload"
"""The folder in which a workload starts and all shell text of its row runs."""
PYTHON = "/opt/python/bin"
"""Programs that `Workload.pypi` installs."""
NODE = "/opt/node/node_modules/.bin"
"""Programs that `Workload.npm` installs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A program in root's session that gets words one at a time and must remember all of them.

    Start: `start` is shell text for the session's shell, which may leave jobs; `typed` is typed afterwards, for
    programs that use the terminal. The program works when `ready` (shell text) succeeds and the terminal has shown the
    expression `shows`.

    Words: `tell` is shell text that passes the word $1 to the program; or `keys` are typed, with the word in place of
    WORD. `told` is shell text that prints all words ("": only the terminal shows the last one). `knows`: words from the
    start; `gone`: those that copies lose, as `degraded` reports. `early`: the program gets a word before the capture,
    too. A program without words has `work`: shell text that prints a number that grows while the program works.

    Expected: the capture's `tier`, its reason `because` if that is not `live`, and expressions for the lines of
    `degraded`. `again`: beginnings of the lines about programs of the tier `respawn`, each after `respawned`, `offered`
    or `lost`.

    Needs: packages of Debian, npm and PyPI, which only a run of all workloads installs; `needs`: words of
    tests/needs.py; `allow`: rights of the session. `slow`: only in a run of all workloads. `patience_s`: how long the
    program may take to know a word.
    """

    name: str
    start: str = ""
    typed: str = ""
    ready: str = ""
    shows: str = ""
    tell: str = ""
    keys: str = ""
    told: str = "cat told"
    knows: str = ""
    gone: str = ""
    early: bool = True
    work: str = ""
    tier: Literal["live", "respawn"] = "live"
    because: str = ""
    degraded: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    pypi: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    allow: tuple[Literal["userns"], ...] = ()
    slow: bool = False
    patience_s: int = 20

    @property
    def is_quick(self) -> bool:
        """Whether the row is fast and needs only the packages of `./dev setup`."""
        return not (self.slow or self.debian or self.npm or self.pypi)
