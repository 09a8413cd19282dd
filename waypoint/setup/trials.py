"""Trials of this machine: they use the kernel's features and a CRIU once, to find out what works.

Each trial is a separate program that gets a temporary home and writes its rows into it. Its mounts end with the
program, and the program can be killed if it hangs. Afterwards the home is removed, and all processes that use it are
ended. If the caller is killed, the next trial does this.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from waypoint.linux.storage import files, filesystem
from waypoint.model.errors import Failed, HostLacks, WaypointError
from waypoint.model.ids import random_hex
from waypoint.model.paths import RUNTIME, RUNTIME_MODE, runtime_folder
from waypoint.model.session_facts import Capability
from waypoint.processes.criu.causes import TRY_AGAIN
from waypoint.setup import criu_find
from waypoint.setup.home_removal import TRIAL_PREFIX, discard
from waypoint.setup.rows import CRIU, missing_criu, of_chosen, unpatched
from waypoint.upper.contract import PoolSizes
from waypoint.upper.open_pool import open_pool

TRIAL_S = 120.0
ROWS_FILE = "rows.json"
_WORDS_FILE = "words"
# The trials' programs: modules whose `main` gets the path of the temporary home, then what is to be tried. The first
# module is in a higher layer, which this package may not import, so the module is named by a string.
_CRIU_PROGRAM = "waypoint.service.trial"
_HOST_PROGRAM = "waypoint.setup.host_probes"

MIB = 1 << 20
POOL_SIZES = PoolSizes(initial_bytes=256 * MIB, step_bytes=64 * MIB, headroom_bytes=0, floor_bytes=0)
_ROOT = Path(__file__).resolve().parents[2]


class NotTried(NamedTuple):
    """A trial that gave no rows. `why`: the reason. `remedy`: what the user can do, or "". `kind`: the class of the
    error: HostLacks if the machine lacks something that all sessions need; None: NotMade.
    """

    why: str
    remedy: str = ""
    kind: "type[NotMade | HostLacks] | None" = None


class NotMade(Failed):
    """A trial could not be made."""


OnStart = Callable[["subprocess.Popen[bytes]"], None]
"""Called with each process of a trial, in the thread that runs the trial. It may kill the process; the trial's
temporary home is removed then, too.
"""


def try_everything(home: Path, chosen: str | None = None, on_start: OnStart | None = None) -> list[Capability]:
    """Try the kernel and the home's CRIU. Returns one row for each capability, after about a second.

    `chosen`: the CRIU to try instead of the one in the environment variable WAYPOINT_CRIU. A missing capability raises
    no exception; its row contains the reason. `on_start`: see `OnStart`.
    """
    host = _run(_HOST_PROGRAM, home, on_start=on_start)
    if isinstance(host, NotTried):
        host = [Capability(name="the trial", state="missing", why=host.why, remedy=host.remedy, required_for="session")]
    return host + _try_found(home, chosen or os.environ.get("WAYPOINT_CRIU"), on_start)


def trial(criu: Path, home: Path, on_start: OnStart | None = None) -> list[Capability]:
    """Try one CRIU, and return its rows. `home`: an existing folder, below which the temporary home is made.

    Raises NotMade or HostLacks if the trial could not be made; whether the CRIU works is unknown then.
    """
    found = _run(_CRIU_PROGRAM, home, str(criu), on_start=on_start)
    if isinstance(found, NotTried):
        raise (found.kind or NotMade)("try CRIU at", str(criu), found.why, found.remedy or TRY_AGAIN)
    return found


def _try_found(home: Path, chosen: str | None, on_start: OnStart | None) -> list[Capability]:
    """Try the CRIU that the home uses, even if the outcome of an earlier trial is saved, and return its rows."""
    tried: dict[Path, list[Capability]] = {}

    def tries(program: Path) -> list[Capability]:
        tried[program] = trial(program, home, on_start)
        return tried[program]

    try:
        found = criu_find.find(home, tries=tries, chosen=chosen)
        rows = tried.get(found.path) or trial(found.path, home, on_start)
    except WaypointError as error:
        return missing_criu(error.said, error.next_step)
    if found.origin == "chosen":
        rows = of_chosen(rows)
    rows = [
        replace(row, why=criu_find.describe(found)) if row.name == CRIU and row.state == "ok" else row for row in rows
    ]
    return rows if found.key else [*rows, *unpatched()]


def _run(module: str, where: Path, *words: str, on_start: OnStart | None = None) -> list[Capability] | NotTried:
    """Run the program `module` on a temporary home below `where`. Returns its rows, or the reason why it gave none."""
    paths = [str(_ROOT), *(entry for entry in sys.path if entry.endswith("site-packages"))]
    boot = f"import sys; sys.path[:0] = {paths!r}; from {module} import main; main(sys.argv[1:])"
    try:
        with throwaway_home(where) as home:
            argv = [sys.executable, "-I", "-S", "-c", boot, str(home), *words]
            with (home / _WORDS_FILE).open("wb") as said:
                status = _complete(argv, said, on_start)
            if status != 0:
                said_last = (home / _WORDS_FILE).read_text(errors="replace").strip()[-500:]
                return NotTried(said_last or f"exit status {status}")
            return msgspec.json.decode((home / ROWS_FILE).read_bytes(), type=list[Capability])
    except subprocess.TimeoutExpired:
        return NotTried(f"the trial gave no result within {TRIAL_S:.0f} s")
    except WaypointError as error:
        kind = HostLacks if isinstance(error, HostLacks) else NotMade
        return NotTried(f"no session could be made: {error.said}", error.next_step, kind)
    except OSError as error:
        return NotTried(f"no session could be made: {error}")


def _complete(argv: list[str], said: IO[bytes], on_start: OnStart | None) -> int:
    """Run a program to its end, and return its exit status. Raises subprocess.TimeoutExpired after TRIAL_S."""
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said) as process:
        try:
            if on_start is not None:
                on_start(process)
            return process.wait(TRIAL_S)
        except BaseException:
            process.kill()
            raise


def write_rows(home: Path, rows: list[Capability]) -> None:
    """Write the outcome of a trial into its temporary home, for `_run`. The trial's program calls this."""
    (home / ROWS_FILE).write_bytes(msgspec.json.encode(rows))


@contextlib.contextmanager
def throwaway_home(where: Path) -> Iterator[Path]:
    """Make a new home below the folder `where`. At the end of the `with` block, remove it, and end all processes that
    use it.

    The homes that killed callers have left in `where` are removed first. The homes of running callers are kept: each
    caller holds a lock on its home's folder.
    """
    with contextlib.ExitStack() as stack:
        with _locked(where):  # so that no other caller removes the new home before its folder is locked
            for left in where.glob(f"{TRIAL_PREFIX}*"):
                with contextlib.suppress(BlockingIOError), _locked(left, wait=False):
                    discard(left)
            home = where.resolve() / f"{TRIAL_PREFIX}{random_hex(8)}"
            home.mkdir(mode=0o700)
            stack.enter_context(_locked(home))
            stack.callback(discard, home)
        for folder in (RUNTIME, runtime_folder(str(home))):
            files.make_folder(folder, RUNTIME_MODE)
        (home / "config.json").write_bytes(msgspec.json.encode({"pool": POOL_SIZES}))
        if filesystem.free_bytes(home) < 2 * POOL_SIZES.initial_bytes:
            open_pool(home, "copy").close()  # a pool of plain folders needs little space
        yield home


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the flock(2) of the folder itself, so that no lock file is needed. Raises BlockingIOError if another process
    holds the lock and `wait` is False.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
