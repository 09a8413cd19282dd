"""Ordinary users of this machine, made for a run of the tests and removed at its end."""

import contextlib
import os
import pwd
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.homes import Home

PREFIX = "wptest-"
TIMEOUT_S = 60.0  # useradd and userdel wait for the lock on the list of users, which other tests take too


@dataclass(frozen=True, slots=True)
class Person:
    """An ordinary user with a home directory, as `useradd -m` makes it."""

    name: str
    uid: int
    gid: int
    home: Path
    shell: str

    def can(self, home: Home, *args: str, cwd: str = "/", **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run `waypoint ARGS` as this user, without root's rights."""
        return subprocess.run(
            home.argv(*args),
            user=self.uid,
            group=self.gid,
            extra_groups=os.getgrouplist(self.name, self.gid),
            env=self.env(home) | variables,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def env(self, home: Home) -> dict[str, str]:
        """Return the environment variables for this user's programs."""
        return home.env | {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


@contextlib.contextmanager
def new_person(kind: str, shell: str) -> Iterator[Person]:
    """Make a user with the login shell `shell`, named after this test process and `kind`; remove it at the end."""
    _remove_leftovers()
    name = f"{PREFIX}{os.getpid()}-{kind}"
    subprocess.run(["useradd", "--create-home", "--shell", shell, name], check=True, capture_output=True)
    try:
        entry = pwd.getpwnam(name)
        yield Person(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), shell)
    finally:
        _remove(name)


def _remove_leftovers() -> None:
    """Remove the users that killed test runs have left."""
    for entry in pwd.getpwall():
        run, _, _kind = entry.pw_name.removeprefix(PREFIX).partition("-")
        if entry.pw_name.startswith(PREFIX) and run.isdecimal() and not Path(f"/proc/{run}").exists():
            _remove(entry.pw_name)


def _remove(name: str) -> None:
    # Its stderr is ignored: it only warns of a mail spool that does not exist.
    subprocess.run(["userdel", "--remove", name], check=True, capture_output=True)
