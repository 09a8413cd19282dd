"""Finding and running programs of the machine (coreutils, mkfs).

Programs get a fixed environment: their behaviour must not depend on the environment in which the daemon was started.
"""

import errno
import os
import shutil
import subprocess

from waypoint.linux.calls.paths import StrPath

# Many users' PATH lacks the sbin folders. The last two folders are those of NixOS and Guix.
SEARCH_PATH = ":".join(
    (
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "/run/current-system/sw/bin:/run/current-system/profile/bin",
    )
)

_ENVIRONMENT = {"PATH": SEARCH_PATH, "LC_ALL": "C"}


def find(name: str) -> str | None:
    """The path of program `name`, or None if no folder of SEARCH_PATH has the program."""
    return shutil.which(name, path=SEARCH_PATH)


def is_program(path: StrPath) -> bool:
    """True if `path` is a file that may be executed."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def run(name: str, *args: StrPath, pass_fds: tuple[int, ...] = ()) -> bytes:
    """Run program `name` to its end, with stdin from /dev/null and the C locale; return its stdout. `pass_fds`: the
    descriptors that it gets besides, under their numbers.

    Raises FileNotFoundError if there is no such program, subprocess.CalledProcessError (with `stderr` as bytes) if the
    program fails. If the caller is killed the program runs on: files that it works on may change a little longer.
    """
    return subprocess.run(
        [_found(name), *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=_ENVIRONMENT,
        check=True,
        pass_fds=pass_fds,
    ).stdout


def run_up_to(most_bytes: int, name: str, *args: StrPath) -> bytes:
    """As `run`, but if it prints more than `most_bytes` it is killed, and OSError EFBIG is raised. What it says on
    stderr is lost.
    """
    command = [_found(name), *args]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_ENVIRONMENT
    ) as running:
        assert running.stdout is not None
        printed = running.stdout.read(most_bytes + 1)
        if len(printed) > most_bytes:
            running.kill()
            raise OSError(errno.EFBIG, f"{name} prints more than {most_bytes} bytes", name)
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)
    return printed


def _found(name: str) -> str:
    program = find(name)
    if program is None:
        raise FileNotFoundError(2, f"no program {name} in {SEARCH_PATH}", name)
    return program
