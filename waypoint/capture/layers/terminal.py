"""The layer `terminal`: the scrollback, the record of a command in flight, and the unread bytes of all terminals.

Its files have the names and form of those in a session's runtime folder, so a daemon adopts a restored session exactly
as a session whose daemon has died.
"""

import logging
import shutil
from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from shellwrap.ring import Ring, copy_ring
from waypoint.capture.layers.files import damaged
from waypoint.capture.layers.layer import Area, Layer, Part, RestoreTarget, StoredFolder, Taking
from waypoint.capture.steps import Step, reach
from waypoint.linux.tasks import cgroups
from waypoint.model.paths import COMMAND_FILE, QUEUES_FILE, RING_FILE, TYPED_AHEAD_FILE
from waypoint.model.records import Capture, TerminalLayer

log = logging.getLogger(__name__)


class TerminalPart(Part):
    """Drains the terminal before CRIU dumps it, and moves the unread bytes of this and all other terminals of the
    session into a file (processes/terminal_queues.py), because CRIU would alter them.
    """

    def __init__(self, taking: Taking) -> None:
        super().__init__(taking)
        self._saved: Future[TerminalLayer] | None = None
        self._is_taken = False

    def ready(self) -> None:
        self.taking.subject.hold()

    def begin(self) -> None:
        subject = self.taking.subject
        subject.drain()
        if self.taking.criu is not None:
            self._is_taken = True
            subject.take_unread()
        reach(Step.DRAINED)
        folder = self.taking.area.hot.terminal(self.taking.capture_id)
        self._saved = self.taking.executor.submit(subject.save_terminal, folder)

    def finish(self) -> None:
        assert self._saved is not None
        self._saved.result()

    def release(self) -> None:
        if not self.taking.is_awaited:
            self.taking.subject.put_unread_back()

    def record(self) -> TerminalLayer:
        assert self._saved is not None
        return self._saved.result()

    def cancel(self) -> None:
        if self._saved is not None:
            self._saved.exception()  # waits for its end
        if not self._is_taken:
            return
        subject = self.taking.subject
        try:
            with cgroups.frozen(subject.facts.cgroup):  # a killed CRIU may have left the session running
                subject.put_unread_back()
        except OSError as error:  # the next daemon puts the bytes back
            log.warning("session on %s: unread bytes of terminals are not put back: %s", subject.facts.branch, error)


class Terminal(Layer):
    kind = "terminal"

    def part(self, taking: Taking) -> TerminalPart:
        return TerminalPart(taking)

    def folders(self, area: Area, origin: Capture, kind: str) -> dict[str, StoredFolder]:
        return {"terminal": StoredFolder(area.hot.terminal(origin.id))}

    def facts(self, record: dict[str, Any]) -> dict[str, Any]:
        return record

    def check(self, area: Area, origin: Capture, copies: int, leaving: Collection[int] | None) -> None:
        folder = area.hot.terminal(origin.id)
        for path in (folder / RING_FILE, folder / COMMAND_FILE):
            if not path.is_file():
                raise damaged(origin, f"{path} is missing")

    def ring(self, area: Area, origin: Capture) -> Ring | None:
        """The scrollback; None if the capture lacks the layer. Raises StoreDamaged."""
        if origin.layer(TerminalLayer) is None:
            return None
        path = area.hot.terminal(origin.id) / RING_FILE
        try:
            return Ring.open(str(path), private=True)
        except (OSError, ValueError) as error:
            raise damaged(origin, f"{path} cannot be read: {error}") from error

    def restore(self, area: Area, origin: Capture, target: RestoreTarget) -> None:
        folder = area.hot.terminal(origin.id)
        copy_ring(str(folder / RING_FILE), str(target.folder / RING_FILE))
        copy_small_files(folder, target.folder)


def copy_small_files(source: Path, target: Path) -> None:
    for name in (COMMAND_FILE, QUEUES_FILE, TYPED_AHEAD_FILE):
        if name == COMMAND_FILE or (source / name).exists():
            shutil.copyfile(source / name, target / name)
            (target / name).chmod(0o600)


TERMINAL = Terminal()
