"""CRIU as a class: version, features, dump and restore; its refusals as errors in words."""

import contextlib
import os
import signal
from pathlib import Path

from waypoint.linux.descriptors import path_of
from waypoint.model.errors import Failed, HostLacks
from waypoint.processes.criu_causes import CriuFailed, diagnose, read_errors
from waypoint.processes.criu_images import give_own_network, read_dump_stats
from waypoint.processes.criu_messages import RequestType, Value
from waypoint.processes.criu_options import DumpOptions, DumpResult, Features, RestoreOptions, RestoreResult
from waypoint.processes.criu_worker import Spawn, Worker, spawn_here

# Fault 130 of CRIU's fault injection is "no hardware breakpoints": restored tasks are stepped over their last system
# call instead, which saves milliseconds, and seconds with a hundred threads. Nothing is injected.
_RESTORE_ENV = {"CRIU_FAULT": "130"}


class Criu:
    """The CRIU at `path`. Holds nothing open: every call starts a process of its own, so calls may run side by side."""

    def __init__(self, path: Path, spawn: Spawn = spawn_here) -> None:
        self.path = path
        self._spawn = spawn

    def version(self) -> tuple[int, int, int]:
        """Raises HostLacks if the program does not start."""
        version = _part(self._ask({"type": RequestType.VERSION}), "version")
        return _number(version, "major_number"), _number(version, "minor_number"), _number(version, "sublevel")

    def features(self) -> Features:
        """What this CRIU can do on this kernel. Raises HostLacks if it cannot tell."""
        wanted: dict[str, Value] = {"mem_track": True, "lazy_pages": True, "pidfd_store": True}
        found = _part(self._ask({"type": RequestType.FEATURE_CHECK, "features": wanted}), "features")
        return Features(
            memory_tracking=bool(found.get("mem_track")),
            lazy_pages=bool(found.get("lazy_pages")),
            pidfd_store=bool(found.get("pidfd_store")),
        )

    def dump(self, options: DumpOptions) -> DumpResult:
        """Write the tree's images. With `leave_running` the tree goes on when this returns or raises.

        Raises CriuFailed; what was written by then stays in the folder and is no image.
        """
        request: dict[str, Value] = {"type": RequestType.DUMP, "opts": options.to_message()}
        with Worker(str(self.path), self._spawn, {}) as worker:
            answer = _converse(worker, "dump", request, options)
            if options.on_let_go is not None and answer.get("success") and worker.refused is None:
                options.on_let_go()
        if worker.refused is not None:
            raise worker.refused
        if not answer.get("success"):
            raise _failure("dump", worker, answer, options)
        if options.own_network:
            give_own_network(options.images_fd)
        return DumpResult(read_dump_stats(options.work_fd))

    def restore(self, options: RestoreOptions) -> RestoreResult:
        """Bring the images' tree to life; it runs when this returns.

        Raises CriuFailed, and what the callback raised; no task of the tree is left then. If CRIU itself was killed,
        half-made tasks are left in the cgroup in which it ran.
        """
        request: dict[str, Value] = {"type": RequestType.RESTORE, "opts": options.to_message()}
        inherited = tuple(item.fd for item in options.inherited)
        with Worker(str(self.path), self._spawn, _RESTORE_ENV, inherited) as worker:
            answer = _converse(worker, "restore", request, options)
        pid = _number(_part(answer, "restore"), "pid")
        if worker.refused is not None:
            if answer.get("success"):  # too late for CRIU to give up: at pre-resume or later
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise worker.refused
        if not answer.get("success"):
            raise _failure("restore", worker, answer, options)
        return RestoreResult(pid)

    def _ask(self, request: dict[str, Value]) -> dict[str, Value]:
        with Worker(str(self.path), self._spawn, {}) as worker:
            answer = worker.ask(request)
        if not answer.get("success"):
            words = " ".join(worker.words()).strip() or str(answer.get("cr_errmsg") or "it ended without an answer")
            raise HostLacks(
                "use CRIU at", str(self.path), words, "run `waypoint setup`, which finds or installs one that works"
            )
        return answer


def _converse(
    worker: Worker, action: str, request: dict[str, Value], options: DumpOptions | RestoreOptions
) -> dict[str, Value]:
    try:
        return worker.ask(request, options.on_notice, options.deadline_s)
    except TimeoutError as error:
        log = Path(path_of(options.work_fd), options.log_name)
        said = f"CRIU said nothing for {options.deadline_s:.0f} s and was ended"
        raise Failed(f"{action} the processes", f"(log: {log})", said, "") from error


def _failure(
    action: str, worker: Worker, answer: dict[str, Value], options: DumpOptions | RestoreOptions
) -> CriuFailed:
    log = Path(path_of(options.work_fd), options.log_name)
    outside_log = [*worker.words(), str(answer.get("cr_errmsg", ""))]
    errors = read_errors(log) or [line for line in outside_log if line]
    return CriuFailed(action, diagnose(errors), log, died=not answer)


def _part(answer: dict[str, Value], name: str) -> dict[str, Value]:
    part = answer.get(name)
    return part if isinstance(part, dict) else {}


def _number(part: dict[str, Value], name: str) -> int:
    number = part.get(name)
    return number if isinstance(number, int) else 0
