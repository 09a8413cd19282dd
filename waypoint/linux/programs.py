"""Running small, well kept programs of the machine (coreutils, mkfs) to their end.

The caller's environment is not passed on: what a program does must not depend on who started the daemon.
"""

import os
import shutil
import subprocess

StrPath = str | os.PathLike[str]

# The sbin folders are missing in many users' PATH; the last two are NixOS and Guix.
SEARCH_PATH = ":".join(
    (
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "/run/current-system/sw/bin:/run/current-system/profile/bin",
    )
)


def find(name: str) -> str | None:
    """The path of program `name`, or None."""
    return shutil.which(name, path=SEARCH_PATH)


def is_program(path: StrPath) -> bool:
    """True if `path` is a file that may be executed."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def run(name: str, *args: StrPath) -> bytes:
    """Run program `name` with stdin from /dev/null and messages in English; return its stdout.

    Raises FileNotFoundError if there is no such program, subprocess.CalledProcessError (with `stderr` as bytes) if it
    ends with another status than 0. Killed with the caller it is not: what it works on may still change for a moment.
    """
    program = find(name)
    if program is None:
        raise FileNotFoundError(2, f"no program {name} in {SEARCH_PATH}", name)
    environment = {"PATH": SEARCH_PATH, "LC_ALL": "C"}
    done = subprocess.run([program, *args], stdin=subprocess.DEVNULL, capture_output=True, env=environment, check=True)
    return done.stdout
