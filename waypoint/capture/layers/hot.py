"""The hot area, `<home>/hot/<capture>/`: the parts of a capture that are stored as they were taken, so that a restore
needs no unpacking. Only the home's owner may read it: the memory of processes contains secrets.

```
images/       CRIU's images
terminal/     ring, exec.json and queues of the session's runtime folder
base/         files of the base that the processes have open or mapped (layers/base_files.py)
programs.json the manifest of the programs that ran (tiers `live` and `respawn`)
shm/          the files of the session's /dev/shm; missing if there were none
attached/     by kind, what the user has attached (layers/attached.py)
```
`<home>/hot/.base/` has a link to each content in the folders `base`.
"""

import contextlib
import logging
import os
import shutil
import time
from pathlib import Path

from waypoint.linux.calls import programs
from waypoint.linux.storage import files, filesystem
from waypoint.linux.storage.deep import remove_path
from waypoint.model.errors import Failed
from waypoint.model.paths import spelled

_KEPT_LOGS = 20
_LOG_BYTES = 1 << 20  # the end of a log is kept: CRIU's errors are there, and a detailed log may have many MiB
_log = logging.getLogger(__name__)


class Hot:
    def __init__(self, home: Path) -> None:
        self.folder = home / "hot"
        self.logs = home / "criu-logs"
        for folder in (self.folder, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)

    def make(self, capture_id: str) -> Path:
        """Make the capture's folders, and return the one that contains the others."""
        folder = self.folder / capture_id
        try:
            folder.mkdir(mode=0o700)
        except FileNotFoundError as error:
            stop = spelled(str(self.folder.parent), "daemon", "stop")
            next_step = f"restore the folder, or let the next daemon make an empty one: {stop}"
            raise Failed("capture into", str(self.folder), "the folder is gone", next_step) from error
        self.terminal(capture_id).mkdir(mode=0o700)
        # 0711: only `folder` protects it, and a restore gets a descriptor of it (layers/processes.py).
        files.make_folder(str(self.images(capture_id)), 0o711)
        return folder

    def renew_images(self, capture_id: str) -> None:
        """Remove what a dump that failed has left in the capture's folder."""
        images = self.images(capture_id)
        shutil.rmtree(images, ignore_errors=True)
        shutil.rmtree(self.base(capture_id), ignore_errors=True)
        files.make_folder(str(images), 0o711)

    def images(self, capture_id: str) -> Path:
        return self.folder / capture_id / "images"

    def terminal(self, capture_id: str) -> Path:
        return self.folder / capture_id / "terminal"

    def programs(self, capture_id: str) -> Path:
        return self.folder / capture_id / "programs.json"

    def memory(self, capture_id: str) -> Path:
        """The folder for the files of /dev/shm. `make` does not make it, since there may be no such files."""
        return self.folder / capture_id / "shm"

    def attached(self, capture_id: str, kind: str) -> Path:
        return self.folder / capture_id / "attached" / kind

    def base(self, capture_id: str) -> Path:
        """The folder for files of the base, which `make` does not make."""
        return self.folder / capture_id / "base"

    def base_contents(self) -> Path:
        """The folder with a link to each content in the folders `base`."""
        folder = self.folder / ".base"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def link(self, origin: str, capture_id: str) -> None:
        """Make the folder of a capture that has the same files as `origin`, as hard links: nobody writes to them."""
        target = self.folder / capture_id
        target.mkdir(mode=0o700)
        if (self.folder / origin).exists():
            programs.run("cp", "-a", "--link", "--no-target-directory", "--", self.folder / origin, target)

    def note_use(self, capture_id: str) -> None:
        """Note that the capture is used now, as the time of its folder, if it has one: that of an ended session lacks
        it.
        """
        now = time.time()  # the kernel's own time of a file may be some milliseconds earlier
        with contextlib.suppress(OSError):  # no folder; the disk is read-only
            os.utime(self.folder / capture_id, (now, now))

    def used_at(self, capture_id: str) -> float:
        """When the capture was used, in seconds since the epoch; 0 if it has no folder."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / capture_id).stat().st_mtime
        return 0.0

    def remove(self, capture_id: str) -> None:
        has_base = self.base(capture_id).exists()
        with contextlib.suppress(OSError):
            remove_path(self.folder / capture_id)
        if has_base:
            for content in self.base_contents().iterdir():
                with contextlib.suppress(OSError):
                    if content.stat().st_nlink == 1:  # no capture has it any more
                        content.unlink()

    def used_bytes(self, capture_id: str = "") -> int:
        """Return the bytes on disk of the capture's folder, 0 if there is none. With "", of all folders."""
        folder = self.folder / capture_id
        return filesystem.used_bytes(folder) if folder.exists() else 0

    def used_by_each(self) -> dict[str, int]:
        """The bytes on disk of each capture's folder, without the contents of files of the base, which captures share:
        about 1 ms per 1,000 files.
        """
        return filesystem.used_by_each(self.folder, apart=self.folder / ".base")

    def logs_bytes(self) -> int:
        return filesystem.used_bytes(self.logs)

    def keep_log(self, log: Path | None, name: str, uid: int) -> Path | None:
        """Move `log` to the folder of logs, which keeps the last _LOG_BYTES of the newest _KEPT_LOGS. Return its new
        path; None if there is no such file or no space for it. `uid`: the user of the session. The kept file belongs to
        this user, so that `read_log` knows the user; nobody but the home's owner can reach the file.
        """
        if log is None or not log.exists():  # CRIU failed before it opened its log
            return None
        kept = self.logs / name
        try:
            _shorten(log)
            shutil.move(log, kept)  # the log of a restore is on another file system: in the runtime folder
            os.chown(kept, uid, -1)
        except OSError as error:  # such as a full disk: it must not hide why CRIU failed
            _log.warning("cannot keep %s: %s", log, error)
            return None
        for old in sorted(self.logs.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT_LOGS]:
            old.unlink(missing_ok=True)
        return kept

    def read_log(self, name: str) -> tuple[int, str] | None:
        """The user of the session, and the kept log; None if there is no log of this name."""
        if name not in os.listdir(self.logs):  # so that no name leads out of the folder
            return None
        with contextlib.suppress(FileNotFoundError), (self.logs / name).open("rb") as file:
            return os.fstat(file.fileno()).st_uid, file.read().decode(errors="replace")
        return None

    def list(self) -> list[str]:
        return [folder.name for folder in self.folder.iterdir() if not folder.name.startswith(".")]


def _shorten(log: Path) -> None:
    """Keep only the last whole lines of the file, at most _LOG_BYTES."""
    with log.open("r+b") as file:
        if file.seek(0, os.SEEK_END) > _LOG_BYTES:
            file.seek(-_LOG_BYTES, os.SEEK_END)
            _, _, end = file.read().partition(b"\n")
            file.seek(0)
            file.write(end)
            file.truncate()
