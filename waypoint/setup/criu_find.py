"""Which CRIU a home uses: the one that was chosen, else the distribution's if it works here, else the private one.

A trial finds out whether a CRIU works; the caller passes the function that makes it. The outcome of a trial is kept in
the home, since the same program on the same kernel gives the same outcome.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from waypoint.linux.calls import programs
from waypoint.linux.storage import files
from waypoint.model.errors import HostLacks
from waypoint.model.facts import Capability
from waypoint.processes.criu.rpc import Criu, CriuProgram, Origin
from waypoint.setup.rows import CHOOSE_ANOTHER, REMEDY, passed

TRIAL_FILE = "criu-trial.json"

Tries = Callable[[Path], list[Capability]]
"""Makes a trial of a program. Raises Failed if the trial could not be made; no outcome is kept then."""


class TrialOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a trial of one program on one kernel. `mtime_ns`, `size`: of the program, to notice a new one."""

    path: str
    mtime_ns: int
    size: int
    kernel: str
    rows: list[Capability]


def find(home: Path, *, tries: Tries, chosen: str | None = None) -> CriuProgram:
    """The CRIU to use. `tries`: makes a trial of a program. `chosen`: the value of WAYPOINT_CRIU, if it is set; this
    CRIU is used without a trial.

    Raises HostLacks if the chosen CRIU does not start, or if the distribution's does not work and no private one is
    installed; Failed if that was not found out because of something that happened.
    """
    if chosen:
        try:
            return _describe(Path(chosen), "chosen")
        except HostLacks as error:
            raise HostLacks("use", f"$WAYPOINT_CRIU ({chosen})", error.said, CHOOSE_ANOTHER) from error
    why = "there is no CRIU on this machine"
    distributed = programs.find("criu")
    if distributed is not None:
        rows = try_once(home, Path(distributed), tries)
        if passed(rows):
            return _describe(Path(distributed), "distribution")
        failed = next((row for row in rows if row.state != "ok" and row.required_for != "optional"), None)
        why = f"{distributed} does not work here: {failed.name}: {failed.why}" if failed else "it was not tried"
    from waypoint.setup import criu_install  # here, since every start of a daemon loads this module

    private = criu_install.installed(home)
    if private is None:
        raise HostLacks("find", "a CRIU that works here", why, "run `waypoint setup`, which installs a private one")
    return _describe(private, "private")


def remembered(look: Callable[[], CriuProgram]) -> Callable[[], CriuProgram]:
    """`look`, which finds a CRIU, as a function that looks again only if the program that it found is gone: another
    may have been installed meanwhile.
    """
    found: list[CriuProgram] = []

    def again() -> CriuProgram:
        if not found or not os.access(found[0].path, os.X_OK):
            found[:] = [look()]
        return found[0]

    return again


def find_or_install(home: Path, say: Callable[[str], None], *, tries: Tries, chosen: str | None = None) -> CriuProgram:
    """As `find`, but installs a private CRIU if no other works. Whichever CRIU is found must pass a trial.

    Raises HostLacks, with the reason if the CRIU has failed its trial; Failed as `find`.
    """
    try:
        found = find(home, tries=tries, chosen=chosen)
    except HostLacks:
        if chosen:
            raise
        from waypoint.setup import criu_install

        found = _describe(criu_install.install(home, say), "private")
    rows = try_once(home, found.path, tries)
    if not passed(rows):
        failed = next(row for row in rows if row.state != "ok" and row.required_for != "optional")
        # Not the row's own advice, which is to run setup: this is setup.
        next_step = CHOOSE_ANOTHER if failed.remedy == REMEDY else failed.remedy
        raise HostLacks("use CRIU", f"{found.version} at {found.path}", f"{failed.name}: {failed.why}", next_step)
    return found


def try_once(home: Path, program: Path, tries: Tries) -> list[Capability]:
    """The rows of a trial of `program`. If neither the program nor the kernel has changed since its last trial, these
    are the kept rows of that trial.
    """
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
    kept.append(TrialOutcome(path=here[0], mtime_ns=here[1], size=here[2], kernel=kernel, rows=rows))
    with contextlib.suppress(OSError):  # the outcome is not kept: the next caller tries the program again
        files.publish(str(home / TRIAL_FILE), msgspec.json.encode(kept), durable=False)
    return rows


def forget_failures(home: Path) -> None:
    """Forget the kept outcomes of trials that failed, so that these programs are tried again. For `waypoint setup`,
    which a person runs when something was mended: what failed may have been the machine's, such as a missing program.
    """
    kept = _load(home)
    good = [item for item in kept if passed(item.rows)]
    if good != kept:
        files.publish(str(home / TRIAL_FILE), msgspec.json.encode(good), durable=False)


def _load(home: Path) -> list[TrialOutcome]:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((home / TRIAL_FILE).read_bytes(), type=list[TrialOutcome])
    return []


def _describe(path: Path, origin: Origin) -> CriuProgram:
    version = ".".join(map(str, Criu(path).version()))
    return CriuProgram(path=path, version=version, origin=origin)
