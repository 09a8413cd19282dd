"""Giving files and folders other names in one step, with renameat2(2).

Names are looked up in folders that are open; a link at a name is renamed itself. Nothing leads from one mount to
another: OSError EXDEV.
"""

import os

from waypoint.linux.calls import libc

_NO_REPLACE, _EXCHANGE = 1, 2  # RENAME_*


def rename_new(source_fd: int, source: str, target_fd: int, target: str) -> None:
    """Rename `source` in the folder `source_fd` to `target` in the folder `target_fd`, where nothing may have that
    name. Raises OSError: FileExistsError.
    """
    _rename(source_fd, source, target_fd, target, _NO_REPLACE)


def exchange(source_fd: int, source: str, target_fd: int, target: str) -> None:
    """Let two files or folders have each other's name. Raises OSError."""
    _rename(source_fd, source, target_fd, target, _EXCHANGE)


def _rename(source_fd: int, source: str, target_fd: int, target: str, flags: int) -> None:
    libc.call("renameat2", source_fd, os.fsencode(source), target_fd, os.fsencode(target), flags, path=target)
