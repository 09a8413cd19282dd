"""The hot area, `<home>/hot/<capture>/`: the parts of a capture that lie on disk as they were taken, so that a restore
needs no unpacking. Only the owner of the home may read the area: the memory of processes is full of secrets.

```
images/       CRIU's images; missing while they are in memory (capture/in_memory)
terminal/     ring, exec.json and typed-ahead of the session's runtime folder
programs.json the manifest of what ran (not of the tier `files`)
seen.json     what is told of its processes
.images/      a copy of images/ that comes to the disk (in_memory/settling.py)
shm/          the files of the session's /dev/shm; missing if there were none
attached/     what was attached: in a folder for each kind, `content`, a file or a folder; missing if nothing was
base-files    which files of the base the capture's image has (base_files/base_listing.py); missing if it has no image
base/         files of the base that the machine did not have when the capture was brought back; missing if it had all
```

`<home>/hot/.<id>/` is what is being made: a capture that comes back from the store, or what is to be attached to one.
"""

import contextlib
import logging
import os
import shutil
from pathlib import Path

from waypoint.capture.in_memory import hot_memory
from waypoint.capture.in_memory.settling import Settling
from waypoint.linux.storage import files, filesystem
from waypoint.linux.storage.deep import remove_path
from waypoint.model.errors import Failed
from waypoint.model.paths import spelled
from waypoint.model.records import IdMap

IMAGES, MEMORY, ATTACHED = hot_memory.IMAGES, "shm", "attached"
_KEPT_LOGS = 20
_log = logging.getLogger(__name__)


class Hot:
    """The hot area of one home."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "hot"
        self.logs = home / "criu-logs"
        self.in_memory = hot_memory.HotMemory(str(home))
        self.settling = Settling(self.folder, self.in_memory)
        for folder in (self.folder, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)

    def make(self, capture_id: str, needed_bytes: int | None, ids: IdMap) -> None:
        """Make the capture's folders. `needed_bytes`: the memory of the processes, whose images are then in memory if
        they may be (`HotMemory.make`); None: they are on the disk. `ids`: the session's. Raises OSError (ENOSPC),
        Failed if the area itself is missing.
        """
        folder = self.folder / capture_id
        try:
            folder.mkdir(mode=0o700)
        except FileNotFoundError as error:
            stop = spelled(str(self.folder.parent), "daemon", "stop")
            next_step = f"put it back, or let the next daemon make an empty one: {stop}"
            raise Failed("capture into", str(self.folder), "the folder is gone", next_step) from error
        self.terminal(capture_id).mkdir(mode=0o700)
        born = self.in_memory.make(capture_id, needed_bytes, ids) if needed_bytes is not None else None
        # Nobody comes to it through the folder above, but a restore gets a descriptor of it (layers/processes.py).
        files.make_folder(f"{born or folder}/{IMAGES}", 0o711)

    def images(self, capture_id: str) -> Path:
        """Where CRIU's images are now: in memory, or on the disk. They move while nobody holds the capture."""
        return Path(self.in_memory.images(capture_id) or self.folder / capture_id / IMAGES)

    def terminal(self, capture_id: str) -> Path:
        return self.folder / capture_id / "terminal"

    def programs(self, capture_id: str) -> Path:
        return self.folder / capture_id / "programs.json"

    def seen(self, capture_id: str) -> Path:
        return self.folder / capture_id / "seen.json"

    def memory(self, capture_id: str) -> Path:
        """The folder for the files of /dev/shm. `make` does not make it, since there may be no such files."""
        return self.folder / capture_id / MEMORY

    def remove(self, capture_id: str) -> None:
        """Remove the capture's folder. Does nothing if it does not exist."""
        if self.in_memory.forget(capture_id):
            self.in_memory.remove(capture_id)
        with contextlib.suppress(OSError):
            remove_path(self.folder / capture_id)

    def touch(self, capture_id: str) -> None:
        """Note in the time of the capture's folder that the capture is used now."""
        with contextlib.suppress(OSError):  # it has none; a disk that is read-only
            os.utime(self.folder / capture_id)

    def used_bytes(self, capture_id: str = "") -> int:
        """Bytes on disk of the capture's folder, 0 if it has none; "": of all. Raises OSError, CalledProcessError."""
        folder = self.folder / capture_id
        return filesystem.used_bytes(folder) if folder.exists() else 0

    def logs_bytes(self) -> int:
        """As `used_bytes`, of the folder of logs."""
        return filesystem.used_bytes(self.logs)

    def keep_log(self, log: Path | None, name: str) -> Path | None:
        """Move the file `log` to the folder of logs, as `name`; returns its new path. The folder keeps the newest
        _KEPT_LOGS logs. Returns None if there is no such file, or no room for it.
        """
        if log is None or not log.exists():  # CRIU failed before it opened its log
            return None
        kept = self.logs / name
        try:
            shutil.move(log, kept)  # that of a restore lies on another file system: in the runtime folder
        except OSError as error:  # such as a full disk, which must not hide why CRIU has failed
            _log.warning("cannot keep %s: %s", log, error)
            return None
        with contextlib.suppress(OSError):  # another thread has just removed one
            for old in sorted(self.logs.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT_LOGS]:
                old.unlink(missing_ok=True)
        return kept

    def list(self) -> list[str]:
        """The ids of all captures that have a folder here."""
        return [folder.name for folder in self.folder.iterdir() if not folder.name.startswith(".")]


def image_bytes(images: Path | str) -> int:
    """The size in bytes of all of CRIU's images in the folder `images`. Raises FileNotFoundError."""
    with os.scandir(images) as entries:
        return sum(entry.stat().st_size for entry in entries)
