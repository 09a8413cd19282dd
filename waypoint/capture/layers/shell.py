"""The layer `shell`: the state of the session's shell as data (variables, functions, options, history, folder).

The shell writes the state into the session's own files, so it is stored with the layer `files`. A shell at its prompt
is asked for its state before the capture (/run/waypoint/state); the answer is valid only if the shell has run nothing
until the pause. Besides, the shell writes its state at each prompt, alternately into two files (`LAST`). Of a busy
shell and of an ended session, the newer complete one is taken.
"""

import errno
import os
import re
import stat
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from waypoint.capture.layers.layer import Area, Layer, Part, Taking
from waypoint.capture.layers.subject import Subject
from waypoint.linux.storage import beneath
from waypoint.model.conditions import degradation
from waypoint.model.errors import CannotCapture, StoreDamaged
from waypoint.model.paths import RUN_FOLDER
from waypoint.model.records import Capture, ShellLayer
from waypoint.upper import layout
from waypoint.upper.contract import Pool, more_space

STATE_FILE = "state"
BEFORE_FILE = "before"
"""The state that a shell is to be given, until its first prompt."""
LAST = ("last.0", "last.1")
MAX_BYTES = 16 << 20
ROOM_BYTES = 2 * MAX_BYTES
"""For the state and the history."""
NOT_WRITTEN = degradation("shell-not-written")
LAST_RECORD = [b"e", b"", b"", b""]
END = b"\0" + b"\0".join(LAST_RECORD) + b"\0"
"""The end of a complete state. That of a prompt has the prompt's number in the second field."""

# The beginning of a prompt's state: the traps, then the record with its number and the shell's kind.
_HEAD = re.compile(rb"([^\0]*)\0s\0([0-9]{1,18})\0(bash|zsh)\0")
_ASKED = re.compile(rb"s\0[0-9]*\0(bash|zsh)\0")
_HISTORY = re.compile(rb"\0h\0\0\0(hist\.[01])\0")


class ShellPart(Part):
    """The shell answers while CRIU starts."""

    def __init__(self, taking: Taking) -> None:
        super().__init__(taking)
        self._asking: Future[ShellLayer | None] | None = None
        self._asked: ShellLayer | None = None
        self._holds = False

    def prepare(self) -> None:
        taking = self.taking
        taking.asking = self._asking = taking.executor.submit(ask_shell_with_space, taking.area.pool, taking.subject)
        if taking.options.dump_later:  # the layer `processes` looks at them now
            self._asking.exception()

    def ready(self) -> None:
        assert self._asking is not None
        self._asked = self._asking.result()

    def cancel(self) -> None:
        if self._asking is not None:
            self._asking.exception()  # waits for its end

    def begin(self) -> None:
        self._holds = self._asked is not None and self.taking.subject.shell_holds()

    def record(self) -> ShellLayer | None:
        if self._holds:
            return self._asked
        found = last_prompt(self.taking.area.pool.path(self.taking.capture_id))
        if found is None and self.taking.subject.is_shell_lost and self.taking.criu is None:
            self.taking.degraded.append(NOT_WRITTEN)
        return found


def ask_shell_with_space(pool: Pool, subject: Subject) -> ShellLayer | None:
    """Ask the shell for its state (`Subject.ask_shell`).

    If the shell could not write its state at its last prompt, the session's disk limit is raised by ROOM_BYTES during
    the call. The session's other programs may use up that space, too.
    """
    facts = subject.facts
    if not subject.is_shell_lost:
        return subject.ask_shell()
    with more_space(pool, facts.tree, facts.setting.limits.disk, ROOM_BYTES):
        return subject.ask_shell()


class KeptShell(NamedTuple):
    """`data`: the state (docs/protocol.md, section 3). `history`: the shell's history file, if it was kept."""

    layer: ShellLayer
    data: bytes
    history: bytes | None


class ShellState(Layer):
    kind = "shell"

    def part(self, taking: Taking) -> ShellPart:
        return ShellPart(taking)

    def facts(self, record: dict[str, Any]) -> dict[str, Any]:
        return {"size_bytes": record["size_bytes"], "moment": record.get("moment", "now")}

    def read(self, area: Area, origin: Capture) -> KeptShell:
        """The state in the capture, truncated at MAX_BYTES."""
        layer, on = origin.layer(ShellLayer), origin.id[:12]
        if layer is None:
            said = "the capture has no state of the shell: the shell was busy, or was neither bash nor zsh"
            raise CannotCapture("restore the shell of", on, said, "restore the whole capture, without --only")
        try:
            return read_state(area.pool.path(origin.tree), layer)
        except (OSError, ValueError) as error:
            raise unreadable(origin, str(error)) from error


