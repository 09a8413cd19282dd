"""Requests to CRIU as methods: version, features, dump and restore."""

import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

import msgspec

from waypoint.linux.storage.descriptors import path_of
from waypoint.linux.tasks import pidfd
from waypoint.model.errors import Failed, HostLacks
from waypoint.processes.criu import causes
from waypoint.processes.criu.causes import TRY_AGAIN, CriuFailed, Culprit, diagnose, read_errors
from waypoint.processes.criu.ghosts import make_ghosts
from waypoint.processes.criu.images import correct_timers_and_sockets, give_own_network, read_dump_stats
from waypoint.processes.criu.messages import RequestType, Value
from waypoint.processes.criu.options import DumpOptions, DumpStats, Features, Notice, RestoreOptions, RestoreResult
from waypoint.processes.criu.worker import Process, Spawn, Worker, environment, spawn_here, start_template

# CRIU_FAULT=130 injects no fault but switches off hardware breakpoints: CRIU then steps restored tasks over their last
# system call, which saves milliseconds, and seconds with a hundred threads (criu/include/fault-injection.h).
_RESTORE_ENV = {"CRIU_FAULT": "130"}
_LEAVE_ENV = {"CRIU_LEAVE_UNWRITTEN": "1"}  # criu/patches/54-unwritten-memory.patch
RESTORE_ENVIRONMENT = environment(_RESTORE_ENV)
"""The whole environment of a CRIU that restores."""


Origin = Literal["chosen", "cache", "wheel", "distribution", "private"]
GITID = "waypoint-"
"""The prefix of the GitID of a CRIU with Waypoint's patches (waypoint/setup/criu_build.py)."""


class CriuProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A CRIU program: `chosen` by the user with WAYPOINT_CRIU; Waypoint's own, from the machine's `cache` or from the
    `wheel` waypoint-criu; the `distribution`'s; or the home's `private` one, from Debian.

    `key`: of the patches that are in it (waypoint/setup/criu_build.py); "" without Waypoint's patches.
    """

    path: Path
    version: str
    origin: Origin
    key: str = ""


class Criu:
    """The CRIU program at `path`. Each call starts its own process, so calls may run in parallel."""

    def __init__(self, path: Path, spawn: Spawn = spawn_here) -> None:
        self.path = path
        self._spawn = spawn

    def version(self) -> tuple[int, int, int]:
        """The version as (major, minor, sublevel). Raises HostLacks, Failed."""
        return self.version_and_key()[0]

    def version_and_key(self) -> tuple[tuple[int, int, int], str]:
        """The version, and the key of Waypoint's patches or "" without them. Raises HostLacks, Failed."""
        found = _part(self._ask({"type": RequestType.VERSION}), "version")
        version = _number(found, "major_number"), _number(found, "minor_number"), _number(found, "sublevel")
        gitid = str(found.get("gitid") or "")
        return version, gitid.removeprefix(GITID) if gitid.startswith(GITID) else ""

    def features(self) -> Features:
        """The features that this CRIU has on this kernel. Raises HostLacks, Failed."""
        wanted: dict[str, Value] = {"mem_track": True, "lazy_pages": True}
        found = _part(self._ask({"type": RequestType.FEATURE_CHECK, "features": wanted}), "features")
        return Features(
            memory_tracking=bool(found.get("mem_track")),
            lazy_pages=bool(found.get("lazy_pages")),
        )

    def dump(self, options: DumpOptions) -> DumpStats:
        """Write the images of a process tree: all steps of `dumping` at once. Raises CriuFailed."""
        with self.dumping(options) as dump:
            dump.wait_ready()
            dump.go()
            dump.wait_written()
            dump.let_go()
        return dump.stats

    def dumping(self, options: DumpOptions) -> "Dump":
        """A dump that the caller carries out step by step, in a `with` block."""
        return Dump(Worker(str(self.path), self._spawn, _LEAVE_ENV if options.leave_unwritten else {}), options)

    def restore(self, options: RestoreOptions) -> RestoreResult:
        """Create the process tree from its images. The tree runs when this returns.

        Raises CriuFailed, and the exceptions of `on_notice`. No task of the tree remains then, except after a CRIU that
        was killed, also for hanging: unfinished tasks remain in the cgroup in which CRIU ran.
        """
        request: dict[str, Value] = {"type": RequestType.RESTORE, "opts": options.to_message()}
        with contextlib.ExitStack() as held:
            root: list[int] = []  # a pidfd of the root task

            def hear(notice: Notice) -> None:
                if notice.pid and not root:  # CRIU waits, so the task exists
                    root.append(pidfd.open(notice.pid))
                    held.callback(os.close, root[0])
                if options.on_notice is not None:
                    options.on_notice(notice)

            with Worker(str(self.path), self._spawn, _RESTORE_ENV) as worker:
                answer = _converse(worker, "restore", request, replace(options, on_notice=hear))
            if worker.refused is not None and answer:  # no answer: CRIU has died, and therefore the callback failed
                if answer.get("success") and root:  # from the stage pre-resume on, CRIU continues after a refusal
                    with contextlib.suppress(ProcessLookupError):
                        pidfd.send_signal(root[0], signal.SIGKILL)
                raise worker.refused
        if not answer.get("success"):
            raise _failure("restore", worker, answer, options)
        return RestoreResult(_number(_part(answer, "restore"), "pid"))

    def start_template(self) -> tuple[Process, socket.socket] | None:
        """Start a template (launch/templates.py): see `worker.start_template`."""
        return start_template(str(self.path), self._spawn, _RESTORE_ENV)

    def _ask(self, request: dict[str, Value]) -> dict[str, Value]:
        """Send `request` and return CRIU's answer. Raises HostLacks if CRIU does not start, or refuses; Failed if it
        was killed or crashed.
        """
        with Worker(str(self.path), self._spawn, {}) as worker:
            answer = worker.ask(request)
        if not answer.get("success"):
            words = " ".join(worker.words()).strip() or str(answer.get("cr_errmsg") or "CRIU ended without an answer")
            if not answer and (worker.status < 0 or diagnose(worker.words()).is_accident):
                said = f"{words}; CRIU was killed, or crashed" if worker.status < 0 else words
                raise Failed("use CRIU at", str(self.path), said, TRY_AGAIN)
            raise HostLacks("use CRIU at", str(self.path), words, "see 'waypoint doctor'", code="criu-unusable")
        return answer


