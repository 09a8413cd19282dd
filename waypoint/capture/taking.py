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

from waypoint.capture import bounds
from waypoint.capture.elsewhere import describe_machine
from waypoint.capture.layers.files import FILES
from waypoint.capture.layers.layer import Area, Part, Staged, Taking
from waypoint.capture.layers.subject import Subject, family_of
from waypoint.capture.layers.table import LAYERS
from waypoint.capture.pause import Pause, Quiet
from waypoint.capture.steps import StoreStep, reach
from waypoint.linux.tasks import cgroups, procfs
from waypoint.model.errors import CannotCapture, Failed, WaypointError, as_text, cleaned
from waypoint.model.records import Capture, Layers, Reason, Tier
from waypoint.processes.criu.cause_table import DISK_FULL
from waypoint.processes.criu.causes import CriuFailed, read_culprit
from waypoint.processes.criu.options import ERRORS_ONLY, EVERYTHING
from waypoint.processes.criu.rpc import Criu, CriuProgram
from waypoint.processes.left_out import LeftOut, choose, set_apart, take_back
from waypoint.processes.profiles.known import Profiles
from waypoint.processes.survey import survey, survey_by_pid

log = logging.getLogger(__name__)

WITHOUT_PROCESSES = "without its processes"
"""How `Capture.degraded` begins to say that the processes could not be kept; a colon and the reason follow."""


class Wanted(NamedTuple):
    """The capture that is asked for. `tier` None: `live` if the processes can be dumped, else `respawn`. `hold`: leave
    the session frozen and its terminal held; the caller then either ends the session, or thaws it and calls
    `Subject.go_on`. `quiet_until`: a stack; the daemon's long computations are kept back until the caller closes it,
    for a caller with `hold` whose own work is a part of the pause. `said`: in words, what has gone wrong before.
    `attached`: what is to be attached to it, which is the capture's from then on.
    """

    tier: Tier | None
    reason: Reason
    message: str = ""
    hold: bool = False
    quiet_until: contextlib.ExitStack | None = None
    said: Sequence[str] = ()
    attached: Staged | None = None


class Dumper(NamedTuple):
    """The CRIU that dumps one session. `program` and `criu` are None if no CRIU works; `why_not`: the reason."""

    program: CriuProgram | None
    criu: Criu | None
    why_not: str = ""


class Order(NamedTuple):
    """A capture to be taken: into which area, of which session, with which workload profiles and which CRIU, under
    which id, how faithfully.
    """

    area: Area
    quiet: Quiet
    subject: Subject
    profiles: Profiles
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
            error.in_the_way = tries.in_the_way(error)
            raise
        if (taken := tries.of_most(error)) is not None:
            return taken
        taken = tries.without_processes("respawn")
        taken.degraded.insert(0, f"{WITHOUT_PROCESSES}: {error.said}")
        return taken


