"""Fresh homes for tests, used through the command line as a user would."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests import hung, needs
from tests.places import ROOT, RUNTIME, home_id, make_temp_root, mounts_below

RUN_VARIABLE = "WAYPOINT_TEST_RUN"
CLI_TIMEOUT_S = 60.0  # a first `setup` tries CRIU; other commands are quicker
MIB = 1 << 20
SMALL_POOL = {
    "initial_bytes": 512 * MIB,
    "step_bytes": 256 * MIB,
    "headroom_bytes": 256 * MIB,
    "floor_bytes": 256 * MIB,
}
"""Sizes of a small pool, so that many homes fit on a disk. The pool grows as the default pool does."""
_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "WAYPOINT_CRIU", RUN_VARIABLE)

OPEN: set["Home"] = set()
TRIAL_FILE = "criu-trial.json"
_tried: list[bytes] = []
"""The trial file of this process's first home; later homes reuse it instead of trying CRIU again."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command. Bytes that are not UTF-8 are surrogates in `stdout`; `raw` has the bytes."""

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

    @property
    def root(self) -> Path:
        """The folder that stands in for `/` when setup writes files outside of the home."""
        return self.path.parent / "root"

    @property
    def env(self) -> dict[str, str]:
        """The environment of a command on this home, with few variables of this process."""
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        own = {"WAYPOINT_HOME": str(self.path), "WAYPOINT_SETUP_ROOT": str(self.root)}
        return {**kept, **own, "LANG": "C.UTF-8", "TERM": "xterm-256color"}

    def argv(self, *args: str) -> list[str]:
        """The command as a list, for pexpect, tmux and Popen; use it with `env`."""
        return [sys.executable, "-I", "-S", str(ROOT / "waypoint/cli/main.py"), *args]

    def cli(
        self,
        *args: str,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = CLI_TIMEOUT_S,
        cwd: Path | None = None,
    ) -> Completed:
        """Run `waypoint ARGS` to its end. `stdin`: its input; None: /dev/null. After `timeout_s` the command is killed,
        and a note of the TimeoutExpired describes the hang.
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
                command.kill()
        return Completed(_text(stdout), _text(stderr), command.returncode)

    def must(self, *args: str, **options: Any) -> Completed:
        """Run `waypoint ARGS` with the options of `cli`, and fail the test if the exit status is not 0."""
        done = self.cli(*args, **options)
        assert done.code == 0, f"waypoint {' '.join(args)} exited with {done.code}: {done.stderr or done.stdout}"
        return done

    @contextlib.contextmanager
    def background(self, *args: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run `waypoint ARGS` without input inside the block, and kill it at the end."""
        with subprocess.Popen(
            self.argv(*args), env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as command:
            try:
                yield command
            finally:
                command.kill()


@contextlib.contextmanager
def open_home(  # noqa: PLR0913  # each is independent of the others
    purpose: str = "home",
    within: Path | None = None,
    *,
    pool: Mapping[str, int] | None = None,
    host_ids: bool | None = None,
    seccomp: bool = True,
    settings: Mapping[str, object] = MappingProxyType({}),
    options: Sequence[str] = (),
) -> Iterator[Home]:
    """Set up a new home. At the end, stop its sessions and daemon and remove the home; leftovers fail the test.

    `within`: the folder in which to make the home; None: the folder for temporary files. `pool`: sizes of its pool;
    None: a small pool, or the default pool if `within` is given. `host_ids`: whether its sessions use the host's user
    ids; None: only if WAYPOINT_TEST_HOST_IDS is 1 or the machine has no idmapped mounts (every command would report
    that). `seccomp`: whether its sessions have a filter of system calls. `settings`: more of config.json, unless
    `within` is given. `options`: of `setup`.
    """
    if host_ids is None:
        host_ids = os.environ.get("WAYPOINT_TEST_HOST_IDS") == "1" or bool(needs.missing("idmapped"))
    seccomp = seccomp and not needs.missing("seccomp")
    walls: dict[str, object] = {"seccomp": seccomp, **({"ids": {"first": 0}} if host_ids else {})}
    folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-{os.getpid()}-", dir=within or make_temp_root()))
    home = Home(folder / "h")
    OPEN.add(home)
    try:
        if within is None or pool:
            home.path.mkdir(mode=0o700)
            (home.path / "config.json").write_text(json.dumps({"pool": pool or SMALL_POOL, **walls, **settings}))
            if _tried:
                (home.path / TRIAL_FILE).write_bytes(_tried[0])
        home.must("setup", *options)
        if not _tried:
            _tried.append((home.path / TRIAL_FILE).read_bytes())
        yield home
    finally:
        try:
            _end(home)
        finally:
            OPEN.discard(home)
            _remove(folder)


def _end(home: Home) -> None:
    if home.path.exists():
        home.must("setup", "--remove", "--yes")
    left = [str(path) for path in (home.path, home.runtime) if path.exists()]
    left += [str(path) for path in home.root.rglob("*") if not path.is_dir()]
    assert not left, f"`setup --remove` left {', '.join(left)}"


def _remove(folder: Path) -> None:
    # Do not delete through a mount: it may show the machine's own root.
    mounted = mounts_below(folder)
    assert not mounted, f"still mounted: {', '.join(mounted)}"
    shutil.rmtree(folder)


def _text(output: bytes) -> str:
    return output.decode(errors="surrogateescape")
