"""Taking a capture of a live session. The caller records it.

The session is frozen while CRIU dumps its processes and the pool snapshots its files; all other work is done while it
runs. `layers.table` defines the order of the layers, `layers.layer.Part` the order of their steps.
"""

import contextlib
import dataclasses
import errno
import logging
import os
import time
from collections.abc import Iterator, Sequence

from waypoint.capture.layers.layer import Area, CaptureOptions, Taking
from waypoint.capture.layers.processes import will_wait
from waypoint.capture.layers.subject import Subject
from waypoint.capture.layers.table import LAYERS
from waypoint.capture.pause import Pause
from waypoint.capture.survey import check_refused
from waypoint.linux.calls import machine
from waypoint.linux.tasks import procfs
from waypoint.linux.tasks.stages import stage
from waypoint.model.conditions import degradation, text_of
from waypoint.model.errors import CannotCapture, Failed, WaypointError
from waypoint.model.records import Capture, Layers, Machine, Tier
from waypoint.model.stages import Stage
from waypoint.processes.copied_memory import CopiedMemory
from waypoint.processes.criu.cause_table import DISK_FULL
from waypoint.processes.criu.causes import KILLED, CriuFailed
from waypoint.processes.criu.options import ERRORS_ONLY, EVERYTHING, WARNINGS

log = logging.getLogger(__name__)

_SETTLED_S = 1.0
"""A process that has run for less time may end by itself, so its end is not attributed to a killed CRIU."""
_LONG_PAUSE_MS = 1000.0
"""After a longer pause the processes are not paused again to find a better reason for a refusal, and CRIU does not log
everything: its log would grow with the processes.
"""
_ENDS_WITHIN_S = 0.1  # a process harmed by a killed CRIU ends within this time after the thaw


@stage(Stage.DUMP)
def take(taking: Taking) -> Capture:
    """Take the capture. It is not yet recorded, and has no parents. Blocks.

    If no tier was requested, `respawn` replaces `live` only if CRIU has refused the processes twice. If an attempt
    fails otherwise (CRIU was killed or hung, memory or disk ran out), the capture is tried once more; a second such
    failure is an error. After an error the session continues, and the caller removes the files (`drop_layers`).
    """
    pause, tier = Pause(taking.subject.facts.cgroup), taking.options.tier
    if tier in ("files", "respawn"):
        taking.options.on_accepted()
        return _attempt(taking, pause, tier)
    try:
        return _take_with_processes(taking, pause)
    except CannotCapture as error:
        if tier == "live":
            raise
        drop_layers(taking.area, taking.capture_id)
        taken = _attempt(taking, pause, "respawn")
        taken.degraded.insert(0, degradation("no-processes", error.code, error.said))
        return taken


def _take_with_processes(taking: Taking, pause: Pause) -> Capture:
    """Take the capture with its processes, in one or two tries.

    Raises CannotCapture only if the checks of `check_refused`, both tries, or a first try with a long pause refused the
    processes. A refusal after a
    killed CRIU does not count, because that CRIU may leave traces in the session for a moment, which the next CRIU
    refuses.
    """
    if taking.criu is None:
        assert taking.no_criu is not None
        raise taking.no_criu
    subject = taking.subject
    check_refused(taking.area, subject)
    taking.options.on_accepted()
    before = _programs(subject)
    try:
        return _attempt(taking, pause, "live")
    except (CriuFailed, Failed, OSError) as error:
        is_long = pause.ms > _LONG_PAUSE_MS
        if isinstance(error, WaypointError) and (
            error.code == "capture-too-slow" or (is_long and isinstance(error, CannotCapture))
        ):
            raise
        first = error
    log.warning("capture of %s, first try: %s", subject.facts.branch, first)
    if _is_space_short(first):
        taking.memory_bytes = None  # it has grown since it was measured
    drop_layers(taking.area, taking.capture_id)
    try:
        taken = _attempt(taking, pause, "live", WARNINGS if is_long else EVERYTHING)
    except CannotCapture as error:
        if isinstance(first, CannotCapture):
            raise
        _add_ended_programs(first, [first], before, subject)
        raise first from error
    except (CriuFailed, Failed, OSError) as error:
        _add_ended_programs(error, [first, error], before, subject)
        raise
    if ended := _ended_programs([first], before, subject):
        taken.degraded.append(degradation("programs-ended", ended))
    return taken


def _programs(subject: Subject) -> dict[int, str]:
    """Return name and pid within the session of each process that has run for _SETTLED_S, by its pid on the host."""
    found = {}
    latest_ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) - _SETTLED_S) * os.sysconf("SC_CLK_TCK")
    for pid in subject.processes():
        with contextlib.suppress(ProcessLookupError):
            stat = procfs.stat(pid)
            if stat.start_ticks < latest_ticks:
                found[pid] = f"{stat.name} (pid {procfs.session_pid(pid)})"
    return found


def _ended_programs(errors: Sequence[BaseException], before: dict[int, str], subject: Subject) -> str:
    """If an error in `errors` says that CRIU was killed, return the names of the processes in `before` that have ended
    since. A killed CRIU may end the program that it works on, as soon as the session is thawed (docs/criu.md). Return
    "" if CRIU was not killed or no process has ended.
    """
    if not any(isinstance(error, CriuFailed) and error.diagnosis.name in KILLED for error in errors):
        return ""
    time.sleep(_ENDS_WITHIN_S)
    now = {*subject.processes()}
    return ", ".join(sorted(name for pid, name in before.items() if pid not in now))


