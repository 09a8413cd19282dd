"""Which CRIU a home uses: the one that was chosen, else the distribution's if it works here, else the private one.

Whether one works is found out by a trial, which somebody above this room makes; its outcome is kept, since a program
and a kernel that do not change give the same answer.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from waypoint.linux import files, programs
from waypoint.model.errors import HostLacks
from waypoint.model.requests import Capability
from waypoint.processes import criu_install
from waypoint.processes.criu_rpc import Criu
from waypoint.processes.trial import passed

TRIAL_FILE = "criu-trial.json"

Origin = Literal["chosen", "distribution", "private"]
Tries = Callable[[Path], list[Capability]]


class CriuProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A CRIU on this machine: `chosen` with WAYPOINT_CRIU, the `distribution`'s, or the home's `private` one."""

    path: Path
    version: str
    origin: Origin


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial found out about one program on one kernel. `mtime_ns` and `size` tell a replaced program."""

    path: str
    mtime_ns: int
    size: int
    kernel: str
    rows: list[Capability]


def find(home: Path, *, tries: Tries, chosen: str | None = None) -> CriuProgram:
    """The CRIU to use. `chosen`: the value of WAYPOINT_CRIU, which is taken without a trial.

    Raises HostLacks if there is none: what was chosen does not start, or nothing works and nothing is installed.
    """
    if chosen:
        return _describe(Path(chosen), "chosen")
    why = "there is none"
    distributed = programs.find("criu")
    if distributed is not None:
        rows = try_once(home, Path(distributed), tries)
        if passed(rows):
            return _describe(Path(distributed), "distribution")
        failed = next((row for row in rows if row.state != "ok" and row.required_for != "optional"), None)
        why = f"{distributed} does not work here: {failed.name}: {failed.why}" if failed else "it was not tried"
    private = criu_install.installed(home)
    if private is None:
        raise HostLacks("find", "a CRIU that works here", why, "run `waypoint setup`, which installs a private one")
    return _describe(private, "private")


def find_or_install(home: Path, say: Callable[[str], None], *, tries: Tries, chosen: str | None = None) -> CriuProgram:
    """As `find`, but installs a private CRIU if nothing else works; that one must pass the trial too.

    Raises HostLacks, also if the installed one fails its trial: then with the reason.
    """
    try:
        found = find(home, tries=tries, chosen=chosen)
    except HostLacks:
        if chosen:
            raise
        found = _describe(criu_install.install(home, say), "private")
    rows = try_once(home, found.path, tries)
    if not passed(rows):
        failed = next(row for row in rows if row.state != "ok" and row.required_for != "optional")
        raise HostLacks("use CRIU", f"{found.version} at {found.path}", f"{failed.name}: {failed.why}", failed.remedy)
    return found


def try_once(home: Path, program: Path, tries: Tries) -> list[Capability]:
    """The rows of the program's trial; those kept from the last one if neither it nor the kernel has changed."""
    try:
        found = program.stat()
    except OSError:
        return tries(program)
    kernel = os.uname().release
    here = (str(program.resolve()), found.st_mtime_ns, found.st_size, kernel)
    kept = [item for item in _load(home) if item.kernel == kernel and item.path != here[0]]
    for item in _load(home):
        if (item.path, item.mtime_ns, item.size, item.kernel) == here:
            return item.rows
    rows = tries(program)
    kept.append(Outcome(path=here[0], mtime_ns=here[1], size=here[2], kernel=kernel, rows=rows))
    with contextlib.suppress(OSError):  # it will be tried again
        files.publish(str(home / TRIAL_FILE), msgspec.json.encode(kept), durable=False)
    return rows


def _load(home: Path) -> list[Outcome]:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((home / TRIAL_FILE).read_bytes(), type=list[Outcome])
    return []


def _describe(path: Path, origin: Origin) -> CriuProgram:
    version = ".".join(map(str, Criu(path).version()))
    return CriuProgram(path=path, version=version, origin=origin)
