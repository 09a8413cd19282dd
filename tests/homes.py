"""Fresh homes for tests, used through the command line as a user would.

A home that `open_home` gave is ended and removed when its `with` ends; what it still has then is raised.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import hung, needs
from tests.places import ROOT, RUNTIME, home_id, make_temp_root, mounts_below
from tests.waiting import DEADLINE_S
from waypoint.client import Client
from waypoint.linux.tasks import pidfd
from waypoint.model.paths import hot_memory_path

RUN_VARIABLE = "WAYPOINT_TEST_RUN"
CLI_TIMEOUT_S = 60.0  # a first `setup` tries CRIU; all else is quicker, and tests say so where it matters
MIB = 1 << 20
SMALL_POOL = {
    "initial_bytes": 512 * MIB,
    "step_bytes": 256 * MIB,
    "headroom_bytes": 256 * MIB,
    "floor_bytes": 256 * MIB,
}
"""So that many homes fit on a small disk. It grows as the usual one does."""
_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "WAYPOINT_CRIU", "WAYPOINT_PAUSE_AT", RUN_VARIABLE)

OPEN: set["Home"] = set()
TRIAL_FILE = "criu-trial.json"
_tried: list[bytes] = []
"""What the first home of this process keeps of the trial of its CRIU: those that follow need not try it again."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended. Bytes that are not UTF-8 are kept as surrogates: `raw` has them as they came."""

    stdout: str
    stderr: str
    code: int

    @property
    def raw(self) -> bytes:
        return self.stdout.encode(errors="surrogateescape")

    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass(frozen=True, slots=True)