def _add_ended_programs(
    error: BaseException, errors: Sequence[BaseException], before: dict[int, str], subject: Subject
) -> None:
    """Add the names from `_ended_programs` to `error`, the error with which the capture fails."""
    if ended := _ended_programs(errors, before, subject):
        said = text_of(degradation("programs-ended", ended))
        log.warning("%s: %s", subject.facts.branch, said)
        if isinstance(error, WaypointError):
            error.said += f"; {said}"
            error.next_step = "restore an earlier checkpoint if the session needs them, and try again"


def is_disk_full(error: WaypointError) -> bool:
    """Whether `take` failed because the disk is full: in a system call, or in CRIU."""
    return error.code in ("disk-full", f"criu-{DISK_FULL}")


def _is_space_short(error: Exception) -> bool:
    return is_disk_full(error) if isinstance(error, WaypointError) else getattr(error, "errno", 0) == errno.ENOSPC


def drop_layers(area: Area, capture_id: str, layers: Layers | None = None) -> None:
    """Remove the capture from disk, if it exists. `layers`: the capture's record; None if taking it has failed."""
    for layer in LAYERS:
        layer.drop(area, capture_id, layers.get(layer.kind) if layers else None)
    area.hot.remove(capture_id)
    area.hot.release(capture_id)


def _attempt(taking: Taking, pause: Pause, tier: Tier, log_level: int = ERRORS_ONLY) -> Capture:
    """Prepare all parts while the session runs, freeze it, and capture. If a step fails, every part is cancelled."""
    options, facts = taking.options, taking.subject.facts
    copied = _copies(taking) if tier == "live" and log_level == ERRORS_ONLY else None
    # The copies are on the disk, where captures share them.
    taking.area.hot.make(taking.capture_id, taking.memory_bytes if copied is None else None)
    taking.afterwards.clear()
    layers = [layer for layer in LAYERS if tier in layer.tiers]
    if copied is not None:
        target = taking.area.hot.copied(taking.capture_id)
        freeze = (lambda: _frozen(pause)) if _goes_on(options) else None
        copied = copied if copied.prepare(facts.cgroup, target, freeze) else None
    # `moving` has the calls that let the session continue. Each is made even if an earlier one raises.
    with contextlib.ExitStack() as moving:
        moving.callback(taking.subject.go_on)
        moving.callback(pause.end)
        taking = dataclasses.replace(
            taking,
            criu=taking.criu if tier == "live" else None,
            copied=copied,
            log_level=log_level,
            degraded=list(options.degraded),
            files_changed=False,
            is_awaited=False,
        )
        parts = [layer.part(taking) for layer in layers]
        with contextlib.ExitStack() as cancelling:
            for part in reversed(parts):
                cancelling.callback(part.cancel)
            for part in parts:
                part.prepare()
            pause.announce()
            for part in parts:
                part.ready()
            pause.begin(for_dump=tier == "live")
            for part in reversed(parts):
                part.begin()
            clock, folder = time.clock_gettime(time.CLOCK_BOOTTIME), _folder_of(taking.subject)
            for part in reversed(parts):
                part.finish()
            for part in parts:
                part.release()
            pause.is_dumped = tier == "live" and not taking.is_awaited
            cancelling.pop_all()
            if tier == "live" and not options.keep_frozen:
                taking.subject.note_rest(taking.capture_id)
        if options.keep_frozen:
            pause.stop_clock()
        else:
            moving.close()
        with stage(Stage.WRITE_IMAGES):
            records = {kind: record for part in parts for kind, record in part.records().items()}
        capture = Capture(
            id=taking.capture_id,
            branch=facts.branch,
            parents=[],
            created=time.time(),
            tier=tier,
            layers=records,
            setting=facts.setting,
            reason=options.reason,
            message=options.message,
            paused_ms=round(pause.ms, 3),
            degraded=taking.degraded,
            machine=describe_machine(),
            folder=folder,
            clock=clock,
            automatic=options.point is not None or options.reason == "idle",
        )
        moving.pop_all()
    return capture


def _copies(taking: Taking) -> CopiedMemory | None:
    """What copies the memory before the pause. None if the dump is to have all memory: there is little; or the session
    ends, so that no program waits for the end of the pause, and there is no present copy, or CRIU dumps the session
    later. A second try does without, too.
    """
    copied, cgroup = taking.copied, taking.subject.facts.cgroup
    if copied is None or not copied.is_useful(cgroup):
        return None
    if not _goes_on(taking.options) and (not copied.is_current(cgroup) or will_wait(taking)):
        return None
    return copied


def _goes_on(options: CaptureOptions) -> bool:
    return options.goes_on or not options.keep_frozen


@contextlib.contextmanager
def _frozen(pause: Pause) -> Iterator[None]:
    """Freeze the session as for a dump, for the `with` block."""
    try:
        pause.begin(for_dump=True)
        yield
    finally:
        pause.end()


def _folder_of(subject: Subject) -> str:
    """Return the shell's working directory; "" if it is unknown or not printable."""
    leader = subject.leader()
    with contextlib.suppress(OSError):
        folder = procfs.folder(leader) if leader else ""
        return folder if folder.isprintable() else ""
    return ""


def describe_machine() -> Machine:
    cpu = machine.cpu()
    return Machine(
        kernel=machine.kernel_release(),
        architecture=machine.architecture(),
        cpu=cpu.model,
        cpu_features=cpu.features,
        boot_id=procfs.boot_id(),
    )