def is_disk_full(error: WaypointError | OSError) -> bool:
    """Whether `take` has failed since the disk, or memory for images, is full: for the kernel, or for CRIU."""
    if isinstance(error, CriuFailed):
        return error.diagnosis.name == DISK_FULL
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
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
        the session for a moment, which the next CRIU refuses. That images have found no room in memory is no try.
        """
        dumper = self._order.dumper
        if dumper.criu is None:
            raise CannotCapture("dump", "the processes", dumper.why_not, "see 'waypoint doctor'")
        try:
            return self._once_on_disk_if_need_be(dumper)
        except (CriuFailed, Failed, OSError) as error:
            first = error
        log.warning("capture of %s, first try: %s", self._order.subject.facts.branch, first)
        try:
            return self._once(dumper, EVERYTHING)
        except CannotCapture as error:
            if not isinstance(first, CannotCapture):
                raise first from error
            error.next_step = self._what_helps() or error.next_step
            raise

    def _once_on_disk_if_need_be(self, dumper: Dumper) -> Capture:
        """As `_once`; if the images have found no room in memory, they are written to the disk."""
        order = self._order
        try:
            return self._once(dumper, ERRORS_ONLY)
        except (Failed, OSError) as error:
            if not (is_disk_full(error) and order.area.hot.in_memory.images(order.capture_id)):
                raise
            log.warning("capture of %s, its images in memory: %s", order.subject.facts.branch, error)
        return self._once(dumper, ERRORS_ONLY)

    def of_most(self, refused: CannotCapture) -> Capture | None:
        """Take the capture with all processes but those of the programs that CRIU refuses. `refused`: how it has
        refused all of them. After an accident, try a second time. Returns None if that cannot be.
        """
        branch, has_criu = self._order.subject.facts.branch, self._order.dumper.criu is not None
        why = self._refused(refused) if has_criu else {}  # now: the next try's log takes the place of that one
        try:
            try:
                return self._without(why)
            except (Failed, OSError) as error:
                log.warning("capture of a part of %s, first try: %s", branch, error)
            return self._without(why)
        except CannotCapture as error:
            log.warning("capture of a part of %s: %s", branch, error)
            return None

    def _without(self, why: dict[int, str]) -> Capture | None:
        """Take the capture without the programs of these processes; None if there are none that can be left out."""
        try:
            left_out = self._set_apart(why)
            return self._once(self._order.dumper, ERRORS_ONLY, left_out=left_out) if left_out else None
        finally:
            take_back(self._order.subject.facts.cgroup)

    def in_the_way(self, refused: CannotCapture) -> list[str]:
        """The programs that `of_most` would leave out, as people see them; empty if nothing could be kept."""
        subject = self._order.subject
        if self._order.dumper.criu is not None:
            with contextlib.suppress(OSError):  # the session has ended
                return [one.program.shown for one in choose(family_of(subject), self._refused(refused))]
        return []

    def _refused(self, refused: CannotCapture) -> dict[int, str]:
        """The processes that CRIU refuses, each with why; empty if that is not known. Raises OSError."""
        subject = self._order.subject
        found = survey_by_pid(subject.facts.init_pid, subject.processes(), self._order.profiles)
        why = {pid: one.why for pid, one in found.items() if one.tier != "live"}
        if not why and isinstance(refused, CriuFailed) and refused.log is not None:
            culprit = read_culprit(refused.log)
            why = {culprit.pid: refused.said} if culprit is not None else {}
        return why

    def _set_apart(self, why: dict[int, str]) -> list[LeftOut]:
        """Set the programs apart to which these processes belong; none if the shell is one of them. Raises as
        `set_apart`.
        """
        subject, left_out = self._order.subject, list[LeftOut]()
        if why:
            cgroup, began = subject.facts.cgroup, time.monotonic()
            try:
                with cgroups.frozen(cgroup):  # so that no pid becomes a stranger's
                    left_out = choose(family_of(subject), why)
                    if left_out:
                        set_apart(cgroup, left_out)
            finally:
                self._paused_ms += 1000 * (time.monotonic() - began)
        return left_out

    def _what_helps(self) -> str:
        """What is to be done with the processes that are seen to be in the way, as their profiles say."""
        subject = self._order.subject
        with contextlib.suppress(OSError):  # the session has ended
            found = survey(subject.facts.init_pid, subject.processes(), self._order.profiles)
            return "; ".join(dict.fromkeys(one.remedy for one in found if one.remedy))
        return ""

    def _once(
        self, dumper: Dumper | None, log_level: int, tier: Tier = "live", left_out: Sequence[LeftOut] = ()
    ) -> Capture:
        order = self._order
        if self._begun:
            drop_layers(order.area, order.capture_id)
        # Images are born in memory only the first time: there may have been too little of it.
        may_be = dumper is not None and not self._begun and not order.area.hot.in_memory.why_not
        needed = bounds.images_bytes(order.subject.processes()) if may_be else None
        self._begun = True
        order.area.hot.make(order.capture_id, needed, order.subject.facts.fixed.ids)
        pause = Pause(order.subject.facts.cgroup, order.quiet, order.wanted.quiet_until)
        try:
            taken = _take(order, pause, dumper, log_level, tier, left_out)
        finally:
            self._paused_ms += pause.ms
        return msgspec.structs.replace(taken, paused_ms=round(self._paused_ms, 3))


def drop_layers(area: Area, capture_id: str, layers: Layers | None = None) -> None:
    """Remove all that a capture has on disk. `layers`: its record; None if taking it has failed.

    Does nothing if there is nothing.
    """
    for layer in LAYERS:
        layer.drop(area, capture_id, getattr(layers, layer.kind, None))
        if layer is FILES:
            reach(StoreStep.FILES_GONE)
    area.hot.remove(capture_id)


_LACKED: dict[Tier, frozenset[str]] = {
    "live": frozenset(),
    "respawn": frozenset({"processes"}),
    "files": frozenset({"processes", "programs"}),
}
"""The kinds of layers that a capture of a tier does not have."""


def _take(
    order: Order, pause: Pause, dumper: Dumper | None, log_level: int, tier: Tier, left_out: Sequence[LeftOut]
) -> Capture:
    """Take the capture once. `dumper`: None if `tier` is not `live`. `left_out`: what was set apart."""
    area, _, subject, profiles, _, capture_id, wanted = order
    layers = [layer for layer in LAYERS if layer.kind not in _LACKED[tier]]
    facts = subject.facts
    # `moving`: what makes the session go on. Each call in it is made even if the one before it has raised.
    with ThreadPoolExecutor(2) as beside, contextlib.ExitStack() as moving:
        moving.callback(subject.go_on)
        moving.callback(pause.end)
        if left_out:
            moving.callback(take_back, facts.cgroup)
        taking = Taking(capture_id, subject, area, beside, profiles, log_level=log_level, left_out=left_out)
        taking.degraded += wanted.said
        taking.attached = wanted.attached
        if dumper is not None:
            taking.program, taking.criu = dumper.program, dumper.criu
        parts = [layer.part(taking) for layer in layers]
        with _standing_still(parts, pause, left_out, for_dump=dumper is not None):
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
        *rest, last = zip(layers, parts, strict=True)
        records = {layer.kind: made for layer, part in (*reversed(rest), last) if (made := part.record())}
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
            machine=describe_machine(facts.setting.base),
            folder=folder,
            clock=clock,
        )
        moving.pop_all()
    return capture


@contextlib.contextmanager
def _standing_still(
    parts: Sequence[Part], pause: Pause, left_out: Sequence[LeftOut], *, for_dump: bool
) -> Iterator[None]:
    """Prepare all parts, then freeze the session. If that fails or the `with` block fails, every part is cancelled."""
    with contextlib.ExitStack() as cancelling:
        for part in reversed(parts):
            cancelling.callback(part.cancel)
        for part in parts:
            part.prepare()
        pause.announce()
        for part in parts:
            part.ready()
        pause.begin(for_dump=for_dump, apart=[pid for one in left_out for pid in one.program.pids])
        yield
        cancelling.pop_all()


def _folder_of(subject: Subject) -> str:
    """The folder in which the session's shell is; "" if that is not known, or no printable text."""
    leader = subject.leader()
    with contextlib.suppress(OSError):
        folder = procfs.folder(leader) if leader else ""
        return folder if folder.isprintable() else ""
    return ""
