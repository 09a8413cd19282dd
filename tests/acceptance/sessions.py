"""Helpers that start sessions for a test, run commands in them and discard them afterwards."""

import contextlib
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.homes import Home
from tests.places import make_temp_root
from waypoint.client import Client

_NUMBERS = itertools.count(1)


@contextlib.contextmanager
def session(home: Home, user: str, *options: str) -> Iterator[str]:
    """Start a live session of `user` and yield its branch; discard it at the end, if the test has not done so."""
    name = f"s{next(_NUMBERS)}"
    home.must("shell", name, "-d", "--user", user, *options)
    try:
        yield name
    finally:
        home.cli("stop", name, "--discard")


def begin(home: Home, branch: str, *options: str) -> dict[str, Any]:
    """Start a session (as root unless the options name a user) and return the output of `shell --json`."""
    user = () if "--user" in options else ("--user", "root")
    found: dict[str, Any] = home.must("shell", branch, "-d", "--json", *user, *options).json()
    return found


def facts(home: Home, branch: str) -> dict[str, Any]:
    """Return the entry of a live branch in `ps --json`."""
    (found,) = (one for one in home.must("ps", "--json").json() if one["branch"] == branch)
    return dict(found)


def inside(home: Home, branch: str, text: str) -> str:
    """Run a command in the session's shell, which must succeed; return its output."""
    done = home.cli("exec", "-b", branch, "--", text)
    assert done.code == 0, f"{text}: exit {done.code}: {done.stdout}{done.stderr}"
    return done.stdout


def put(home: Home, branch: str, path: str, text: str) -> None:
    """Write a file of the session."""
    assert Client(home.path).session(branch).run("sh", "-c", f"cat >{path}", stdin=text.encode()).exit == 0


def refused(home: Home, *options: str, code: int = 2) -> str:
    """Check that `shell -d` with these options is refused and starts no session; return its stderr."""
    done = home.cli("shell", "refused", "-d", *options)
    found = [one["branch"] for one in home.must("ps", "--all", "--json").json()]
    home.cli("stop", "refused", "--discard")  # if it was not refused
    assert (done.code, done.stdout) == (code, ""), done
    assert "refused" not in found
    return done.stderr


OF_THE_BASE, OWN_MOUNT = "root of the base", "mount of its own"


@contextlib.contextmanager
def make_host_folder(kind: str) -> Iterator[Path]:
    """Make a folder of the host that new sessions see: in the root file system, or (OWN_MOUNT) as a separate mount.

    Only the homes of this test process see that mount (tests/workers.py).
    """
    place = Path(tempfile.mkdtemp(prefix="host-folder-", dir=make_temp_root()))
    place.chmod(0o755)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, place)
        if kind == OWN_MOUNT:
            stack.enter_context(mounted(place, "-t", "tmpfs", "none"))
        yield place


@contextlib.contextmanager
def mounted(where: Path, *words: str) -> Iterator[None]:
    """Run `mount WORDS... WHERE`; unmount at the end."""
    subprocess.run(["mount", *words, str(where)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(where)], check=True)
