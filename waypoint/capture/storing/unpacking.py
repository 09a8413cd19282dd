"""Unpacking container images, in the store's own process."""

import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager

from waypoint.capture.storing.orders import Unpack, Unpacked
from waypoint.linux.storage import access
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import NotAllowed, UsageProblem
from waypoint.store.oci.image import Source, unpack_oci


def unpack(order: Unpack, on_progress: Callable[[int], None]) -> Unpacked:
    """Carry out the order. Raises WaypointError."""
    user = order.user

    def as_user() -> AbstractContextManager[None]:
        return access.as_user(user.uid, user.gid, user.groups)

    fd = _opened(order.path, as_user)
    try:
        with open_folder(order.target) as target:
            scratch = os.path.dirname(order.target)
            found = unpack_oci(Source(fd, order.path, as_user), target, scratch, on_progress=on_progress)
    finally:
        os.close(fd)
    return Unpacked(config=found.config, left_out=found.degraded)


def _opened(path: str, as_user: Callable[[], AbstractContextManager[None]]) -> int:
    tried = "create a base from"
    try:
        with as_user():
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError as error:
        raise NotAllowed(tried, path, error.strerror or "", "let root run the command") from error
    except OSError as error:
        raise UsageProblem(tried, path, error.strerror or "", "name another path") from error
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return fd
    os.close(fd)
    raise UsageProblem(tried, path, "it is neither a file nor a directory", "name another path")
