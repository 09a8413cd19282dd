"""The journal of a change of the machine's files: a folder that says what is being done and keeps what was replaced.

```
<home>/applied/<ident>/plan       what is to be done; written before anything is (records.Plan)
<home>/applied/<ident>/staged     what waits beside its place; written before the first of it is put there
<home>/applied/<ident>/left       by what each file is known as it was put there
<home>/applied/<ident>/done       it stays so
<home>/applied/<ident>/settled    nothing is left beside
<home>/applied/<ident>/void       all was put back: `left` says by what each file is known since
<home>/applied/<ident>/kept/N     what action N has replaced or removed
```
Each file is written as a whole, and durable before the next step begins (fsync of the file, then of the folder).
"""

import os
import time
from typing import TypeVar

import msgspec

from waypoint.branch.applying.apply_records import ApplyPlan, Waiting
from waypoint.linux.storage import deep, files
from waypoint.upper.writing.file_marks import FileMark

Written = TypeVar("Written")


class Journal:
    def __init__(self, journals: str, ident: str) -> None:
        self.ident = ident
        self.path = f"{journals}/{ident}"
        self.kept = f"{self.path}/kept"

    def begin(self, plan: ApplyPlan) -> None:
        """Raises OSError."""
        os.mkdir(self.path, 0o700)
        os.mkdir(self.kept, 0o700)
        files.sync_folder(os.path.dirname(self.path))
        self._write("plan", plan)

    def plan(self) -> ApplyPlan | None:
        """None: nothing was begun. Raises OSError, msgspec.DecodeError."""
        return self._read("plan", ApplyPlan)

    def note_staged(self, staged: list[Waiting]) -> None:
        self._write("staged", staged)

    def staged(self) -> list[Waiting] | None:
        return self._read("staged", list[Waiting])

    def note_left(self, left: list[FileMark | None]) -> None:
        self._write("left", left)

    def left(self) -> list[FileMark | None]:
        return self._read("left", list[FileMark | None]) or []

    def note(self, word: str) -> None:
        """Note that it is `done`, `void` or `settled`."""
        self._write(word, None)

    def has(self, word: str) -> bool:
        return os.path.exists(f"{self.path}/{word}")

    def age_s(self) -> float:
        """How long ago it was begun, in seconds."""
        return time.time() - os.stat(f"{self.path}/plan").st_mtime

    def remove(self) -> None:
        """The plan goes last: while it is there, what is left beside is found. Raises OSError."""
        deep.remove_path(self.kept)
        for word in ("settled", "void", "done", "left", "staged", "plan"):
            if self.has(word):
                os.unlink(f"{self.path}/{word}")
        deep.remove_path(self.path)

    def _write(self, word: str, content: object) -> None:
        try:
            files.publish(f"{self.path}/{word}", msgspec.msgpack.encode(content))
        except OSError as error:
            error.filename = error.filename or self.path
            raise

    def _read(self, word: str, kind: type[Written]) -> Written | None:
        try:
            with open(f"{self.path}/{word}", "rb") as file:
                return msgspec.msgpack.decode(file.read(), type=kind)
        except FileNotFoundError:
            return None


def has_unsettled(folder: str) -> bool:
    """Whether a change was broken off there, before its end or before all was put in order."""
    return any(not journal.has("settled") for journal in journals_in(folder))


def journals_in(folder: str) -> list[Journal]:
    """All that there are, by their ids."""
    try:
        with os.scandir(folder) as entries:
            return [Journal(folder, one.name) for one in sorted(entries, key=lambda one: one.name) if one.is_dir()]
    except FileNotFoundError:
        return []
