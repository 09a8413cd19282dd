"""The folder for temporary files of tests, demo and bench: one for each checkout and user, which `./dev clean` removes.

It is in /var/tmp, because /tmp may be a tmpfs: too small for a pool and without direct I/O. `dev` imports this file, so
it uses the standard library only.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMP_PREFIX = "/var/tmp/waypoint-"
RUNTIME = Path("/run/waypoint")
STOCK_CRIU = ROOT / ".venv/criu-home/criu/bin/criu"
"""Debian's CRIU, for tests that compare with it, and where Waypoint's own cannot be built."""


def temp_root() -> Path:
    """Return the folder, which may not exist. Its path is short: that of a Unix socket has at most 107 bytes."""
    return Path(f"{_checkout_prefix()}{os.geteuid()}")


def temp_roots() -> list[Path]:
    """Return the folders of all users who used this checkout."""
    prefix = Path(_checkout_prefix())
    return sorted(prefix.parent.glob(f"{prefix.name}*"))


def _checkout_prefix() -> str:
    return f"{TEMP_PREFIX}{hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:6]}-"


def make_temp_root() -> Path:
    """Make the folder if it is missing. Raises PermissionError if another user made it."""
    root = temp_root()
    root.mkdir(mode=0o755, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.geteuid():
        raise PermissionError(f"{root} belongs to another user: remove it")
    return root


def home_id(home: Path) -> str:
    """Return the home's id, which docs/protocol.md, section 1, defines."""
    return hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:16]


def iter_homes(folder: Path, depth: int = 6) -> Iterator[Path]:
    """Yield all homes below `folder`. Does not search inside homes."""
    if (folder / "config.json").exists() and (folder / "names.db").exists():
        yield folder
    elif depth and folder.is_dir() and not folder.is_symlink():
        for child in sorted(folder.iterdir()):
            yield from iter_homes(child, depth - 1)


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points in `folder`, innermost first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    readable = [point.encode().decode("unicode_escape") for point in points]
    return sorted((point for point in readable if Path(point).is_relative_to(folder)), reverse=True)
