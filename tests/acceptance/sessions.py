"""Sessions for tests: started for a purpose, thrown away afterwards; and what one sees in them."""

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

_NUMBERS = itertools.count(1)


@contextlib.contextmanager
def session(home: Home, user: str, *options: str) -> Iterator[str]:
    """A live session of `user` on a branch of its own; its name. Fine if the test has ended it."""
    name = f"s{next(_NUMBERS)}"
    home.must("shell", name, "-d", "--user", user, *options)
    try:
        yield name
    finally:
        home.cli("stop", name, "--discard")


def begin(home: Home, branch: str, *options: str) -> dict[str, Any]:
    """Start a session, of root if the options name no other user. Returns what `shell --json` prints."""
    user = () if "--user" in options else ("--user", "root")
    found: dict[str, Any] = home.must("shell", branch, "-d", "--json", *user, *options).json()
    return found


def facts(home: Home, branch: str) -> dict[str, Any]:
    """The row of `ps --json` of a live branch."""
    (found,) = (one for one in home.must("ps", "--json").json() if one["branch"] == branch)
    return dict(found)


def inside(home: Home, branch: str, text: str) -> str:
    """What a command that succeeds prints in the session."""
    done = home.cli("exec", "-b", branch, "--", text)
    assert done.code == 0, f"{text}: exit {done.code}: {done.stdout}{done.stderr}"
    return done.stdout


def refused(home: Home, *options: str, code: int = 2) -> str:
    """What `shell -d` with these options says. Nothing is started."""
    done = home.cli("shell", "refused", "-d", *options)
    found = [one["branch"] for one in home.must("ps", "--all", "--json").json()]
    home.cli("stop", "refused", "--discard")  # if it was not refused
    assert (done.code, done.stdout) == (code, ""), done
    assert "refused" not in found
    return done.stderr


OF_THE_BASE, OWN_MOUNT = "root of the base", "mount of its own"


@contextlib.contextmanager
def ground_of(kind: str) -> Iterator[Path]:
    """A folder of the host's, which sessions that begin in the `with` see: in the root file system, or a mount, which
    the homes of this worker have alone (tests/workers.py).
    """
    place = Path(tempfile.mkdtemp(prefix="ground-", dir=make_temp_root()))
    place.chmod(0o755)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, place)
        if kind == OWN_MOUNT:
            stack.enter_context(mounted(place, "-t", "tmpfs", "none"))
        yield place


@contextlib.contextmanager
def mounted(where: Path, *words: str) -> Iterator[None]:
    """`mount WORDS... WHERE` for the `with`."""
    subprocess.run(["mount", *words, str(where)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(where)], check=True)
