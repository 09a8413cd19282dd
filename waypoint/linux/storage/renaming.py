"""Renaming without replacing (renameat2(2))."""

import os

from waypoint.linux.calls import libc

_NOREPLACE, _EXCHANGE = 1, 2


def rename_new(folder: int, name: str, to_folder: int, to_name: str) -> None:
    """Rename `name` in the folder `folder`. Raises FileExistsError if `to_name` exists."""
    _rename(folder, name, to_folder, to_name, _NOREPLACE)


def exchange(folder: int, name: str, other_folder: int, other_name: str) -> None:
    """Exchange two existing entries, atomically. Raises OSError (EINVAL) if the file system cannot."""
    _rename(folder, name, other_folder, other_name, _EXCHANGE)


def _rename(folder: int, name: str, to_folder: int, to_name: str, flags: int) -> None:
    libc.call("renameat2", folder, os.fsencode(name), to_folder, os.fsencode(to_name), flags, path=name)
