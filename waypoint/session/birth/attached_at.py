"""Bringing attached layers back to paths in a session, before its processes go on."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from waypoint.capture.attaching.attach_orders import PutBack
from waypoint.capture.attaching.attach_running import put_back
from waypoint.capture.captures import Held
from waypoint.capture.layers.attached import ATTACHED
from waypoint.linux.tasks import procfs
from waypoint.model.errors import UnknownName, UsageProblem
from waypoint.model.records import Capture, IdMap, Tier, User
from waypoint.processes.criu.options import Notice, OnNotice

PathsByKind = Mapping[str, str]


class Back(NamedTuple):
    """How much of a capture is brought back. `tier`: no more than that; None: all that there is. `attach_at`: by kind,
    to which paths of the session what is attached to it goes.
    """

    tier: Tier | None = None
    attach_at: Mapping[str, str] = {}


ALL_OF_IT = Back()


class Owner(NamedTuple):
    """Whose what is brought back will be. `ids`: the map of the session's ids."""

    user: User
    ids: IdMap


def check(origin: Capture, name: str, attach_at: PathsByKind) -> None:
    """Raise UnknownName if the capture that `name` stands for lacks one of these kinds, UsageProblem for a path that
    none can have.
    """
    found = ATTACHED.of(origin)
    for kind, path in attach_at.items():
        if kind not in found:
            said = f"it has {', '.join(sorted(found))}" if found else "nothing is attached to it"
            raise UnknownName("bring back", f"{kind} of {name}", said, f"see what it has: waypoint layer list {name}")
        first, *parts = path.split("/")
        if first or not parts or any(part in ("", ".", "..") or "\0" in part for part in parts):
            said = "it is no plain absolute path"
            raise UsageProblem("bring back", f"{kind} to {path!r}", said, "name one such as /srv/model")


def put_there(held: Held, attach_at: PathsByKind, pid: int, owner: Owner) -> None:
    """Write the layers, in place of what is at their paths, into the session whose pid 1 is `pid`. They belong to the
    session's user, as do the folders on the way that were missing. Blocks.

    Raises Failed, with nothing of the layer that failed at its path, and OSError.
    """
    root = procfs.open_root(pid)
    try:
        uid, gid = owner.ids.outside(owner.user.uid), owner.ids.outside(owner.user.gid)
        for kind, path in attach_at.items():
            source = str(held.attached / kind)
            disk = held.capture.setting.limits.disk
            put_back(PutBack(source=source, root_fd=root, path=path, uid=uid, gid=gid, ids=owner.ids, disk=disk))
    finally:
        os.close(root)


def before_they_run(hear: OnNotice, held: Held, attach_at: PathsByKind, user: User) -> OnNotice:
    """A listener for the restore of the processes of `held`: as `hear`, and then `put_there`, before any of them runs.
    `user`: the session's.
    """

    def hear_both(notice: Notice) -> None:
        hear(notice)
        if notice.stage == "post-restore" and notice.pid is not None:
            put_there(held, attach_at, notice.pid, Owner(user, held.processes.ids))

    return hear_both if attach_at else hear
