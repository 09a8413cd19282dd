"""The journal of a change of the machine's files: what is done, and what was there before.

```
<home>/applied/<ident>/plan       ApplyPlan; written before anything changes
<home>/applied/<ident>/staged     list[int]: the inodes of the new files, which wait beside their places; written before
                                  the first of them is put into its place
<home>/applied/<ident>/marks      list[Left | None]: how the steps, then the folders of the plan were left
<home>/applied/<ident>/kept/N     the file that step N has replaced or removed
<home>/applied/<ident>/settled    empty: nothing of the change is left outside of this folder
<home>/applied/<ident>/void       empty: the change was rolled back
```
Each file is written atomically and durably before the next step begins. When the change can no longer be undone, `kept`
is removed, and `plan` and `marks` have only what a later apply needs to recognise the files.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from waypoint.linux.storage import deep, files

Kind = TypeVar("Kind")


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The facts by which an entry of the machine is recognised, and for folders all that is needed to make it again.
    `attributes`: the extended attributes of a folder; of other entries empty.
    """

    mode: int
    uid: int
    gid: int
    size: int
    inode: int
    changed_ns: int
    times_ns: tuple[int, int]
    links: int
    attributes: dict[str, bytes] = {}

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def is_of(self, facts: os.stat_result | None) -> bool:
        """Whether the entry with these facts is still the same. A folder's ctime changes with its entries, that of a
        file with each of its names.
        """
        if facts is None or facts.st_ino != self.inode or stat.S_IFMT(facts.st_mode) != stat.S_IFMT(self.mode):
            return False
        if self.links > 1:
            return self.is_folder or (facts.st_size, facts.st_mtime_ns) == (self.size, self.times_ns[1])
        return self.is_folder or facts.st_ctime_ns == self.changed_ns


def mark_of(facts: os.stat_result, attributes: dict[str, bytes] | None = None) -> Mark:
    return Mark(
        facts.st_mode,
        facts.st_uid,
        facts.st_gid,
        facts.st_size,
        facts.st_ino,
        facts.st_ctime_ns,
        (facts.st_atime_ns, facts.st_mtime_ns),
        facts.st_nlink,
        attributes or {},
    )


class Step(msgspec.Struct, frozen=True, array_like=True):
    """An entry of the machine that is replaced, made or removed.

    `place`: the number of the place. `path`: relative to it. `before`: what is there; None: nothing. `wanted`: what is
    put there; None: nothing. `kept`: in a reversal, the number of the file in the other journal that comes back; of a
    folder that becomes as it was, 0; otherwise -1.
    """

    place: int
    path: bytes
    before: Mark | None
    wanted: Mark | None
    kept: int = -1

    @property
    def name(self) -> str:
        return os.fsdecode(self.path)

    @property
    def was(self) -> tuple[int, int] | None:
        """Inode and ctime of the former entry, if this step brings it back."""
        return (self.wanted.inode, self.wanted.changed_ns) if self.wanted is not None and self.kept >= 0 else None


class ApplyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`places`: the folders of the machine, each the root of a mount of the session. `targets`: where the session has
    them. `steps`: in the order in which they are taken. `folders`: existing and new folders that get other attributes
    or times at the end; a new one has no `before`. `capture`: whose files these are; in a reversal "". `uid`, `gid`:
    the caller's.
    """

    ident: str
    branch: str
    capture: str
    uid: int
    gid: int
    places: list[str]
    targets: list[str]
    steps: list[Step]
    folders: list[Step]


class _OfCapture(msgspec.Struct):
    capture: str


class Left(msgspec.Struct, frozen=True, array_like=True):
    """How a step has left its entry: inode and ctime. `was`: those of the former entry, if it came back. `index`: the
    digest of a git index (git_index.py); b"" for other files.
    """

    now: tuple[int, int]
    was: tuple[int, int] | None = None
    index: bytes = b""


class Journal:
    def __init__(self, journals: Path, ident: str) -> None:
        self.ident = ident
        self.folder = journals / ident
        self.kept = self.folder / "kept"

    def begin(self, plan: ApplyPlan) -> None:
        """Raises OSError."""
        self.kept.mkdir(mode=0o700, parents=True)
        os.chown(self.kept, plan.uid, plan.gid)  # the caller takes files out of it; only root reaches the folder above
        files.sync_folder(str(self.folder.parent))
        self._write("plan", plan)

    def plan(self) -> ApplyPlan | None:
        """None: nothing has begun. Raises OSError, ValueError."""
        return self._read("plan", ApplyPlan)

    def capture(self) -> str | None:
        """Like `plan().capture`, without decoding the steps."""
        plan = self._read("plan", _OfCapture)
        return None if plan is None else plan.capture

    def note_staged(self, inodes: list[int]) -> None:
        self._write("staged", inodes)

    def staged(self) -> list[int] | None:
        return self._read("staged", list[int])

    def note_left(self, left: list[Left | None]) -> None:
        self._write("marks", left)

    def left(self) -> list[Left | None]:
        return self._read("marks", list[Left | None]) or []

    def note(self, word: Literal["settled", "void"]) -> None:
        self._write(word, None)

    def has(self, word: Literal["settled", "void"]) -> bool:
        return (self.folder / word).exists()

    def began(self) -> float:
        """When the plan was written, in seconds since the epoch; 0.0 if nothing has begun."""
        try:
            return (self.folder / "plan").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def forget(self, *, is_needed: bool) -> None:
        """Remove all that only an undo needs; unless `is_needed`, remove everything."""
        if not is_needed:
            self.remove()
        elif self.kept.exists():
            began, plan = self.began(), self.plan()
            if plan is not None:
                self.note_left([left for left in self.left() if left is not None])
                self._write("plan", msgspec.structs.replace(plan, steps=[], folders=[]))
                os.utime(self.folder / "plan", (began, began))
            deep.remove_path(self.kept)

    def remove(self) -> None:
        deep.remove_path(self.folder)

    def _write(self, word: str, content: object) -> None:
        files.publish(str(self.folder / word), msgspec.msgpack.encode(content))

    def _read(self, word: str, kind: type[Kind]) -> Kind | None:
        try:
            return msgspec.msgpack.decode((self.folder / word).read_bytes(), type=kind)
        except FileNotFoundError:
            return None


def journals_in(journals: Path) -> Iterator[Journal]:
    if journals.is_dir():
        yield from (Journal(journals, name) for name in sorted(os.listdir(journals)))