class Home:
    """One WAYPOINT_HOME and the commands on it."""

    path: Path

    @property
    def id(self) -> str:
        return home_id(self.path)

    @property
    def runtime(self) -> Path:
        return RUNTIME / self.id

    def images(self, capture: str) -> Path:
        """The folder of CRIU's images of a capture: in memory, or on the disk."""
        born = Path(hot_memory_path(str(self.path)), capture, "images")
        return born if born.exists() else self.path / "hot" / capture / "images"

    @property
    def root(self) -> Path:
        """Where setup puts what belongs outside of the home, in place of `/`."""
        return self.path.parent / "root"

    @property
    def env(self) -> dict[str, str]:
        """What a command on this home needs of the environment: nothing of the person who runs the tests."""
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        own = {"WAYPOINT_HOME": str(self.path), "WAYPOINT_SETUP_ROOT": str(self.root)}
        return {**kept, **own, "LANG": "C.UTF-8", "TERM": "xterm-256color"}

    def argv(self, *args: str) -> list[str]:
        """The command as a list, for pexpect, tmux and Popen; goes with `env`."""
        return [sys.executable, "-I", "-S", str(ROOT / "waypoint/cli/main.py"), *args]

    def cli(
        self,
        *args: str,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = CLI_TIMEOUT_S,
        cwd: Path | None = None,
    ) -> Completed:
        """Run `waypoint ARGS` to its end; `stdin` None: /dev/null. Raises subprocess.TimeoutExpired: the command is
        killed, and the exception's notes say what hung.
        """
        with subprocess.Popen(
            self.argv(*args),
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
        ) as command:
            try:
                stdout, stderr = command.communicate(stdin, timeout_s)
            except subprocess.TimeoutExpired as error:
                error.add_note(hung.describe(self.path))
                raise
            finally:
                command.kill()  # does nothing to one that has ended
        return Completed(_text(stdout), _text(stderr), command.returncode)

    def must(self, *args: str, **options: Any) -> Completed:
        """As `cli`, but anything but exit 0 raises AssertionError with what the command said."""
        done = self.cli(*args, **options)
        assert done.code == 0, f"waypoint {' '.join(args)} exited with {done.code}: {done.stderr or done.stdout}"
        return done

    @contextlib.contextmanager
    def background(self, *args: str) -> Iterator[subprocess.Popen[bytes]]:
        """`waypoint ARGS` while it runs, without input; killed at the end if it still does."""
        with subprocess.Popen(
            self.argv(*args), env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as command:
            try:
                yield command
            finally:
                command.kill()


def set_up(home: Home, *options: str) -> Completed:
    """`setup OPTIONS` of a home whose folder is not there yet, or has its config.json only. Its CRIU is not tried if
    that of an earlier home of this process was. Raises AssertionError as `must`.
    """
    if _tried:
        home.path.mkdir(mode=0o700, exist_ok=True)
        if not (home.path / "config.json").exists():  # without one it is no home, and may have no other file
            (home.path / "config.json").write_text(json.dumps({"pool": SMALL_POOL}))
        (home.path / TRIAL_FILE).write_bytes(_tried[0])
    done = home.must("setup", *options)
    if not _tried:
        _tried.append((home.path / TRIAL_FILE).read_bytes())
    return done


@contextlib.contextmanager
def open_home(
    purpose: str = "home",
    within: Path | None = None,
    *,
    pool: Mapping[str, int] | None = None,
    host_ids: bool | None = None,
    seccomp: bool = True,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Home]:
    """A new home, set up. At the end its sessions and its daemon are stopped and everything of it is removed.

    `within`: a folder on the file system that the home shall be on; None: the usual place. `pool`: the sizes of its
    pool; None: a small one, and `within` a folder the one that users have. `host_ids`: whether its sessions have the
    host's ids; None: where nothing can be idmapped, so that no command of a test which is about something else says so.
    `seccomp`: whether its sessions have a filter of system calls, where there are any. `settings`: what else its
    config.json has.
    """
    if host_ids is None:
        host_ids = bool(needs.missing("idmapped"))
    seccomp = seccomp and not needs.missing("seccomp")
    walls: dict[str, object] = {"seccomp": seccomp, **({"ids": {"first": 0}} if host_ids else {})}
    quiet = {"durable_after_s": None}  # so that no work on the store takes a processor of another test's
    sizes = pool or (SMALL_POOL if within is None else None)
    folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-{os.getpid()}-", dir=within or make_temp_root()))
    home = Home(folder / "h")
    OPEN.add(home)
    try:
        home.path.mkdir(mode=0o700)
        (home.path / "config.json").write_text(json.dumps({"pool": sizes, **quiet, **(settings or {}), **walls}))
        set_up(home)
        yield home
    finally:
        try:
            _end(home)
        finally:
            OPEN.discard(home)
            _remove(folder)


def kill_daemon(home: Home) -> None:
    """Returns when it has ended; the next one may be on its way."""
    ended = os.pidfd_open(pid := home.must("daemon", "status", "--json").json()["pid"])
    try:
        os.kill(pid, signal.SIGKILL)
        assert pidfd.wait_ended(ended, DEADLINE_S)
    finally:
        os.close(ended)


def empty(home: Home) -> None:
    """End all sessions and remove all names, so that the next test on the home finds none. Captures may stay."""
    client = Client(home.path)
    for row in client.sessions():
        client.session(row.branch).stop(discard=True)
    names = {row.name for row in client.history.branches()}
    if names := names.union(*(capture.names for capture in client.history.log(all=True))):
        client.history.remove(*names)


def _end(home: Home) -> None:
    if home.path.exists():
        home.must("setup", "--remove", "--yes")  # which ends its sessions, too
    left = [str(path) for path in (home.path, home.runtime) if path.exists()]
    left += [str(path) for path in home.root.rglob("*") if not path.is_dir()]
    assert not left, f"`setup --remove` left {', '.join(left)}"


def _remove(folder: Path) -> None:
    # Never through a mount: what is mounted there may be the machine's own root.
    mounted = mounts_below(folder)
    assert not mounted, f"still mounted: {', '.join(mounted)}"
    shutil.rmtree(folder)


def _text(output: bytes) -> str:
    return output.decode(errors="surrogateescape")
