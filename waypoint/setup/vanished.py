"""Removing what homes that no longer exist have left in /run/waypoint. Without this it would stay until a reboot."""

import contextlib
import logging
import os
import time
from pathlib import Path

from waypoint.egress import keeper, router
from waypoint.launch.ground import homes
from waypoint.linux.storage import files
from waypoint.linux.storage.deep import remove_path
from waypoint.model.paths import RUNTIME, START_LOCK, SUPERVISOR_LOCK
from waypoint.setup.home_removal import end_groups, groups_of

YOUNG_S = 3600.0
"""A folder without the path of its home may be that of a home that is just being made, for so many seconds."""

log = logging.getLogger(__name__)


def remove_all() -> None:
    """Remove the runtime folders of homes that no longer exist, with their routers and cgroups. The folder of a home of
    which a process runs stays. Blocks.
    """
    for folder in Path(RUNTIME).iterdir():
        try:
            if folder.is_dir() and _is_vanished(folder):
                _remove(folder)
        except OSError as error:
            log.warning("%s, left by a home that was removed, stays: %s", folder, error)


def _is_vanished(folder: Path) -> bool:
    """Whether the home of the runtime folder no longer exists."""
    home = homes.noted(folder)
    if home is None:
        return time.time() - folder.stat().st_mtime > YOUNG_S
    return not os.path.lexists(home)


def _remove(folder: Path) -> None:
    """Remove the folder, unless a daemon or a session of its home runs or is just being started.

    A starting supervisor takes the start lock, then the supervisor's lock. If it had to wait for the start lock, it
    finds that the lock's file was removed, and makes the folder again.
    """
    groups = groups_of(folder.name)
    with contextlib.ExitStack() as locks:
        for name in (START_LOCK, SUPERVISOR_LOCK):
            try:
                locks.callback(os.close, files.lock(str(folder / name), wait=False))
            except BlockingIOError:
                return
        if not _is_vanished(folder) or any(keeper.runs_sessions(str(group)) for group in groups):
            return
        router.end(folder)
        end_groups(groups)
        remove_path(folder)
    log.info("removed %s, left by a home that was removed", folder)
