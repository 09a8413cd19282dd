"""The hot area, `<home>/hot/<capture>/`: what of a capture lies on disk as it was taken, so that a restore needs no
unpacking. Only the owner of the home can look into it: memory is full of secrets.

```
images/       CRIU's images
terminal/     ring and exec.json of the session, as docs/protocol.md describes them
shm/          what was in its /dev/shm, if anything was
```
"""

import shutil
from pathlib import Path

_KEPT_LOGS = 20


class Hot:
    """One home's hot area. A capture's folder counts for nothing until the capture is on record."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "hot"
        self.logs = home / "criu-logs"
        for folder in (self.folder, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)

    def make(self, capture_id: str) -> Path:
        """Make the capture's folders. Raises OSError (ENOSPC)."""
        folder = self.folder / capture_id
        folder.mkdir(mode=0o700)
        for part in (self.images(capture_id), self.terminal(capture_id)):
            part.mkdir(mode=0o700)
        return folder

    def images(self, capture_id: str) -> Path:
        return self.folder / capture_id / "images"

    def terminal(self, capture_id: str) -> Path:
        return self.folder / capture_id / "terminal"

    def shm(self, capture_id: str) -> Path:
        """Where the shared memory would be; it is not made by `make`."""
        return self.folder / capture_id / "shm"

    def remove(self, capture_id: str) -> None:
        """Missing is fine."""
        shutil.rmtree(self.folder / capture_id, ignore_errors=True)

    def keep_log(self, log: Path, name: str) -> Path:
        """Move a log to where it stays readable; its new place. Of old ones only the last are kept."""
        if not log.exists():  # CRIU did not get so far
            return log
        kept = self.logs / name
        log.replace(kept)
        for old in sorted(self.logs.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT_LOGS]:
            old.unlink(missing_ok=True)
        return kept

    def sweep(self, known: set[str]) -> None:
        """Remove what captures left that were never on record."""
        for folder in self.folder.iterdir():
            if folder.name not in known:
                self.remove(folder.name)
