"""Finding and running programs of the machine (coreutils, mkfs).

Programs get a fixed environment: their behaviour must not depend on the environment in which the daemon was started.
"""

import os
import shutil
import subprocess
from typing import Any, Protocol

from waypoint.linux.calls.paths import StrPath

# Many users' PATH lacks the sbin folders. The last two folders are those of NixOS and Guix.
SEARCH_PATH = ":".join(
    (
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "/run/current-system/sw/bin:/run/current-system/profile/bin",
    )
)

_PIPE_BYTES = 1 << 20  # the most that a user may have without a capability (pipe(7))
_ENVIRONMENT = {"PATH": SEARCH_PATH, "LC_ALL": "C"}


def find(name: str) -> str | None:
    """The path of program `name`, or None if no folder of SEARCH_PATH has the program."""
    return shutil.which(name, path=SEARCH_PATH)


def is_program(path: StrPath) -> bool:
    """True if `path` is a file that may be executed."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


class Identity(Protocol):
    """A user with whose rights a program runs."""

    @property
    def uid(self) -> int: ...
    @property
    def gid(self) -> int: ...
    @property
    def groups(self) -> list[int]: ...


def run(
    name: str,
    *args: StrPath,
    pass_fds: tuple[int, ...] = (),
    folder: StrPath | None = None,
    user: Identity | None = None,
    limit_s: float | None = None,
) -> bytes:
    """Run program `name` to its end, with stdin from /dev/null and the C locale; return its stdout. `pass_fds`: the
    descriptors that it gets besides, under their numbers. `folder`: its working directory, which `user`, with whose
    rights it runs, need not be able to reach. After `limit_s` it is killed, and this raises TimeoutExpired.

    Raises FileNotFoundError if there is no such program, subprocess.CalledProcessError (with `stderr` as bytes) if the
    program fails. If the caller is killed, the program continues, so it may still change files for a while.
    """
    done: subprocess.CompletedProcess[bytes] = subprocess.run(
        [_found(name), *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=_ENVIRONMENT,
        check=True,
        pass_fds=pass_fds,
        cwd=folder,
        timeout=limit_s,
        **_as_user(user),
    )
    return done.stdout


def answer(
    name: str, *args: StrPath, given: bytes, user: Identity, home: str, timeout_s: float | None = None
) -> "subprocess.CompletedProcess[bytes]":
    """Run program `name` as `user`, whose home is `home`, with `given` as its stdin; return how it has ended. After
    `timeout_s` it is killed: subprocess.TimeoutExpired.
    """
    return subprocess.run(
        [_found(name), *args],
        input=given,
        capture_output=True,
        env={**_ENVIRONMENT, "HOME": home},
        check=False,
        timeout=timeout_s,
        **_as_user(user),
    )


def start(name: str, *args: StrPath, folder: StrPath, user: Identity | None) -> "subprocess.Popen[bytes]":
    """Start program `name` like `run`, with pipes for stdout and stderr."""
    return subprocess.Popen(
        [_found(name), *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pipesize=_PIPE_BYTES,
        env=_ENVIRONMENT,
        cwd=folder,
        **_as_user(user),
    )


def _found(name: str) -> str:
    program = find(name)
    if program is None:
        raise FileNotFoundError(2, f"no program {name} in {SEARCH_PATH}", name)
    return program


def _as_user(user: Identity | None) -> dict[str, Any]:
    if user is None or user.uid == os.geteuid():
        return {}
    return {"user": user.uid, "group": user.gid, "extra_groups": user.groups}
