"""The type of a row in the table of workloads: one program that is checkpointed, restored and forked
(docs/workloads.md). `rows.py` lists the modules with the rows.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from waypoint.model.profile_facts import ProgramTest
from waypoint.processes.profiles import Profiles

PLACE = "/opt/workload"
"""The folder in which a workload starts and all shell text of its row runs."""
PYTHON = "/opt/python/bin"
"""Programs that `Workload.pypi` installs."""
NODE = "/opt/node/node_modules/.bin"
"""Programs that `Workload.npm` installs."""
PATH = f"{PYTHON}:{NODE}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of a run of all workloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(ProgramTest):
    """A program in root's session that gets words one at a time and must remember all of them, as ProgramTest says.

    `work`: of a program without words: shell text that prints a number that grows while the program works. `gone`:
    words that copies lose, as `degraded` reports. `needs`: words of tests/needs.py; packages of Debian, npm and PyPI
    are installed only in a run of all workloads. `allow`: rights of the session. `slow`: only in a run of all
    workloads.
    """

    name: str
    gone: str = ""
    work: str = ""
    needs: tuple[str, ...] = ()
    allow: tuple[Literal["userns"], ...] = ()
    slow: bool = False

    @property
    def is_quick(self) -> bool:
        """Whether the row is fast and needs only the packages of `./dev setup`."""
        return not (self.slow or self.debian or self.npm or self.pypi)


def of_profile(name: str, profile: str, **more: Any) -> Workload:
    """Return the row `name` that starts and asks its program as the built-in profile `profile` does, with `more`. With
    `needs`, the machine has the program, and no package is installed.
    """
    test = next(one.test for one in Profiles().all() if one.name == profile)
    assert test is not None
    fields = {field.name: getattr(test, field.name) for field in dataclasses.fields(test)}
    if "needs" in more:
        fields |= {"debian": (), "npm": (), "pypi": ()}
    return Workload(name=name, **fields | more)
