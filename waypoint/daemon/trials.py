"""What the doctor does: try every capability of this machine on a throw-away session, in a process of its own.

A process of its own, because it needs one thread and a mount namespace that ends with it, and because whatever hangs
can then be ended. It prints its rows in JSON.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec

from waypoint.linux import cgroups, mounts, namespaces
from waypoint.model.errors import WaypointError
from waypoint.model.requests import Capability
from waypoint.processes import criu_find
from waypoint.processes.trial import Stage, missing_criu, try_criu
from waypoint.session.trial.ground import Ground, sweep
from waypoint.session.trial.host_probes import probe_host
from waypoint.session.trial.throwaway import Throwaway

TRIAL_S = 120.0
_ROOT = Path(__file__).resolve().parents[2]


def try_everything(home: Path, chosen: str | None = None) -> list[Capability]:
    """One row for each capability; takes about a second. `chosen`: in place of the environment's WAYPOINT_CRIU.

    A bad host is no error but rows that say so.
    """
    return _run("everything", home, chosen or "")


def trial(criu: Path, where: Path) -> list[Capability]:
    """The rows of one CRIU. `where`: a folder on the disk of the home; nothing is left in it."""
    return _run("criu", where, str(criu))


def _run(kind: str, folder: Path, criu: str) -> list[Capability]:
    with tempfile.TemporaryDirectory() as elsewhere:
        where = folder if folder.is_dir() else Path(elsewhere)
        paths = [str(_ROOT), *(entry for entry in sys.path if entry.endswith("site-packages"))]
        boot = f"import sys; sys.path[:0] = {paths!r}; from waypoint.daemon import trials; trials.main(sys.argv[1:])"
        command = [sys.executable, "-I", "-S", "-c", boot, kind, str(folder), str(where), criu]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_S, check=False)
        except subprocess.TimeoutExpired:
            return _all_missing(f"the trial gave no result within {TRIAL_S:.0f} s")
        finally:
            _sweep(where)
    if done.returncode != 0:
        return _all_missing(done.stderr.decode(errors="replace").strip()[-500:] or f"exit status {done.returncode}")
    return msgspec.json.decode(done.stdout, type=list[Capability])


def main(argv: list[str]) -> None:
    """The trial's process."""
    kind, folder, where, criu = argv
    namespaces.set_death_signal(9)
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.make_private("/")
    if kind == "everything":
        rows = _try_all(Path(folder), Path(where), criu or os.environ.get("WAYPOINT_CRIU"))
    else:
        rows = _try_one(Path(where), criu)
    sys.stdout.buffer.write(msgspec.json.encode(rows))


def _try_all(home: Path, where: Path, chosen: str | None) -> list[Capability]:
    with tempfile.TemporaryDirectory(dir=where, prefix="waypoint-trial-") as folder:
        rows = probe_host(Path(folder))
    return rows + _on_stage(where, lambda stage: _try_found(home, stage, chosen))


def _try_found(home: Path, stage: Stage, chosen: str | None) -> list[Capability]:
    tried: dict[Path, list[Capability]] = {}

    def tries(program: Path) -> list[Capability]:
        tried[program] = try_criu(program, stage)
        return tried[program]

    try:
        found = criu_find.find(home, tries=tries, chosen=chosen)
    except WaypointError as error:
        return missing_criu(error.said)
    return tried.get(found.path) or try_criu(found.path, stage)


def _try_one(where: Path, criu: str) -> list[Capability]:
    return _on_stage(where, lambda stage: try_criu(Path(criu), stage))


def _on_stage(where: Path, work: Callable[[Stage], list[Capability]]) -> list[Capability]:
    try:
        with Ground(where) as ground, closing(Throwaway(ground)) as stage:
            return work(stage)
    except WaypointError as error:
        return missing_criu(str(error.said))
    except OSError as error:
        return missing_criu(f"no session could be made: {error}")


def _sweep(where: Path) -> None:
    """What a killed trial left."""
    try:
        sweep(where, cgroups.find_hierarchies().unified)
    except FileNotFoundError:  # no cgroup2
        return


def _all_missing(why: str) -> list[Capability]:
    return [Capability(name="the trial", state="missing", why=why, required_for="session"), *missing_criu("not tried")]
