"""Taking a capture of a live session: the part of a checkpoint between the request and the record.

All work that can be done beforehand is done while the session runs. The session is frozen while CRIU dumps its
processes and the pool snapshots its files; then the session goes on. `layers.table` gives the order of the layers,
`layers.layer.Part` the order of the steps of each. Nothing here writes a record: the caller does, once all has worked.
"""

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from waypoint.capture.layers.layer import Area, Part, Taking
from waypoint.capture.layers.subject import Subject
from waypoint.capture.layers.table import LAYERS
from waypoint.capture.pause import Pause
from waypoint.linux.calls import machine
from waypoint.linux.tasks import procfs
from waypoint.model.errors import CannotCapture, Failed, WaypointError, as_text, cleaned
from waypoint.model.records import Capture, Layers, Machine, Reason, Tier
from waypoint.processes.criu.cause_table import DISK_FULL
from waypoint.processes.criu.causes import CriuFailed
from waypoint.processes.criu.options import ERRORS_ONLY, EVERYTHING
from waypoint.processes.criu.rpc import Criu, CriuProgram

log = logging.getLogger(__name__)

WITHOUT_PROCESSES = "without its processes"
"""How `Capture.degraded` begins to say that the processes could not be kept; a colon and the reason follow."""


class Wanted(NamedTuple):
    """The capture that is asked for. `tier` None: `live` if the processes can be dumped, else `respawn`. `hold`: leave
    the session frozen and its terminal held; the caller then either ends the session, or thaws it and calls
    `Subject.go_on`. `said`: in words, what has gone wrong before.
    """

    tier: Tier | None
    reason: Reason
    message: str = ""
    hold: bool = False
    said: Sequence[str] = ()


class Dumper(NamedTuple):
    """The CRIU that dumps one session. `program` and `criu` are None if no CRIU works; `why_not`: the reason."""

    program: CriuProgram | None
    criu: Criu | None
    why_not: str = ""


class Order(NamedTuple):
    """A capture to be taken: into which area, of which session, with which CRIU, under which id, how faithfully."""

    area: Area
    subject: Subject
    dumper: Dumper
    capture_id: str
    wanted: Wanted


def take(order: Order) -> Capture:
    """Take the capture. The capture is on no record yet, and has no parents. Blocks.

    The tier `respawn` in place of `live` is for what the session is: its processes cannot be dumped, and CRIU has said
    so twice. It is never for what happened meanwhile: after an accident (CRIU was killed or hung, memory or disk ran
    out) the capture is tried once more, and a second failure is an error.

    Raises CannotCapture if `wanted.tier` is `live` and the processes cannot be dumped, Failed and OSError for what
    happened. After a failure the session goes on as it was, and the caller removes what was made (`drop_layers`).
    """
    tries = _Tries(order)
    if order.wanted.tier in ("files", "respawn"):
        return tries.without_processes(order.wanted.tier)
    try:
        return tries.of_all()
    except CannotCapture as error:
        if order.wanted.tier == "live":
            raise
        taken = tries.without_processes("respawn")
        taken.degraded.insert(0, f"{WITHOUT_PROCESSES}: {error.said}")
        return taken


def is_disk_full(error: WaypointError) -> bool:
    """Whether `take` has failed since the disk is full: for the kernel's calls, or for CRIU's images."""
    if isinstance(error, CriuFailed):
        return error.diagnosis.name == DISK_FULL
    return os.strerror(errno.ENOSPC) in error.said


