"""The hot area, `<home>/hot/<capture>/`: the parts of a capture that are stored as they were taken, so that a restore
needs no unpacking. Only the home's owner may read it: the memory of processes contains secrets.

```
images/       CRIU's images; in images/parent, memory that captures share as hard links (processes/copied_memory.py)
terminal/     ring, exec.json and queues of the session's runtime folder
base/         files of the base that the processes have open or mapped (layers/base_files.py)
programs.json the manifest of the programs that ran (tiers `live` and `respawn`)
shm/          the files of the session's /dev/shm; missing if there were none
attached/     by kind, what the user has attached (layers/attached.py)
```
`<home>/hot/.base/` has a link to each content in the folders `base`. `images` and `shm` of a new capture are symbolic
links to folders in `<home>/hot/.memory/<capture>/`, a tmpfs (hot_memory.py), until `move_to_disk` has replaced the
links by copies. If the machine stops before, the links lead nowhere.
"""

import contextlib
import errno
import logging
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from waypoint.capture.layers.hot_memory import HotMemory
from waypoint.capture.steps import Step, reach
from waypoint.linux.calls import programs
from waypoint.linux.storage import files, filesystem, renaming
from waypoint.linux.storage.deep import remove_path
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import Failed
from waypoint.model.paths import spelled

_KEPT_LOGS = 20
_LOG_BYTES = 1 << 20  # the end of a log is kept: CRIU's errors are there, and a detailed log may have many MiB
_LEFT_FREE = 16 << 20  # bytes of the disk that `move_to_disk` leaves free
_log = logging.getLogger(__name__)


