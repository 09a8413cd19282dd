"""The processes that run tests beside each other: what each is known by, what each starts with, and who waits for whom.

A worker is a process of pytest in which tests run: one of `-n`, or the only one of a run without it.
"""

import contextlib
import fcntl
import functools
import os
import pwd
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.homes import RUN_VARIABLE
from tests.places import ROOT, make_temp_root
from tests.processes_now import read
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import namespaces

IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
"""In itself; `subprocess` sets them back in every child."""
FILES = 4096
"""The soft limit of open files, if the hard one allows it: a thousand clients and their server are one process."""

WORKERS_PER_PROCESSOR = 2
"""Most of a test's time is waiting."""
MAX_WORKERS = 8
"""Each has homes, sessions and pools of its own at a time, which need memory and room on the disk."""

LONG = (
    "tests/chaos/test_chaos.py",
    "tests/processes/test_criu_install.py",
    "tests/cli/test_next_machine.py",
    "tests/session/test_full_home.py",
    "tests/session/test_strangers.py",
    "tests/acceptance/test_search.py",
    "tests/acceptance/test_deep_chain.py",
    "tests/session/test_soak.py",
    "tests/session/test_given_back.py",
    "tests/repo/test_docs.py",
    "tests/acceptance/test_state_kept_or_said.py",
    "tests/upper/test_shrinking.py",
    "tests/workloads/test_agents.py",
    "tests/acceptance/test_hostile_session.py",
    "tests/session/test_room_made.py",
    "tests/upper/test_crashes.py",
    "tests/acceptance/test_hostile_terminal.py",
    "tests/session/test_undo_chains.py",
    "tests/session/test_capture_full_disk.py",
    "tests/chaos/test_criu_kills.py",
    "tests/acceptance/test_floods.py",
    "tests/acceptance/test_moment.py",
    "tests/processes/test_debian_packages.py",
    "tests/session/test_overdue.py",
)
"""Files with few tests that take long (20 s and more beside others)."""

_ALONE = "alone"
"""The file in the folder that all workers share, with the ids of the tests that are to be alone."""
_NAME = "tests-"
_VARIABLE = f"\0{RUN_VARIABLE}=".encode()


def count() -> int:
    """How many workers a run has on this machine."""
    return min(WORKERS_PER_PROCESSOR * len(os.sched_getaffinity(0)), MAX_WORKERS)


def introduce() -> None:
    """Make this process known as a worker: its forks have its comm, and the programs that it starts RUN_VARIABLE."""
    os.environ[RUN_VARIABLE] = str(os.getpid())
    Path("/proc/self/comm").write_text(f"{_NAME}{os.getpid()}")


def mount_for_itself() -> None:
    """Let what this worker's tests mount be seen by them alone: sessions show the machine's mounts, and say so of those
    that come and go. Nothing happens without the right to it. To be called in the main thread.
    """
    with contextlib.suppress(PermissionError):
        namespaces.unshare(namespaces.CLONE_NEWNS)
        mounts.make_slave("/")
        _mount_home_of_root()


def _mount_home_of_root() -> None:
    """Have root's shells start as on a bare machine, with an empty ~/.bashrc: what an administrator has there may start
    dozens of programs in each session. The folder stays if something that the tests need lies in it.
    """
    home = Path(pwd.getpwuid(0).pw_dir)
    needed = (ROOT, sys.prefix, sys.base_prefix, os.environ.get("WAYPOINT_CRIU", ROOT))
    if home.is_dir() and not any(Path(one).resolve().is_relative_to(home) for one in needed):
        bare = make_temp_root() / "root"
        bare.mkdir(mode=0o700, exist_ok=True)
        (bare / ".bashrc").touch()
        mounts.bind(str(bare), str(home))


