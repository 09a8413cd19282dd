"""Checks of commands that a user runs in a home of root, which `waypoint setup --user` has allowed."""

import re
import subprocess

from tests.homes import Home

NOT_ALLOWED = 3


def succeeds(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(done: "subprocess.CompletedProcess[str]", said: str, code: int = NOT_ALLOWED) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done
    assert said in done.stderr, done.stderr
    assert re.search(
        r"\n  next: (use a branch or checkpoint of your own, or another name; or )?let root run the command",
        done.stderr,
    )


def stop(home: Home, *branches: str) -> None:
    for branch in branches:
        home.must("stop", branch, "--discard")
