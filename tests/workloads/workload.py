"""What a row of the matrix says of a program (`Workload`). The rows are in the modules that `rows.py` names."""

from dataclasses import dataclass
from typing import Literal

PLACE = "/opt/workload"
"""The folder, empty at first, in which a workload is started, and in which all shell text of its row runs."""
PYTHON = "/opt/python/bin"
"""What `Workload.pypi` has installed."""
NODE = "/opt/node/node_modules/.bin"
"""What `Workload.npm` has installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A program in a session of root's, told words one at a time: it is to remember all that it was told.

    How it begins: `start` is shell text for the session's own shell (what runs on is a job of it); `typed` is a line
    that is typed there afterwards, for what has the terminal. It works when `ready`, shell text, succeeds, and the
    terminal has shown the expression `shows`.

    How it is told a word: `tell` is shell text in which $1 is the word, for a process beside the program; or `keys` are
    typed on the terminal, with the word in place of WORD. `told`: shell text that prints all the words that it was told
    ("": only the terminal shows the last one). `knows`: the words that it has at its start; `gone`: those of them that
    copies do not have, as `degraded` says. `early`: it is told a word before the capture, too. One that is told nothing
    has a `work`: shell text that prints a number which grows for as long as the program works, in every copy from where
    it was.

    What is to come of it: the capture has the `tier`, for the reason `because` if that is not `live`, and says nothing
    but what an expression in `degraded` matches. `again`: how the lines begin that tell what became of the programs of
    a capture of the tier `respawn`, each behind `respawned`, `offered` or `lost`.

    What it needs: packages of Debian, npm and PyPI, which only a run of all workloads installs, into a session; words
    of tests/needs.py; what its session is allowed beyond the usual. `slow`: it is left out of the quick half though it
    needs no package. `patience_s`: how long it may take to know a word; 2 at least: SECONDS counts whole seconds.
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
        """It runs with all other tests, on a machine that has only what `./dev setup` installs."""
        return not (self.slow or self.debian or self.npm or self.pypi)
