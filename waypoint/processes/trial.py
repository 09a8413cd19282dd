"""Does this CRIU work on this kernel? Found out by dumping and restoring, not by comparing versions.

`criu check` says "Looks good" where no process with a socket can be dumped. Out of scope: how a session is made. The
stage does that, so that what is tried is the real thing.
"""

import contextlib
import os
import secrets
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Protocol

from waypoint.linux import cgroups, programs
from waypoint.model.errors import Failed, WaypointError
from waypoint.model.requests import Capability
from waypoint.processes.criu_options import DumpOptions, RestoreOptions
from waypoint.processes.criu_rpc import Criu
from waypoint.processes.criu_worker import Spawn
from waypoint.processes.freeze import freeze_for_dump

DEADLINE_S = 30.0
ANSWER_S = 10.0

CRIU = "CRIU"
DUMP = "dump"
DUMP_TERMINAL = "dump with a terminal"
DUMP_SOCKET = "dump with an inet socket"
RESTORE = "restore"
LAZY_PAGES = "lazy restore (userfaultfd)"
MEMORY_TRACKING = "incremental dumps (soft-dirty)"

_REMEDY = "run `waypoint setup`, which finds or installs a CRIU that works, or set WAYPOINT_CRIU to one"


@dataclass(frozen=True, slots=True)
class Subject:
    """A session to try things on. `pid`: its init, as the host sees it. `master`: of its terminal. `externals`: for a
    dump."""

    pid: int
    master: int
    cgroup: str
    externals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fork of a subject can be restored. `externals`: for the restore. `cgroup`: its own."""

    root: str
    externals: tuple[str, ...]
    cgroup: str


class Stage(Protocol):
    """Makes sessions as Waypoint makes them. What it made is gone when the stage is closed."""

    folder: Path

    def start(self) -> Subject:
        """A session with a shell on its terminal that carries out lines."""

    def listen(self, subject: Subject) -> int:
        """Give it a process with a listening TCP socket; the port."""

    def connect(self, subject: Subject, port: int) -> None:
        """Raises OSError if nothing listens on the port of its loopback."""

    def place(self, subject: Subject) -> Place:
        """Prepare a fork of `subject`, which is frozen."""

    def adopt(self, pid: int, place: Place) -> Subject:
        """The session that was restored there."""

    def spawn_beside(self, subject: Subject) -> Spawn:
        """How criu is started for a dump."""

    def spawn_into(self, place: Place) -> Spawn:
        """How criu is started for a restore."""


def passed(rows: list[Capability]) -> bool:
    """True if everything that the live tier needs was tried and works."""
    return bool(rows) and all(row.state == "ok" for row in rows if row.required_for != "optional")


def missing_criu(why: str) -> list[Capability]:
    """The rows where there is no CRIU to try."""
    names = (CRIU, DUMP, DUMP_TERMINAL, DUMP_SOCKET, RESTORE)
    return [_row(name, why) for name in names] + [_optional(name, why) for name in (LAZY_PAGES, MEMORY_TRACKING)]


def try_criu(program: Path, stage: Stage) -> list[Capability]:
    """Dump and restore with the CRIU at `program`; one row for each thing tried. Takes a quarter of a second.

    Later rows need earlier ones: where one fails, what builds on it is reported as not tried, with the reason.
    """
    criu = Criu(program)
    try:
        found = ".".join(map(str, criu.version()))
    except WaypointError as error:
        return [_row(CRIU, error.said, error.next_step), *missing_criu(f"not tried: {CRIU} failed")[1:]]
    version = Capability(name=CRIU, state="ok", why=f"version {found}, {program}", required_for="live")
    rows = [version, _attempt(DUMP, lambda: _dump_plain(criu, stage.folder))]
    trial = _SessionTrial(program, stage)
    for name, work in (
        (DUMP_TERMINAL, trial.dump_terminal),
        (DUMP_SOCKET, trial.dump_socket),
        (RESTORE, trial.restore),
    ):
        failed = next((row for row in rows[2:] if row.state != "ok"), None)
        rows.append(_row(name, f"not tried: {failed.name} failed") if failed else _attempt(name, work))
    return rows + _try_features(criu)


class _SessionTrial:
    """One session and what is tried on it, in the order of the methods."""

    def __init__(self, program: Path, stage: Stage) -> None:
        self._program = program
        self._stage = stage
        self._port = 0

    def dump_terminal(self) -> None:
        self._subject = self._stage.start()
        _expect_answer(self._subject)
        self._dump(self._stage.folder / "terminal")

    def dump_socket(self) -> None:
        self._port = self._stage.listen(self._subject)
        self._place = self._dump(self._stage.folder / "socket")

    def restore(self) -> None:
        """As a fork: the dumped session goes on beside it."""
        criu = Criu(self._program, self._stage.spawn_into(self._place))
        with _folder(self._stage.folder / "socket") as images, _folder(self._stage.folder / "work") as work:
            options = RestoreOptions(
                images_fd=images,
                work_fd=work,
                root=self._place.root,
                externals=self._place.externals,
                deadline_s=DEADLINE_S,
            )
            restored = criu.restore(options)
        fork = self._stage.adopt(restored.pid, self._place)
        _expect_answer(fork)
        try:
            self._stage.connect(fork, self._port)
        except OSError as error:
            raise Failed("reach", "the restored listener", f"its port does not answer: {error}", "") from error
        _expect_answer(self._subject)

    def _dump(self, images: Path) -> Place:
        subject = self._subject
        criu = Criu(self._program, self._stage.spawn_beside(subject))
        freeze_for_dump(subject.cgroup)
        try:
            with _folder(images) as fd:
                options = DumpOptions(
                    tree_pid=subject.pid,
                    images_fd=fd,
                    work_fd=fd,
                    freeze_cgroup=subject.cgroup,
                    externals=subject.externals,
                    deadline_s=DEADLINE_S,
                )
                criu.dump(options)
            return self._stage.place(subject)
        finally:
            cgroups.thaw(subject.cgroup)


def _dump_plain(criu: Criu, folder: Path) -> None:
    """The smallest tree there is: one process without terminal and sockets, in no namespace of its own."""
    sleep = programs.find("sleep") or "sleep"
    with Popen(
        [sleep, "1000"], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, cwd="/", start_new_session=True
    ) as process:
        try:
            with _folder(folder / "plain") as fd:
                criu.dump(DumpOptions(tree_pid=process.pid, images_fd=fd, work_fd=fd, deadline_s=DEADLINE_S))
        finally:
            process.kill()


def _expect_answer(subject: Subject) -> None:
    """Have the shell on the terminal compute something. Raises Failed if the result does not come in time."""
    nonce = secrets.token_hex(4)
    os.write(subject.master, f"echo {nonce}-$((6*7))\n".encode())
    deadline = time.monotonic() + ANSWER_S
    seen = b""
    while f"{nonce}-42".encode() not in seen:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([subject.master], [], [], left_s)[0]:
            raise Failed("use", "the session's terminal", f"no answer within {ANSWER_S:.0f} s", "")
        seen += os.read(subject.master, 4096)


def _try_features(criu: Criu) -> list[Capability]:
    try:
        features = criu.features()
    except WaypointError as error:
        return [_optional(name, error.said) for name in (LAZY_PAGES, MEMORY_TRACKING)]
    return [
        _optional(LAZY_PAGES, "" if features.lazy_pages else "the kernel has no userfaultfd that follows forks"),
        _optional(
            MEMORY_TRACKING, "" if features.memory_tracking else "the kernel was built without CONFIG_MEM_SOFT_DIRTY"
        ),
    ]


def _attempt(name: str, work: Callable[[], object]) -> Capability:
    try:
        work()
    except WaypointError as error:
        return _row(name, error.said, error.next_step)
    except OSError as error:
        return _row(name, f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    return Capability(name=name, state="ok", required_for="live")


def _row(name: str, why: str, remedy: str = "") -> Capability:
    return Capability(name=name, state="missing", why=why, remedy=remedy or _REMEDY, required_for="live")


def _optional(name: str, why: str) -> Capability:
    remedy = "a kernel that has it" if why else ""
    return Capability(name=name, state="missing" if why else "ok", why=why, remedy=remedy, required_for="optional")


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    path.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
