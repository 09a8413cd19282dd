"""Which CRIU a home uses: the one in WAYPOINT_CRIU, else the first of these that works here: Waypoint's own from the
machine's cache, then from the package waypoint-criu; the distribution's; the home's private one.

A trial shows whether a CRIU works; the caller passes the function that makes the trial. The outcome is saved in the
home, because the same program on the same kernel gives the same outcome.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from waypoint.linux.calls import programs
from waypoint.linux.storage import files
from waypoint.model.errors import HostLacks
from waypoint.model.session_facts import Capability
from waypoint.processes.criu.rpc import Criu, CriuProgram, Origin
from waypoint.setup.rows import CHOOSE_ANOTHER, REMEDY, passed

TRIAL_FILE = "criu-trial.json"

ORIGINS: dict[Origin, str] = {
    "chosen": "chosen by WAYPOINT_CRIU",
    "cache": "Waypoint's own, built on this machine",
    "wheel": "Waypoint's own, of the package waypoint-criu",
    "distribution": "of this machine",
    "private": "of this home",
}

Tries = Callable[[Path], list[Capability]]
"""Makes a trial of a program. Raises Failed if the trial could not be made; then no outcome is saved."""


class TrialOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a trial of a program on a kernel. `mtime_ns`, `size`: of the program's file, to notice a
    change.
    """

    path: str
    mtime_ns: int
    size: int
    kernel: str
    rows: list[Capability]


def find(home: Path, *, tries: Tries, chosen: str | None = None) -> CriuProgram:
    """Find the CRIU to use. `tries`: makes a trial of a program. `chosen`: the value of WAYPOINT_CRIU, if it is set;
    this CRIU is used without a trial.

    Raises HostLacks if the chosen CRIU does not start, or if none of the others works and no private one is installed;
    Failed if a trial could not be made.
    """
    if chosen:
        try:
            return _ask(Path(chosen), "chosen")
        except HostLacks as error:
            raise HostLacks("use", f"$WAYPOINT_CRIU ({chosen})", error.said, CHOOSE_ANOTHER) from error
    why = []
    for path, origin in _present():
        rows = try_once(home, path, tries)
        if passed(rows):
            return _ask(path, origin)
        failed = next((row for row in rows if row.state != "ok" and row.required_for != "optional"), None)
        why.append(f"{path} does not work here: {failed.name}: {failed.why}" if failed else f"{path} was not tried")
    from waypoint.setup import criu_install  # not at the top, because every start of a daemon loads this module

    private = criu_install.installed(home)
    if private is None:
        said = "; ".join(why) or "there is no CRIU on this machine"
        raise HostLacks("find", "a CRIU that works here", said, "run `waypoint setup`, which installs one")
    return _ask(private, "private")


def _present() -> Iterator[tuple[Path, Origin]]:
    """The CRIUs of this machine, the best first."""
    from waypoint.setup import criu_build

    built = criu_build.built()
    if built is not None:
        yield built, "cache"
    packaged = criu_build.packaged()
    if packaged is not None and packaged[1] == criu_build.key():
        yield packaged[0], "wheel"
    distributed = programs.find("criu")
    if distributed is not None:
        yield Path(distributed), "distribution"


def describe(found: CriuProgram) -> str:
    """The program in words, for people."""
    patched = f", with Waypoint's patches {found.key}" if found.key else ""
    return f"version {found.version}{patched}, {found.path}, {ORIGINS[found.origin]}"


def remembered(look: Callable[[], CriuProgram]) -> Callable[[], CriuProgram]:
    """Return a function that calls `look` once and then returns the same CRIU, until that program no longer exists:
    then it calls `look` again, because another CRIU may have been installed.
    """
    found: list[CriuProgram] = []

    def again() -> CriuProgram:
        if not found or not os.access(found[0].path, os.X_OK):
            found[:] = [look()]
        return found[0]

    return again


def find_or_install(home: Path, say: Callable[[str], None], *, tries: Tries, chosen: str | None = None) -> CriuProgram:
    """Find the CRIU to use like `find`, but first build Waypoint's own if it is missing, and install a private one if
    no other works. The CRIU must pass a trial, even if it was chosen.

    Raises HostLacks if no CRIU works; Failed if a trial could not be made.
    """
    if not chosen:
        make_own(say)
    try:
        found = find(home, tries=tries, chosen=chosen)
    except HostLacks:
        if chosen:
            raise
        from waypoint.setup import criu_install

        found = _ask(criu_install.install(home, say), "private")
    rows = try_once(home, found.path, tries)
    if not passed(rows):
        failed = next(row for row in rows if row.state != "ok" and row.required_for != "optional")
        # The row advises to run setup, which is already running.
        next_step = CHOOSE_ANOTHER if failed.remedy == REMEDY else failed.remedy
        raise HostLacks("use CRIU", f"{found.version} at {found.path}", f"{failed.name}: {failed.why}", next_step)
    return found


def make_own(say: Callable[[str], None]) -> None:
    """Build Waypoint's own CRIU for this machine, unless it or the package waypoint-criu is there. If the build fails,
    `say` prints the reason.
    """
    from waypoint.setup import criu_build

    packaged = criu_build.packaged()
    if packaged is not None and packaged[1] == criu_build.key() and criu_build.built() is None:
        return
    if packaged is not None and packaged[1] != criu_build.key():
        say("the package waypoint-criu is of another version of Waypoint, and is not used: install a matching one")
    try:
        criu_build.build(say)
    except HostLacks as error:
        wanted = "the build needs root, apt, Debian's keyring and a Debian mirror"
        say(f"Waypoint's own CRIU was not built: cannot {error.tried} {error.on}: {error.said}; {wanted}")


def try_once(home: Path, program: Path, tries: Tries) -> list[Capability]:
    """The rows of a trial of `program`. The trial is made only if the program or the kernel has changed since the last
    trial, whose rows are saved.
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
    with contextlib.suppress(OSError):  # if the outcome cannot be saved, the next caller tries the program again
        files.publish(str(home / TRIAL_FILE), msgspec.json.encode(kept), durable=False)
    return rows


def forget_failures(home: Path) -> None:
    """Remove the saved outcomes of failed trials, so that each CRIU that failed is tried again. `waypoint setup` calls
    this, because the user may have removed the cause since, for example by installing a program that the trial needs.
    """
    kept = _load(home)
    good = [item for item in kept if passed(item.rows)]
    if good != kept:
        files.publish(str(home / TRIAL_FILE), msgspec.json.encode(good), durable=False)


def _load(home: Path) -> list[TrialOutcome]:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((home / TRIAL_FILE).read_bytes(), type=list[TrialOutcome])
    return []


def _ask(path: Path, origin: Origin) -> CriuProgram:
    version, key = Criu(path).version_and_key()
    return CriuProgram(path=path, version=".".join(map(str, version)), origin=origin, key=key)
