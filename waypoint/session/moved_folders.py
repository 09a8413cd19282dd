"""Folders of the machine that a session has renamed: overlayfs only notes where their content lies on the machine.

An apply moves such a folder on the machine, too, so the session would lose the content. Before an apply a running
session gets copies of it.
"""

import contextlib
import os
from collections.abc import Sequence

from waypoint.linux.storage import beneath, deep, idmapped
from waypoint.linux.tasks import procfs
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.session.views import scope_of
from waypoint.upper import layout
from waypoint.upper.views import candidates


def copy_content(resources: Resources, live: LiveSession, paths: Sequence[str]) -> None:
    """Copy the content of moved folders at or below `paths` into the session's upper directory. Blocks.

    The session runs meanwhile; a folder that it changes at this moment may be left out. Raises OSError (disk full).
    """
    setting, tree = live.record.row.setting, resources.pool.path(live.record.row.tree)
    for target in live.record.overlays:
        scope = scope_of(resources.places, setting, target, paths)
        upper = layout.upper_of(tree, target)
        found = candidates(upper, "", scope.concerns) if scope is not None else []
        moved = [one.path for one in found if one.source]
        if moved:
            live.rested = None
            with resources.writing(), procfs.opened_mount(live.record.init_pid, target, "overlay") as root:
                for path in moved:
                    _copy_up(root, path, live.record.ids.first)


def _copy_up(root: int, path: str, user: int) -> None:
    """Make overlayfs copy all files below the folder into the upper directory, by setting their times anew."""
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        idmapped.acting_as(user, user),
        beneath.parent_of(root, path) as (folder, name),
    ):
        for visit in deep.walk(folder, name):
            for entry in (*visit.others, *visit.folders):
                with contextlib.suppress(FileNotFoundError):  # the session has just removed it
                    facts = os.stat(entry, dir_fd=visit.fd, follow_symlinks=False)
                    times = facts.st_atime_ns, facts.st_mtime_ns
                    os.utime(entry, ns=times, dir_fd=visit.fd, follow_symlinks=False)
