"""The layer `shell`: the state of the session's shell as data (variables, functions, options, history, folder).

The shell writes the state into the session's own files, so it is stored with the layer `files`. There are two ways to
it. A shell that sits at its prompt is asked for its state before the capture (/run/waypoint/state); the answer counts
only if the shell has run nothing from then to the pause. Besides, the shell writes its state at each prompt, in turns
into two files (`LAST`). The newer one that is whole is taken of a shell that is busy, and of a session that has ended.
"""

import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from waypoint.capture.layers.layer import Area, Layer, Part, Taking
from waypoint.capture.layers.subject import Subject
from waypoint.linux.storage import beneath
from waypoint.model.errors import CannotCapture, StoreDamaged
from waypoint.model.late_pattern import late_pattern
from waypoint.model.paths import RUN_FOLDER
from waypoint.model.records import Capture, ShellLayer
from waypoint.upper import layout
from waypoint.upper.contract import Pool

STATE_FILE = "state"
BEFORE_FILE = "before"
"""The state that a shell which has not come to its first prompt was to be given."""
LAST = ("last.0", "last.1")
MAX_BYTES = 16 << 20
ROOM_BYTES = 2 * MAX_BYTES
"""For the state and the history."""
NOT_WRITTEN = (
    "its shell's variables, functions and folder: it could not write them (a full disk, ulimit -f), or they are more "
    f"than {MAX_BYTES >> 20} MiB"
)
"""In words, what a capture without the state of a shell lacks."""
LAST_RECORD = [b"e", b"", b"", b""]
END = b"\0" + b"\0".join(LAST_RECORD) + b"\0"
"""How a whole state ends. That of a prompt has its number in the second field."""

# How the state of a prompt begins: the traps, and the record with its number and the shell's kind.
_HEAD = late_pattern(rb"([^\0]*)\0s\0([0-9]{1,18})\0(bash|zsh)\0")
_ASKED = late_pattern(rb"s\0[0-9]*\0(bash|zsh)\0")
_HISTORY = late_pattern(rb"\0h\0\0\0(hist\.[01])\0")


class ShellPart(Part):
    def __init__(self, taking: Taking) -> None:
        super().__init__(taking)
        self._asked: ShellLayer | None = None
        self._holds = False

    def prepare(self) -> None:
        """Ask the shell, which takes some milliseconds to answer, while CRIU starts."""
        self.taking.asked = self.taking.beside.submit(ask_in_room, self.taking.area.pool, self.taking.subject)

    def ready(self) -> None:
        assert self.taking.asked is not None
        self._asked = self.taking.asked.result()

    def cancel(self) -> None:
        if self.taking.asked is not None:
            self.taking.asked.exception()  # waits for its end; its result does not matter

    def begin(self) -> None:
        self._holds = self._asked is not None and self.taking.subject.shell_holds()

    def record(self) -> ShellLayer | None:
        if self._holds:
            return self._asked
        found, is_too_large = last_prompt(self.taking.area.pool.path(self.taking.capture_id))
        is_lost = is_too_large or (found is None and self.taking.subject.is_shell_lost)
        if is_lost and self.taking.criu is None:
            self.taking.degraded.append(NOT_WRITTEN)
        return found


def ask_in_room(pool: Pool, subject: Subject) -> ShellLayer | None:
    """As `Subject.ask_shell`. If the shell could not write its state at its last prompt, its session's limit of the
    disk is raised by ROOM_BYTES meanwhile: there is always room for the state, unless the session takes that, too.
    """
    facts = subject.facts
    most_bytes = facts.setting.limits.disk
    if most_bytes is None or not subject.is_shell_lost:
        return subject.ask_shell()
    pool.limit(facts.tree, most_bytes + ROOM_BYTES)
    try:
        return subject.ask_shell()
    finally:
        pool.limit(facts.tree, most_bytes)


class LastPrompt(NamedTuple):
    """The state that a shell has left, if any. `is_too_large`: it has left one that is not kept."""

    layer: ShellLayer | None
    is_too_large: bool = False


class KeptShell(NamedTuple):
    """`data`: the state as docs/protocol.md, section 3, describes it. `history`: the file of the shell's history; None
    if it was not kept.
    """

    layer: ShellLayer
    data: bytes
    history: bytes | None


class ShellState(Layer):
    kind = "shell"

    def part(self, taking: Taking) -> ShellPart:
        return ShellPart(taking)

    def read(self, area: Area, origin: Capture) -> KeptShell:
        """The state in the capture, cut at MAX_BYTES.

        Raises CannotCapture if the capture does not have the layer, StoreDamaged if the state cannot be read.
        """
        layer, on = origin.layers.shell, origin.id[:12]
        if layer is None:
            said = "it has no state of the shell: the shell was busy, or is of a kind that Waypoint does not know"
            raise CannotCapture("restore the shell of", on, said, "restore all of it")
        try:
            return read_state(area.pool.path(origin.layers.files.tree), layer)
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


def last_prompt(tree: str) -> LastPrompt:
    """The state that the shell of the session with the upper tree `tree` has written at its last prompt or, if it has
    come to none, the one that it was to be given. No state if there is none that is whole, or the last one is too
    large. The session must have ended, or the tree be a copy.
    """
    try:
        folder = _open_run_folder(tree)
    except OSError:  # no session has begun in it, or its user has put something else there
        return LastPrompt(None)
    try:
        found = last_states(lambda name: _read(folder, name))
        if not found:
            return LastPrompt(_before(folder))
        return LastPrompt(found[-1], is_too_large=found[-1] is None)
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
    """The states that a shell has written at its last two prompts, as far as they are whole, the older one first; None
    in the place of one that is too large. `read`: reads a file of the session's run folder, cut at MAX_BYTES; raises
    OSError.
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


def in_order(data: bytes) -> bytes:
    """The state of a prompt, in the order of one that was asked for. Raises ValueError if it is none."""
    head = _HEAD.match(data)
    if head is None:
        raise ValueError("it does not begin as a state")
    records = data[len(head[1]) + 1 : -len(END) - len(head[2])]
    return records + (b"\0t\0\0\0" + head[1] if head[1] else b"") + END


def history_in(state: bytes) -> str | None:
    """The name of the file in the same folder that has the history that belongs to `state`; None if there is none."""
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
    """The error for a shell's state that cannot be read. `said`: why, in words."""
    return StoreDamaged("read", f"the shell's state in {origin.id[:12]}", said, "restore all of it")


SHELL = ShellState()
