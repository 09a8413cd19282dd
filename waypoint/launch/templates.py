"""Templates: processes that have read the memory of a capture once, for restores that share its pages.

A template is a CRIU with the big private areas of a capture's processes in its own memory (criu/patches/17).
The CRIU of a restore is a child of the template, and moves these areas into the restored processes. So the kernel
copies a page when a restored process writes to it, and no other page is copied. A restored process is complete when it
runs: it needs neither the template nor the images. If a template has ended, the next restore is slower, and no more.
"""

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Iterator

from waypoint.capture.captures import HeldCapture
from waypoint.launch.criu_process import CriuSpawner
from waypoint.linux.calls import machine
from waypoint.model.errors import WaypointError
from waypoint.model.records import Capture
from waypoint.processes.criu.rpc import Criu
from waypoint.processes.criu.worker import Process

log = logging.getLogger(__name__)

LEAST_BYTES = 64 << 20
"""A restore of less memory is as fast without a template."""
KEPT_S = 300.0
"""How long a template waits for the next restore. Its memory is shared with the sessions that it has restored."""
_LOOK_S = 5.0
_SPARE = 8  # the share of the machine's memory that must stay available, as a divisor


class _Template:
    def __init__(self, process: Process, control: socket.socket) -> None:
        self.control = control
        self.used = time.monotonic()
        self._process = process

    def has_ended(self) -> bool:
        poll = select.poll()  # select(2) refuses descriptors from 1024 on
        poll.register(self.control, select.POLLIN)
        return bool(poll.poll(0))

    def end(self) -> None:
        """Blocks until the process has ended."""
        self.control.close()
        self._process.kill()
        self._process.wait()


class Templates:
    """The templates of a home, by capture. Call the methods in threads."""

    def __init__(self, spawner: CriuSpawner) -> None:
        self._spawner = spawner
        self._changed = threading.Condition()
        self._found: dict[str, _Template | None] = {}  # None: another thread starts it
        self._timer: threading.Timer | None = None
        self._avoided: set[str] = set()

    @contextlib.contextmanager
    def opened(self, held: HeldCapture) -> Iterator[int | None]:
        """Open the socket of the capture's template, which is started if there is none. None if a restore of the
        capture needs no template, or the machine has no memory for it.
        """
        fd = self._open(held)
        try:
            yield fd
        finally:
            if fd is not None:
                os.close(fd)

    def avoid(self, capture: Capture) -> None:
        """Use no template for the capture any more: a restore from it has failed."""
        with self._changed:
            self._avoided.add(capture.id)
        self._end([capture.id])

    def forget(self, capture: Capture) -> None:
        """End the template of a capture that is being removed."""
        self._end([capture.id])

    def close(self) -> None:
        """End all templates."""
        self._end(list(self._found))

    def _open(self, held: HeldCapture) -> int | None:
        key, ended = held.capture.id, None
        with self._changed:
            if key in self._avoided:
                return None
            while key in self._found:
                if (template := self._found[key]) is None:
                    self._changed.wait()
                elif template.has_ended():
                    del self._found[key]
                    ended = template
                else:
                    template.used = time.monotonic()
                    return os.dup(template.control.fileno())
            self._found[key] = None
        started: _Template | None = None
        try:
            if ended is not None:
                ended.end()
            started = self._start(held)
        except (WaypointError, OSError) as error:  # the restore itself reports what is wrong, if it fails
            log.warning("no template for capture %s: %s", key[:12], error)
            self._avoided.add(key)
        finally:
            with self._changed:
                del self._found[key]
                if started is not None:
                    self._found[key] = started
                    self._look_later()
                self._changed.notify_all()
                fd = os.dup(started.control.fileno()) if started is not None else None
        return fd

    def _start(self, held: HeldCapture) -> _Template | None:
        program, layer = held.criu, held.processes
        if layer.size_bytes < LEAST_BYTES or not program.key:
            return None
        with held.memory_plan() as (plan, images_fd):
            spare = machine.total_memory_bytes() // _SPARE
            if plan.size < LEAST_BYTES or machine.available_memory_bytes() - 2 * plan.size < spare:
                return None
            plan_fd = os.memfd_create("template-plan")
            with open(plan_fd, "r+b") as file:
                file.write(plan.content)
                file.seek(0)
                spawn = self._spawner.template(layer.hard_limits, plan_fd, images_fd)
                started = Criu(program.path, spawn).start_template()
        if started is None:
            self._avoided.add(held.capture.id)  # there was no memory, or this CRIU has other patches
            return None
        return _Template(*started)

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(_LOOK_S, self._look)
            self._timer.daemon = True
            self._timer.start()

    def _look(self) -> None:
        """End the templates that were not used for long; all of them if the machine is short of memory."""
        is_short = machine.available_memory_bytes() < machine.total_memory_bytes() // _SPARE
        with self._changed:
            self._timer = None
            old = time.monotonic() - (0 if is_short else KEPT_S)
            ended = [key for key, one in self._found.items() if one is not None and one.used <= old]
            if len(ended) < len(self._found):
                self._look_later()
        self._end(ended)

    def _end(self, keys: list[str]) -> None:
        with self._changed:
            ended = [one for key in keys if (one := self._found.get(key)) is not None]
            self._found = {key: one for key, one in self._found.items() if one not in ended}
        for one in ended:
            one.end()
