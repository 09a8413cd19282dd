"""An ordinary user with a home of their own, on a machine where nothing was set up for this user."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.people import Person
from tests.homes import OPEN, Home

OWN = ".local/share/waypoint"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who gives commands, on which home. `person` None: root. `tier`: of the checkpoints that this caller can have."""

    home: Home
    person: Person | None
    tier: str

    def try_to(self, *args: str, cwd: str = "/") -> "subprocess.CompletedProcess[str]":
        if self.person is not None:
            return self.person.can(self.home, *args, cwd=cwd)
        done = self.home.cli(*args, cwd=Path(cwd))
        return subprocess.CompletedProcess(args, done.code, done.stdout, done.stderr)

    def must(self, *args: str, cwd: str = "/") -> str:
        done = self.try_to(*args, cwd=cwd)
        assert done.returncode == 0, f"{args} exited with {done.returncode}: {done.stderr or done.stdout}"
        return done.stdout

    def exec(self, text: str, branch: str = "main") -> str:
        return self.must("exec", "-b", branch, "--", text)

    def pool(self) -> Path:
        """The folder of upper trees, as the daemon sees it."""
        pid = json.loads(self.must("daemon", "status", "--json"))["pid"]
        return Path(f"/proc/{pid}/root{self.home.path}/pool")


@contextlib.contextmanager
def home_of_their_own(person: Person) -> Iterator[Caller]:
    """The person with the home that their first command makes. At the end it is removed, and nothing is left."""
    caller = Caller(Home(person.home / OWN), person, "respawn")
    OPEN.add(caller.home)
    try:
        yield caller
    finally:
        OPEN.discard(caller.home)
        caller.must("stop", "--all", "--discard")
        caller.must("setup", "--remove", "--yes")
        assert not caller.home.path.exists()
        assert [path for path in caller.home.root.rglob("*") if not path.is_dir()] == []
