"""SQLite's errors as Waypoint's errors: damage of the database (StoreDamaged), or a state of the machine (Failed).

SQLite also reports a full disk as "disk I/O error" and an unreadable disk as "malformed", without the kernel's errno.
So this module tries to write or read the file, to get the errno.
"""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from waypoint.linux.storage import files
from waypoint.model.errors import DISK_FAILED, READ_ONLY, Failed, StoreDamaged, WaypointError, of_machine
from waypoint.model.paths import spelled

# SQLite needs 32 KiB for its shared index when it opens a file, and 4 KiB for each page that it writes.
ROOM_BYTES = 128 << 10

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_MACHINE = (
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOLFS),
)
_PRIMARY = 0xFF  # the bits of an extended error code that contain the primary code (sqlite.org/rescode.html)

_FREE_SOME = "free some disk space there; no data is lost"
_NEXT_STEPS = {
    errno.ENOSPC: _FREE_SOME,
    errno.EDQUOT: _FREE_SOME,
    errno.EROFS: READ_ONLY,
    errno.EIO: DISK_FAILED,
}


@contextlib.contextmanager
def sqlite_errors(tried: str, path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the kernel in the `with` block into StoreDamaged or Failed. `path`: the database.

    An error that is neither damage nor a state of the machine is a bug, and is raised unchanged.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        problem = _problem(error, tried, path)
        if problem is None:
            raise
        raise problem from error
    except OSError as error:
        raise _failed(tried, path, error) from error


def damaged(tried: str, path: Path, said: str) -> StoreDamaged:
    """The error for a database whose content is not what Waypoint wrote. No capture is lost by its next step: see
    capture/sweeping.py.
    """
    next_step = (
        f"replace it by a copy from a backup, or {how_to_move_away(path)}; until a gc, captures and running sessions "
        "are kept, and are listed again when the file is back"
    )
    return StoreDamaged(tried, str(path), said, next_step)


def how_to_move_away(path: Path) -> str:
    """The part of a next step that moves the database `path` away with its logs."""
    away = f"{path.parent}/names-kept"
    return f"move {path.name} away with its logs: 'mkdir {away} && mv {path}* {away}/'"


def damaged_record(what: str, path: Path, said: str) -> StoreDamaged:
    """The error for one record of the database that is not what Waypoint wrote.

    `what`: the thing that the record describes. `said`: what is wrong, without quoting the record.
    """
    next_step = (
        f"after '{spelled(str(path.parent), 'daemon', 'stop')}', replace {path} by a copy from a backup; until then "
        "only commands that need this record fail"
    )
    return StoreDamaged("read", f"{what} of the home {path.parent}", f"its record is damaged: {said}", next_step)


def _problem(error: sqlite3.DatabaseError, tried: str, path: Path) -> WaypointError | None:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY
    if code in _DAMAGED:
        unread = files.refusal_to_read(str(path), f"{path}-wal")
        return damaged(tried, path, str(error)) if unread is None else _failed(tried, path, unread)
    if code in _BUSY:
        next_step = f"end the program that uses it ('fuser {path}' lists it beside the daemon, {os.getpid()})"
        return Failed(tried, str(path), f"another program uses it: {error}", next_step, code="busy")
    if code in _MACHINE:
        refused = files.refusal_to_write(str(path), ROOM_BYTES)
        if refused is not None:
            return _failed(tried, path, refused)
        if code == sqlite3.SQLITE_FULL:
            return Failed(tried, str(path), str(error), _FREE_SOME, code="disk-full")
        said = f"{error} ({getattr(error, 'sqlite_errorname', code)})"
        return Failed(tried, str(path), said, f"see the kernel's log (dmesg) and 'ls -la {path.parent}'")
    return None


def _failed(tried: str, path: Path, error: OSError) -> Failed:
    usual = f"see who may write there ('ls -la {path.parent}', 'lsattr {path}')"
    next_step = _NEXT_STEPS.get(error.errno or 0, usual)
    return Failed(tried, str(path), error.strerror or str(error), next_step, code=of_machine(error.errno))
