"""The peer of a connection as the caller of operations."""

import contextlib

from waypoint.linux.tasks import procfs
from waypoint.model.records import Caller, Login
from waypoint.records.callers import asked_by
from waypoint.service.shapes import Peer


def serving(peer: Peer, branch: str | None) -> contextlib.AbstractContextManager[None]:
    """Make `peer` the caller of the `with` block. `branch`: the branch that the peer works on; None: no branch."""
    return asked_by(Caller(uid=peer.uid, login=_login_of(peer.pid), branch=branch))


def showing(peer: Peer) -> contextlib.AbstractContextManager[None]:
    """Make `peer` the caller, without login and branch: for requests that write nothing to the operation log."""
    return asked_by(Caller(uid=peer.uid))


def _login_of(pid: int) -> Login | None:
    """The process session (setsid(2)) of process `pid`, which all processes of its terminal share; None if the process
    has ended.
    """
    with contextlib.suppress(ProcessLookupError):
        leader = procfs.stat(pid).session
        return Login(pid=leader, start=procfs.start_ticks(leader)) if leader > 0 else None
    return None
