"""The layer `terminal`: the scrollback, the record of a command in flight, and the input that was typed ahead.

Its files have the names and form of those in a session's runtime folder, so a daemon adopts a restored session exactly
as a session whose daemon has died.
"""

import logging
import shutil
from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from shellwrap.ring import copy_ring
from waypoint.capture.layers.files import damaged
from waypoint.capture.layers.layer import Area, Layer, Part, RestoreTarget, Taking
from waypoint.capture.steps import Step, reach
from waypoint.model.paths import COMMAND_FILE, RING_FILE, TYPED_AHEAD_FILE
from waypoint.model.records import Capture, TerminalLayer

log = logging.getLogger(__name__)


class TerminalPart(Part):
    """Drains the terminal before CRIU dumps it, because CRIU restores pending output through the line discipline, which
    alters it. Typed input that no program has read yet is moved to a file for the same reason.
    """

    def __init__(self, taking: Taking) -> None:
        super().__init__(taking)
        self._saved: Future[TerminalLayer] | None = None

    def ready(self) -> None:
        self.taking.subject.hold()

    def begin(self) -> None:
        subject = self.taking.subject
        subject.drain()
        subject.take_typed_ahead()
        reach(Step.DRAINED)
        folder = self.taking.area.hot.terminal(self.taking.capture_id)
        self._saved = self.taking.executor.submit(subject.save_terminal, folder)

    def finish(self) -> None:
        assert self._saved is not None
        self._saved.result()

    def release(self) -> None:
        self.taking.subject.give_typed_ahead_back()

    def record(self) -> TerminalLayer:
        assert self._saved is not None
        return self._saved.result()

    def cancel(self) -> None:
        if self._saved is not None:
            self._saved.exception()  # waits for its end
        try:
            self.taking.subject.give_typed_ahead_back()
        except OSError as error:  # the next daemon types the input from its file
            log.warning("session on %s: typed-ahead input is not put back: %s", self.taking.subject.facts.branch, error)


class Terminal(Layer):
    kind = "terminal"

    def part(self, taking: Taking) -> TerminalPart:
        return TerminalPart(taking)

    def facts(self, record: dict[str, Any]) -> dict[str, Any]:
        return record

    def check(self, area: Area, origin: Capture, copies: int, leaving: Collection[int]) -> None:
        folder = area.hot.terminal(origin.id)
        for path in (folder / RING_FILE, folder / COMMAND_FILE):
            if not path.is_file():
                raise damaged(origin, f"{path} is missing")

    def restore(self, area: Area, origin: Capture, target: RestoreTarget) -> None:
        folder = area.hot.terminal(origin.id)
        copy_ring(str(folder / RING_FILE), str(target.folder / RING_FILE))
        copy_small_files(folder, target.folder)


def copy_small_files(source: Path, target: Path) -> None:
    for name in (COMMAND_FILE, TYPED_AHEAD_FILE):
        if name == COMMAND_FILE or (source / name).exists():
            shutil.copyfile(source / name, target / name)
            (target / name).chmod(0o600)


TERMINAL = Terminal()