def worker_of(process: str) -> int | None:
    """The pid of the worker whose fork or program this process (a folder of /proc) is, or which it is; None: nobody's.

    A fork has the comm of its worker; its environment is the one that the worker was started with, which is also the
    other workers'. A program has a comm of its own; its environment has RUN_VARIABLE. Raises OSError if it has ended.
    """
    before, is_ours, number = read(f"{process}/comm").strip().partition(_NAME.encode())
    if is_ours and not before and number.isdigit():
        return int(number)
    pid = (b"\0" + read(f"{process}/environ")).partition(_VARIABLE)[2].partition(b"\0")[0]
    return int(pid) if pid.isdigit() else None  # a program may write over its environment, as for its title


def start_as_usual() -> None:
    """Have the dispositions, the signal mask, the umask, the locale and the limit of open files that programs expect,
    whatever the caller of pytest had.

    A shell starts `command &` and `nohup command` with signals ignored, and every child would inherit that: a test that
    interrupts a program would wait for its end for ever. Where SIGCHLD is ignored, all programs seem to succeed.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - IGNORED_BY_PYTHON:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.umask(0o022)
    for name in [name for name in os.environ if name.startswith("LC_") or name == "LANGUAGE"]:
        del os.environ[name]
    os.environ["LANG"] = "C.UTF-8"
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES if hard == resource.RLIM_INFINITY else min(FILES, hard), hard))


class Turns:
    """Who may run now: many tests beside each other, or one that is `alone`, for all workers that share `folder`.

    A test that is to be alone closes the gate, so that no other begins, and waits until those that run have ended. It
    leaves the gate closed for its successor in the same worker if that one is to be alone too.
    """

    def __init__(self, folder: Path) -> None:
        self._gate = os.open(folder / "gate", os.O_CREAT | os.O_RDWR, 0o600)
        self._floor = os.open(folder / "floor", os.O_CREAT | os.O_RDWR, 0o600)
        self._is_alone = False

    @contextlib.contextmanager
    def turn(self, item: pytest.Item, successor: pytest.Item | None) -> Iterator[None]:
        """Wait until `item` may run; the end of the `with` lets others run."""
        if is_alone(item) and not self._is_alone:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            fcntl.flock(self._floor, fcntl.LOCK_EX)
        elif not is_alone(item):
            fcntl.flock(self._gate, fcntl.LOCK_SH)
            fcntl.flock(self._floor, fcntl.LOCK_SH)
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            self._is_alone = is_alone(item) and successor is not None and is_alone(successor)
            if not self._is_alone:
                fcntl.flock(self._floor, fcntl.LOCK_UN)
                fcntl.flock(self._gate, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._gate)
        os.close(self._floor)


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The items in the order in which several workers take their files.

    First those that are LONG, and after these the ones with most tests first: a long file that is taken last keeps one
    worker busy when the others have nothing left. At the end all tests that are to be alone, of whatever file, which
    are one unit: then the others have ended, and none is waited for each time that such a test is met.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)

    def place(file: str) -> tuple[int, int]:
        return LONG.index(file) if file in LONG else len(LONG), -len(files[file])

    placed = [item for file in sorted(files, key=place) for item in files[file]]
    return sorted(placed, key=is_alone)


class Units(LoadFileScheduling):
    """Gives a worker a whole file at a time, and all tests that are to be alone to one of them."""

    def _split_scope(self, nodeid: str) -> str:
        return "alone" if nodeid in self._alone else super()._split_scope(nodeid)

    @functools.cached_property
    def _alone(self) -> set[str]:
        """As the workers have found them. They have told what they have collected when this is asked for."""
        folder = self.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # as xdist finds it
        return set((folder / _ALONE).read_text().splitlines())


def tell_alone(folder: Path, items: Sequence[pytest.Item]) -> None:
    """Leave the ids of the tests that are to be alone for `Units`. All workers leave the same."""
    own = folder / f"{_ALONE}.{os.getpid()}"
    own.write_text("\n".join(item.nodeid for item in items if is_alone(item)))
    own.rename(folder / _ALONE)


def is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None