class _Tries:
    """The tries at one capture, one after the other. The capture that succeeds counts the pauses of all of them."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._paused_ms = 0.0
        self._begun = False

    def without_processes(self, tier: Tier) -> Capture:
        return self._once(None, ERRORS_ONLY, tier)

    def of_all(self) -> Capture:
        """Take the capture with the processes. After any failure that need not be final, try a second time.

        Raises CannotCapture only if the processes were refused in both tries: a CRIU that has died may leave traces in
        the session for a moment, which the next CRIU refuses.
        """
        dumper = self._order.dumper
        if dumper.criu is None:
            raise CannotCapture("dump", "the processes", dumper.why_not, "see 'waypoint doctor'")
        try:
            return self._once(dumper, ERRORS_ONLY)
        except (CriuFailed, Failed, OSError) as error:
            first = error
        log.warning("capture of %s, first try: %s", self._order.subject.facts.branch, first)
        try:
            return self._once(dumper, EVERYTHING)
        except CannotCapture as error:
            if isinstance(first, CannotCapture):
                raise
            raise first from error

    def _once(self, dumper: Dumper | None, log_level: int, tier: Tier = "live") -> Capture:
        order = self._order
        if self._begun:
            drop_layers(order.area, order.capture_id)
        self._begun = True
        pause = Pause(order.subject.facts.cgroup)
        try:
            taken = _take(order, pause, dumper, log_level, tier)
        finally:
            self._paused_ms += pause.ms
        return msgspec.structs.replace(taken, paused_ms=round(self._paused_ms, 3))


def drop_layers(area: Area, capture_id: str, layers: Layers | None = None) -> None:
    """Remove all that a capture has on disk. `layers`: its record; None if taking it has failed.

    Does nothing if there is nothing.
    """
    for layer in LAYERS:
        layer.drop(area, capture_id, getattr(layers, layer.kind, None))
    area.hot.remove(capture_id)


_LEFT_OUT: dict[Tier, frozenset[str]] = {
    "live": frozenset({"programs"}),
    "respawn": frozenset({"processes"}),
    "files": frozenset({"processes", "programs"}),
}
"""The kinds of layers that a capture of a tier does not have."""


def _take(order: Order, pause: Pause, dumper: Dumper | None, log_level: int, tier: Tier) -> Capture:
    """Take the capture once. `dumper`: None if `tier` is not `live`."""
    area, subject, _, capture_id, wanted = order
    area.hot.make(capture_id)
    layers = [layer for layer in LAYERS if layer.kind not in _LEFT_OUT[tier]]
    facts = subject.facts
    # `moving`: what makes the session go on. Each call in it is made even if the one before it has raised.
    with ThreadPoolExecutor(2) as beside, contextlib.ExitStack() as moving:
        moving.callback(subject.go_on)
        moving.callback(pause.end)
        taking = Taking(capture_id, subject, area, beside, log_level=log_level, degraded=list(wanted.said))
        if dumper is not None:
            taking.program, taking.criu = dumper.program, dumper.criu
        parts = [layer.part(taking) for layer in layers]
        with _standing_still(parts, pause, for_dump=dumper is not None):
            for part in reversed(parts):
                part.begin()
            clock, folder = time.clock_gettime(time.CLOCK_BOOTTIME), _folder_of(subject)
            for part in reversed(parts):
                part.finish()
            for part in parts:
                part.release()
        if wanted.hold:
            pause.stop_clock()
        else:
            moving.close()
        records = {layer.kind: part.record() for layer, part in zip(layers, parts, strict=True)}
        capture = Capture(
            id=capture_id,
            branch=facts.branch,
            parents=[],
            created=time.time(),
            tier=tier,
            layers=Layers(**records),  # type: ignore[arg-type]  # each kind is a field of Layers
            setting=facts.setting,
            reason=wanted.reason,
            message=wanted.message,
            degraded=[as_text(cleaned(said)) for said in taking.degraded],
            machine=describe_machine(),
            folder=folder,
            clock=clock,
        )
        moving.pop_all()
    return capture


@contextlib.contextmanager
def _standing_still(parts: Sequence[Part], pause: Pause, *, for_dump: bool) -> Iterator[None]:
    """Prepare all parts, then freeze the session. If that fails or the `with` block fails, every part is cancelled."""
    with contextlib.ExitStack() as cancelling:
        for part in reversed(parts):
            cancelling.callback(part.cancel)
        for part in parts:
            part.prepare()
        pause.announce()
        for part in parts:
            part.ready()
        pause.begin(for_dump=for_dump)
        yield
        cancelling.pop_all()


def _folder_of(subject: Subject) -> str:
    """The folder in which the session's shell is; "" if that is not known, or no printable text."""
    leader = subject.leader()
    with contextlib.suppress(OSError):
        folder = procfs.folder(leader) if leader else ""
        return folder if folder.isprintable() else ""
    return ""


def describe_machine() -> Machine:
    """The facts of this machine that decide where the images of processes can be restored."""
    cpu = machine.cpu()
    return Machine(
        kernel=machine.kernel_release(),
        architecture=machine.architecture(),
        cpu=cpu.model,
        cpu_features=cpu.features,
        boot_id=procfs.boot_id(),
    )
