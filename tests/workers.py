"""Sets up workers, the pytest processes that run tests: those of `-n`, or the only process of a run without `-n`."""

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
"""`subprocess` resets them in every child."""
FILES = 4096
"""Soft limit of open files: some tests have a thousand clients and their server in one process."""

WORKERS_PER_PROCESSOR = 2
"""Most of a test's time is waiting."""
MAX_WORKERS = 8
"""Each worker has its own homes, sessions and pools, which need memory and disk space."""

_NAME = "tests-"
_VARIABLE = f"\0{RUN_VARIABLE}=".encode()


def count() -> int:
    """The number of workers for this machine."""
    return min(WORKERS_PER_PROCESSOR * len(os.sched_getaffinity(0)), MAX_WORKERS)


def introduce() -> None:
    """Mark this process as a worker for `worker_of`: its forks inherit the comm, its programs the variable."""
    os.environ[RUN_VARIABLE] = str(os.getpid())
    Path("/proc/self/comm").write_text(f"{_NAME}{os.getpid()}")


def mount_for_itself() -> None:
    """Give this worker a mount namespace of its own, because sessions of other workers would show its mounts.

    Call it in the main thread. Without the right to make namespaces this does nothing.
    """
    with contextlib.suppress(PermissionError):
        namespaces.unshare(namespaces.CLONE_NEWNS)
        mounts.make_slave("/")
        _open_way_to_checkout()
        _mount_home_of_root()


def _open_way_to_checkout() -> None:
    """Let ordinary users reach a checkout in a private folder, such as one of `mktemp -d`: cover each private folder
    with a public one that has only the needed children.
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
    """Folders that all tests need."""
    places = (sys.prefix, sys.base_prefix, os.path.dirname(os.environ.get("WAYPOINT_CRIU", "/")))
    return [ROOT, *(Path(one).resolve() for one in places)]


def _mount_home_of_root() -> None:
    """Hide root's home folder: an administrator's ~/.bashrc may start dozens of programs in each session.

    The folder stays visible if the tests need something in it.
    """
    home = Path(pwd.getpwuid(0).pw_dir)
    if home.is_dir() and not any(one.is_relative_to(home) for one in _needed()):
        bare = make_temp_root() / "root"
        bare.mkdir(mode=0o700, exist_ok=True)
        (bare / ".bashrc").touch()
        mounts.bind(str(bare), str(home))


def worker_of(process: str) -> int | None:
    """Return the pid of the worker to which this process (a folder of /proc) belongs; None if to none.

    A process belongs to a worker that is, forked or started it.

    A fork has its worker's comm (its environment is the same for all workers); a program has RUN_VARIABLE. Raises
    OSError if the process has ended.
    """
    comm = read(f"{process}/comm").decode(errors="replace").strip()
    if comm.startswith(_NAME):
        return int(comm.removeprefix(_NAME))
    _, is_there, after = (b"\0" + read(f"{process}/environ")).partition(_VARIABLE)
    return int(after.partition(b"\0")[0]) if is_there else None


def start_as_usual() -> None:
    """Reset signals, umask, locale and the limit of open files to what programs expect.

    A shell starts `command &` and `nohup command` with ignored signals, which every child inherits: programs could not
    be interrupted, and with SIGCHLD ignored all programs seem to succeed.
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
    """Sort the items by file, files with most cases first: a long file at the end would keep only one worker busy."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    return [item for file in sorted(files, key=lambda file: -len(files[file])) for item in files[file]]