class Hot:
    def __init__(self, home: Path) -> None:
        self.folder = home / "hot"
        self.logs = home / "criu-logs"
        for folder in (self.folder, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)
        self.memory_area = HotMemory(self.folder / ".memory")
        self._moving = self.folder / ".moving"

    def make(self, capture_id: str, memory_bytes: int | None = None) -> None:
        """Make the capture's folders. `memory_bytes`: what images and `shm` need at most: they are written to memory if
        there is room, until `release`; None: to the disk.
        """
        folder = self.folder / capture_id
        try:
            folder.mkdir(mode=0o700)
        except FileNotFoundError as error:
            stop = spelled(str(self.folder.parent), "daemon", "stop")
            next_step = f"restore the folder, or let the next daemon make an empty one: {stop}"
            raise Failed("capture into", str(self.folder), "the folder is gone", next_step) from error
        self.terminal(capture_id).mkdir(mode=0o700)
        images = self.images(capture_id)
        if memory_bytes is not None and self.memory_area.reserve(capture_id, memory_bytes):
            self._in_memory(capture_id).mkdir(mode=0o700)
            images = self._make_link(images)
        # 0711: only the folders above protect it, and a restore gets a descriptor of it (layers/processes.py).
        files.make_folder(str(images), 0o711)

    def release(self, capture_id: str) -> None:
        """End the reservation of memory by `make`, after the capture."""
        self.memory_area.release(capture_id)

    def work(self, capture_id: str) -> Path:
        """The folder in which CRIU writes its log and statistics: beside the images."""
        return self.images(capture_id).resolve().parent

    def renew_images(self, capture_id: str, *, to_disk: bool) -> None:
        """Remove what a dump that failed has left in the capture's folder. `to_disk`: the next one is written to the
        disk.
        """
        images = self.images(capture_id)
        shutil.rmtree(images.resolve(), ignore_errors=True)
        for folder in (self.base(capture_id), self.copied(capture_id)):
            shutil.rmtree(folder, ignore_errors=True)
        if to_disk and images.is_symlink():
            images.unlink()
        files.make_folder(str(images.resolve()), 0o711)

    def images(self, capture_id: str) -> Path:
        return self.folder / capture_id / "images"

    def copied(self, capture_id: str) -> Path:
        """The folder for copied memory until CRIU has dumped the processes."""
        return self.folder / capture_id / "copied"

    def terminal(self, capture_id: str) -> Path:
        return self.folder / capture_id / "terminal"

    def programs(self, capture_id: str) -> Path:
        return self.folder / capture_id / "programs.json"

    def memory(self, capture_id: str) -> Path:
        """The folder for the files of /dev/shm. `make` does not make it, since there may be no such files."""
        return self.folder / capture_id / "shm"

    def make_memory(self, capture_id: str) -> Path:
        """Make the folder `memory`, and return it."""
        folder = self.memory(capture_id)
        target = self._make_link(folder) if self._in_memory(capture_id).exists() else folder
        target.mkdir(mode=0o700)
        return folder

    def remove_memory(self, capture_id: str) -> None:
        """Remove the folder `memory`, if there is one."""
        folder = self.memory(capture_id)
        shutil.rmtree(folder.resolve(), ignore_errors=True)
        if folder.is_symlink():
            folder.unlink()

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
        for source, copy in (
            (self._in_memory(origin), self._in_memory(capture_id)),
            (self.folder / origin, target),
        ):
            if source.exists():
                programs.run("cp", "-a", "--link", "--no-target-directory", "--", source, copy)
        for part in target.iterdir():
            if part.is_symlink():
                part.unlink()
                self._make_link(part)

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
        for folder in (self._in_memory(capture_id), self.folder / capture_id):
            with contextlib.suppress(OSError):
                remove_path(folder)
        if has_base:
            for content in self.base_contents().iterdir():
                with contextlib.suppress(OSError):
                    if content.stat().st_nlink == 1:  # no capture has it any more
                        content.unlink()

    def used_bytes(self, capture_id: str = "") -> int:
        """Return the bytes of the capture in the hot area, also in memory; 0 if there is none. With "", of all."""
        folders = [self.folder / capture_id] + ([self._in_memory(capture_id)] if capture_id else [])
        found = sum(filesystem.used_bytes(folder) for folder in folders if folder.exists())
        return found if capture_id else found + self.memory_area.used_bytes()

    def used_by_each(self) -> dict[str, int]:
        """The bytes of each capture in the hot area, also in memory, without the contents of files of the base, which
        captures share: about 1 ms per 1,000 files.
        """
        found = filesystem.used_by_each(self.folder, apart=self.folder / ".base")
        if self.in_memory():
            area = self.memory_area.folder
            for name, size in filesystem.used_by_each(area, apart=area / ".base").items():
                found[name] = found.get(name, 0) + size
        return found

    def in_memory(self) -> set[str]:
        """The ids of the captures that have parts in memory."""
        return {*self.memory_area.list()}

    def is_lost(self, capture_id: str) -> bool:
        """Whether parts of the capture were in memory when the machine stopped."""
        parts = (self.images(capture_id), self.memory(capture_id))
        return any(part.is_symlink() and not part.exists() for part in parts)

    def move_to_disk(self, capture_id: str, may_remove: Callable[[], AbstractContextManager[bool]]) -> bool:
        """Copy the parts of a capture that are in memory to the disk, replace the links by the copies, and remove the
        parts from memory, if `may_remove`: whether nobody reads them, nor begins to in its `with` block. Returns
        whether they are removed. To be repeated after a failure, or a kill. Raises OSError, CalledProcessError.
        """
        source, scratch = self._in_memory(capture_id), self._moving / capture_id
        if not source.exists():
            return True
        remove_path(scratch)
        if filesystem.used_bytes(source) + _LEFT_FREE > filesystem.free_bytes(self.folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
        try:
            for part in (self.images(capture_id), self.memory(capture_id)):
                if not part.is_symlink():
                    continue
                files.make_folder(str(self._moving), 0o700)
                files.make_folder(str(scratch), 0o700)
                filesystem.copy_tree(part.resolve(), scratch / part.name)
                reach(Step.COPIED)
                _replace(scratch / part.name, part)
                reach(Step.SWITCHED)
        finally:
            remove_path(scratch)
        with may_remove() as may:
            if may:
                remove_path(source)
            return may

    def recover(self) -> None:
        """Remove what a killed daemon has left of copies. To be called once, before `move_to_disk`."""
        remove_path(self._moving)
        for capture_id in self.in_memory():
            folder = self.folder / capture_id
            if not folder.is_dir():  # somebody has removed it
                remove_path(self._in_memory(capture_id))
                continue
            for part in self._in_memory(capture_id).iterdir():
                if not os.path.lexists(folder / part.name):  # `_replace` could not exchange
                    self._make_link(folder / part.name)

    def _in_memory(self, capture_id: str) -> Path:
        return self.memory_area.folder / capture_id

    def _make_link(self, part: Path) -> Path:
        """Make the link `part` of a capture, and return the path in memory to which it leads."""
        target = self._in_memory(part.parent.name) / part.name
        part.symlink_to(os.path.relpath(target, part.parent))
        return target

    def logs_bytes(self) -> int:
        return filesystem.used_bytes(self.logs)

    def keep_log(self, log: Path | None, name: str, uid: int) -> Path | None:
        """Move `log` to the folder of logs, which keeps the last _LOG_BYTES of the newest _KEPT_LOGS. Return its new
        path; None if there is no such file or no space for it. `uid`: the user of the session. The kept file belongs to
        this user, so that `read_log` knows the user; nobody but the home's owner can reach the file.
        """
        if log is None or not log.exists() or not log.stat().st_size:  # CRIU failed before it wrote into its log
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


def _replace(new: Path, link: Path) -> None:
    """Replace a symbolic link by the folder `new`, atomically where the file system can."""
    with open_folder(new.parent) as new_fd, open_folder(link.parent) as link_fd:
        try:
            renaming.exchange(new_fd, new.name, link_fd, link.name)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            os.unlink(link.name, dir_fd=link_fd)
            os.rename(new.name, link.name, src_dir_fd=new_fd, dst_dir_fd=link_fd)


def _shorten(log: Path) -> None:
    """Keep only the last whole lines of the file, at most _LOG_BYTES."""
    with log.open("r+b") as file:
        if file.seek(0, os.SEEK_END) > _LOG_BYTES:
            file.seek(-_LOG_BYTES, os.SEEK_END)
            _, _, end = file.read().partition(b"\n")
            file.seek(0)
            file.write(end)
            file.truncate()