def read_state(tree: str, layer: ShellLayer) -> KeptShell:
    """The state `layer` in the upper tree `tree`. Raises OSError, ValueError if the file does not have it."""
    folder = _open_run_folder(tree)
    try:
        data = _read(folder, layer.file)[: layer.size_bytes]
        if layer.moment == "prompt":
            data = in_order(data)
        return KeptShell(layer, data, _history_of(folder, data))
    finally:
        os.close(folder)


def last_prompt(tree: str) -> ShellLayer | None:
    """The state of the shell's last prompt or, before its first, the state that it was to be given. None if there is no
    complete one, or the last one is too large. The session must have ended, or `tree` be a copy.
    """
    try:
        folder = _open_run_folder(tree)
    except OSError:  # no session has started in it, or its user has replaced the folder
        return None
    try:
        found = last_states(lambda name: _read(folder, name))
        return found[-1] if found else _before(folder)
    finally:
        os.close(folder)


def _before(folder: int) -> ShellLayer | None:
    try:
        data = _read(folder, BEFORE_FILE)
    except OSError:
        return None
    kind = _ASKED.match(data)
    if kind is None or not data.endswith(END):
        return None
    return ShellLayer(size_bytes=len(data), kind="zsh" if kind[1] == b"zsh" else "bash", file=BEFORE_FILE)


def last_states(read: Callable[[str], bytes]) -> list[ShellLayer | None]:
    """The complete states of the last two prompts, the older one first; None in the place of one that is too large.
    `read`: reads a file of the session's run folder, truncated at MAX_BYTES.
    """
    found: list[tuple[int, ShellLayer | None]] = []
    for name in LAST:
        try:
            data = read(name)
        except OSError:
            continue
        head = _HEAD.match(data)
        end = data.find(b"\0e\0%s\0\0\0" % head[2]) if head else -1
        if head and end < 0 and len(data) == MAX_BYTES:
            found.append((int(head[2]), None))
        elif head and end >= 0:
            size = end + len(END) + len(head[2])
            layer = ShellLayer(size_bytes=size, kind="zsh" if head[3] == b"zsh" else "bash", file=name, moment="prompt")
            found.append((int(head[2]), layer))
    return [layer for _, layer in sorted(found, key=lambda one: one[0])]


def last_number(read: Callable[[str], bytes]) -> str | None:
    """The number of the last prompt's state and the name of its history file, as WAYPOINT_STATE has them for a new
    shell that continues the numbers. None if there is no complete state. `read`: as for `last_states`.
    """
    found = last_states(read)
    if not found or found[-1] is None:
        return None
    layer = found[-1]
    data = read(layer.file)[: layer.size_bytes]
    head = _HEAD.match(data)
    return f"{head[2].decode()}:{history_in(data) or ''}" if head else None


def in_order(data: bytes) -> bytes:
    """The state of a prompt in the order of a requested one. Raises ValueError if it is not a state."""
    head = _HEAD.match(data)
    if head is None:
        raise ValueError("it does not begin like a state")
    records = data[len(head[1]) + 1 : -len(END) - len(head[2])]
    return records + (b"\0t\0\0\0" + head[1] if head[1] else b"") + END


def history_in(state: bytes) -> str | None:
    """The name of the history file that belongs to `state`, in the same folder; None if there is none."""
    found = _HISTORY.search(state)
    return found[1].decode() if found else None


def _history_of(folder: int, data: bytes) -> bytes | None:
    name = history_in(data)
    try:
        return _read(folder, name) if name else None
    except OSError:  # it could not be written
        return None


def _open_run_folder(tree: str) -> int:
    upper = os.open(layout.upper_of(tree), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return beneath.open_beneath(upper, RUN_FOLDER, os.O_PATH | os.O_DIRECTORY)
    finally:
        os.close(upper)


def _read(folder: int, name: str) -> bytes:
    fd = beneath.open_beneath(folder, name, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FileExistsError(errno.EEXIST, "is no plain file", name)
        return os.pread(fd, MAX_BYTES, 0)
    finally:
        os.close(fd)


def unreadable(origin: Capture, said: str) -> StoreDamaged:
    return StoreDamaged(
        "read", f"the shell's state in {origin.id[:12]}", said, "restore the whole capture, without --only"
    )


SHELL = ShellState()
