"""The processes that run tests beside each other: the name and the state with which each starts.

A worker is a process of pytest in which tests run: one of `-n`, or the only one of a run without it.
"""

import contextlib
import os
import pwd
import resource
import signal
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

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
        _open_way_to_checkout()
        _mount_home_of_root()


def _open_way_to_checkout() -> None:
    """Let ordinary users reach the checkout, which may lie in a folder that only its owner may enter, as `mktemp -d`
    makes. A folder that everybody may enter, with only what the tests need of it, covers each such folder.
    """
    home = Path(pwd.getpwuid(0).pw_dir)
    for depth, folder in enumerate(reversed(ROOT.parents)):
        if folder.stat().st_mode & stat.S_IXOTH or folder.is_relative_to(home):
            continue
        cover = make_temp_root() / f"way-{depth}"
        for child in {one.relative_to(folder).parts[0] for one in _needed() if folder in one.parents}:
            (cover / child).mkdir(parents=True, exist_ok=True)
            mounts.bind(str(folder / child), str(cover / child), recursive=True)
        mounts.bind(str(cover), str(folder), recursive=True)


def _needed() -> list[Path]:
    """Folders without which no test runs."""
    places = (sys.prefix, sys.base_prefix, os.path.dirname(os.environ.get("WAYPOINT_CRIU", "/")))
    return [ROOT, *(Path(one).resolve() for one in places)]


def _mount_home_of_root() -> None:
    """Have root's shells start as on a bare machine, with an empty ~/.bashrc: what an administrator has there may start
    dozens of programs in each session. The folder stays if something that the tests need lies in it.
    """
    home = Path(pwd.getpwuid(0).pw_dir)
    if home.is_dir() and not any(one.is_relative_to(home) for one in _needed()):
        bare = make_temp_root() / "root"
        bare.mkdir(mode=0o700, exist_ok=True)
        (bare / ".bashrc").touch()
        mounts.bind(str(bare), str(home))


def worker_of(process: str) -> int | None:
    """The pid of the worker whose fork or program this process (a folder of /proc) is, or which it is; None: nobody's.

    A fork has the comm of its worker; its environment is the one that the worker was started with, which is also the
    other workers'. A program has a comm of its own; its environment has RUN_VARIABLE. Raises OSError if it has ended.
    """
    comm = read(f"{process}/comm").decode().strip()
    if comm.startswith(_NAME):
        return int(comm.removeprefix(_NAME))
    _, is_there, after = (b"\0" + read(f"{process}/environ")).partition(_VARIABLE)
    return int(after.partition(b"\0")[0]) if is_there else None


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


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The items in the order in which several workers take their files: those with most cases first.

    A long file that is taken last keeps one worker busy when the others have nothing left.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    return [item for file in sorted(files, key=lambda file: -len(files[file])) for item in files[file]]
