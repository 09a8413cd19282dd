"""Ordinary users of this machine, made for a run of the tests and removed at its end."""

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.homes import Home
from tests.waiting import wait_until

PREFIX = "wptest-"
TIMEOUT_S = 60.0  # of programs that lock the list of users, which other tests change too


@dataclass(frozen=True, slots=True)
class Person:
    """A user with a home directory of their own, as the distribution's `useradd -m` makes it."""

    name: str
    uid: int
    gid: int
    home: Path
    shell: str

    def can(self, home: Home, *args: str, cwd: str = "/", **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run `waypoint ARGS` as this user, who has no rights but their own."""
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
        """What this user's own programs have in their environment."""
        return home.env | {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


@contextlib.contextmanager
def new_person(kind: str, shell: str) -> Iterator[Person]:
    """A user named after this run and `kind`, whose login shell is `shell`."""
    _remove_leftovers()
    name = f"{PREFIX}{os.getpid()}-{kind}"
    subprocess.run(["useradd", "--create-home", "--shell", shell, name], check=True, capture_output=True)
    try:
        entry = pwd.getpwnam(name)
        yield Person(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), shell)
    finally:
        _remove(name)


def _remove_leftovers() -> None:
    """Of runs that were killed."""
    for entry in pwd.getpwall():
        run, _, _kind = entry.pw_name.removeprefix(PREFIX).partition("-")
        if entry.pw_name.startswith(PREFIX) and run.isdecimal() and not Path(f"/proc/{run}").exists():
            wait_until(lambda uid=entry.pw_uid: not _killed(uid), f"the processes of {entry.pw_name} to end")
            _remove(entry.pw_name)


def _killed(uid: int) -> list[int]:
    """Kill what the user runs, such as a daemon of their own, which would keep them. Returns the pids."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if entry.name.isdecimal() and entry.stat().st_uid == uid and (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
                found.append(int(entry.name))
    return found


def _remove(name: str) -> None:
    """Of what a run that was killed has left, another worker may remove it, too."""

    def is_gone() -> bool:
        subprocess.run(["userdel", "--remove", name], check=False, capture_output=True)
        return name not in {entry.pw_name for entry in pwd.getpwall()}

    wait_until(is_gone, f"the user {name} is removed")