class Dump:
    """One dump, step by step: `wait_ready`, `go`, `wait_written`, `let_go`, each once and in this order.

    If the `with` block ends before `let_go` has returned, CRIU gives up and the tree continues; the files that CRIU has
    written remain, and cannot be restored. The images are complete at the end of the block: our CRIU (criu/patches)
    writes most of them after `let_go`. Every step, and the end of the block, raises CriuRefused if CRIU has given up,
    and CriuAccident if CRIU has died, or hung for `deadline_s` and was killed. `stats`: CRIU's statistics, set at the
    end of the block after a complete dump. To be set by the caller: `removed`, the options' removed folders with unused
    names, and `moved`, the present paths of Unix sockets that were renamed since they were bound, by the sockets'
    inodes.
    """

    def __init__(self, worker: Worker, options: DumpOptions) -> None:
        self.stats = DumpStats(0)
        self._worker = worker
        self._options = options
        self.removed = options.removed
        self.moved: Mapping[int, str] = {}
        self._is_asked = False  # CRIU waits for the answer to a notification
        self._is_over = False  # CRIU has given its last answer, or has died
        self._is_stuck = False  # CRIU was silent for too long
        self._is_writing = False  # CRIU has released the tasks, and writes the rest of its images
        self._is_whole = False  # CRIU has reported success

    def __enter__(self) -> Self:
        request: dict[str, Value] = {"type": RequestType.DUMP, "opts": self._options.to_message()}
        with contextlib.ExitStack() as held:
            held.enter_context(self._worker).send(request, self._options.deadline_s)
            held.pop_all()  # from now on `__exit__` ends the CRIU process
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._is_writing:
                self._finish(self._receive())
            self._give_up()
        finally:
            self._worker.__exit__(TimeoutError if self._is_stuck else None)  # with an exception, CRIU is killed
        if self._is_whole and kind is None:
            if self._options.own_network:
                give_own_network(self._options.images_fd)
            make_ghosts(self._options.images_fd, self.removed)
            correct_timers_and_sockets(self._options.images_fd, self.moved)
            self.stats = read_dump_stats(self._options.work_fd)

    def wait_ready(self) -> None:
        """Wait until CRIU has started. The tree's tasks still run."""
        self._wait_stage("pre-dump")

    def go(self) -> None:
        """Let CRIU stop the tasks and write the images. Does not wait."""
        self._reply(agreed=True)

    def wait_written(self) -> None:
        """Wait until CRIU has collected everything. CRIU still traces the tasks."""
        self._wait_stage("post-dump")

    def let_go(self) -> None:
        """Wait until CRIU has detached from the tasks."""
        self._reply(agreed=True)
        answer = self._receive()
        if self._is_asked:  # the stage post-resume
            self._reply(agreed=True)
            self._is_writing = True
        else:
            self._finish(answer)

    def _finish(self, answer: dict[str, Value]) -> None:
        self._is_writing = False
        if not answer.get("success"):
            raise _failure("dump", self._worker, answer, self._options)
        self._is_whole = True

    def _wait_stage(self, stage: str) -> None:
        while True:
            answer = self._receive()
            if not self._is_asked:
                raise _failure("dump", self._worker, answer, self._options)
            if _part(answer, "notify").get("script") == stage:
                return
            self._reply(agreed=True)

    def _receive(self) -> dict[str, Value]:
        try:
            answer = self._worker.receive()
        except TimeoutError as error:
            self._is_over = self._is_stuck = True
            raise _silent("dump", self._options) from error
        self._is_asked = answer.get("type") == RequestType.NOTIFY
        self._is_over = not self._is_asked
        return answer

    def _reply(self, *, agreed: bool) -> None:
        self._is_asked = False
        self._worker.reply(agreed=agreed)

    def _give_up(self) -> None:
        """Refuse CRIU's notifications until CRIU has detached from the tree. No-op after a complete dump."""
        while not self._is_over:
            if self._is_asked:
                self._reply(agreed=False)
            self._receive()


def _converse(worker: Worker, action: str, request: dict[str, Value], options: RestoreOptions) -> dict[str, Value]:
    try:
        return worker.ask(request, options.on_notice, options.deadline_s)
    except TimeoutError as error:
        raise _silent(action, options) from error


def _silent(action: str, options: DumpOptions | RestoreOptions) -> CriuFailed:
    log = Path(path_of(options.work_fd), options.log_name)
    return causes.failure(action, causes.fell_silent(options.deadline_s or 0.0), log)


def _failure(
    action: str, worker: Worker, answer: dict[str, Value], options: DumpOptions | RestoreOptions
) -> CriuFailed:
    log = Path(path_of(options.work_fd), options.log_name)
    outside_log = [*worker.words(), str(answer.get("cr_errmsg", ""))]
    errors = read_errors(log) or [line for line in outside_log if line]
    diagnosis = diagnose(errors) if answer else causes.died(errors)
    culprit = causes.read_culprit(log) if action == "dump" else None
    if action == "dump" and diagnosis.pid and (culprit is None or culprit.pid != diagnosis.pid):
        culprit = Culprit(diagnosis.pid)
    return causes.failure(action, replace(diagnosis, who=causes.name_of(*culprit) if culprit else ""), log)


def _part(answer: dict[str, Value], name: str) -> dict[str, Value]:
    part = answer.get(name)
    return part if isinstance(part, dict) else {}


def _number(part: dict[str, Value], name: str) -> int:
    number = part.get(name)
    return number if isinstance(number, int) else 0
