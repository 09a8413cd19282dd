"""A home with a real supervisor and a real daemon that has the fake service of memory_service.py."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.daemon.raw_client import Answer, RawClient
from tests.waiting import PATIENCE_S
from waypoint.linux.tasks import lock_holder, pidfd, procfs
from waypoint.model import paths

DAEMON = Path(__file__).with_name("memory_daemon.py")
ROOT = Path(__file__).parents[2]


class SupervisedHome:
    """A home whose daemon and supervisor may be replaced, so that their pids are looked up at each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = paths.socket_path(str(folder))
        self.runtime = Path(paths.runtime_folder(str(folder)))

    def spawn(self, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()) -> subprocess.Popen[str]:
        """Run the supervisor's program, which ends at once if a supervisor runs; it reports on stdout."""
        script = str(ROOT / "waypoint/daemon/supervisor.py")
        command = [sys.executable, "-I", "-S", script, str(self.folder), "--daemon", str(DAEMON), "--ready-fd", "1"]
        full = {**os.environ, **(env or {})}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=full, pass_fds=pass_fds)

    def start(self, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()) -> str:
        """Start a supervisor and wait until the socket listens; return the report `ready PID`."""
        with self.spawn(env, pass_fds) as started:
            assert started.stdout is not None
            return started.stdout.read().strip()

    def ask(self, method: str, target: str, body: object = None) -> Answer:
        """Send a request, again if the daemon dies before it answers. The socket must exist all the time."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with RawClient(self.socket) as client:
                    return client.ask(method, target, body)
            except (EOFError, ConnectionResetError, BrokenPipeError):
                assert time.monotonic() < deadline, "no daemon answers"

    def daemon_pid(self) -> int:
        return int(self.ask("GET", "/v1/status").json["pid"])

    def supervisor_pid(self) -> int:
        return lock_holder.signed_by(str(self.runtime / "supervisor.lock"))

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll the condition, with a request to the daemon between two checks."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "waited for too long"
            self.ask("GET", "/v1/status")

    def log(self) -> str:
        return (self.folder / "daemon.log").read_text()


@contextlib.contextmanager
def ending(*pids: int, deadline_s: float = PATIENCE_S) -> Iterator[None]:
    """Check that the block ends these processes."""
    fds = [pidfd.open(pid) for pid in pids]
    try:
        yield
        assert all([pidfd.wait_ended(fd, deadline_s) for fd in fds]), "a process has not ended"
    finally:
        for fd in fds:
            os.close(fd)


def kill(*pids: int) -> None:
    """Kill all processes with SIGKILL, then wait for their ends."""
    with ending(*pids):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def supervised_home(folder: Path) -> Iterator[SupervisedHome]:
    folder.mkdir(mode=0o700)
    home = SupervisedHome(folder)
    try:
        yield home
    finally:
        if home.runtime.exists():
            _end(home)
            shutil.rmtree(home.runtime)
            with contextlib.suppress(OSError):  # the folder has run folders of other homes
                home.runtime.parent.rmdir()


def _end(home: SupervisedHome) -> None:
    """Stop the daemon and wait until no process holds the locks."""
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        home.ask("POST", "/v1/daemon/stop")
    for name in (home.runtime / "supervisor.lock", home.folder / "daemon.lock"):
        if name.exists():
            subprocess.run(["flock", "--timeout", str(PATIENCE_S), name, "true"], check=True)


def facts_of(pid: int) -> dict[str, object]:
    """Return the facts of a process that a background process must not inherit from its starter."""
    process = Path(f"/proc/{pid}")
    _, _, fields = (process / "stat").read_text().rpartition(") ")
    return {
        "tty": int(fields.split()[4]),
        "session": int(fields.split()[3]),
        "cwd": os.readlink(process / "cwd"),
        "files": procfs.open_files(pid),
        "environ": (process / "environ").read_bytes(),
    }


def write_config(home: SupervisedHome, **config: int) -> None:
    (home.folder / "config.json").write_text(json.dumps(config))
