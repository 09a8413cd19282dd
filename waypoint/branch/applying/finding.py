"""Folders of the machine in which something changes: opened by their paths and, where somebody has moved one meanwhile,
by their handles.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress

from waypoint.linux.calls.handles import handle_of, open_handle
from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.upper.writing.content import NO_FOLDER, opened

Handle = tuple[int, bytes]


def enter(held: ExitStack, root: int, folder: bytes) -> int | None:
    """A descriptor of `folder` below `root`, until `held` ends; None if it is not there, or a link or a mount is in its
    place. Raises OSError.
    """
    try:
        return held.enter_context(opened(root, os.fsdecode(folder)))
    except OSError as error:
        if error.errno not in (*NO_FOLDER, errno.EXDEV):
            raise
        return None


def enter_all(held: ExitStack, root: int, folder: bytes, handle: Handle | None) -> Iterator[int]:
    """Descriptors of what may be the `folder` below `root`, until `held` ends: of what is at its path, then of what has
    its handle, if that is another one; where none can be opened by handles, the first alone.
    """
    fd = enter(held, root, folder)
    if fd is not None:
        yield fd
    if handle is not None and (fd is None or handle_of(fd) != handle):
        with suppress(OSError):  # it is gone, or whoever does this may not open by handles
            yield _enter_by_handle(held, root, handle)


def is_accounted_for(root: int, folder: bytes, handle: Handle | None) -> bool:
    """Whether `enter_all` finds the folder, or it is known to be gone."""
    with ExitStack() as held:
        if enter(held, root, folder) is not None:
            return True
        try:
            return handle is not None and _enter_by_handle(held, root, handle) >= 0
        except OSError as error:
            return error.errno == errno.ESTALE


def _enter_by_handle(held: ExitStack, root: int, handle: Handle) -> int:
    """A descriptor of the folder with this handle, until `held` ends. Raises OSError: ESTALE if there is none."""
    place = open_handle(root, *handle)
    try:
        return held.enter_context(open_folder(beneath.name_of(place)))
    finally:
        os.close(place)
