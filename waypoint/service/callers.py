"""Who is at the other end of a connection, as the operation log names callers."""

import contextlib

from waypoint.linux.tasks import procfs
from waypoint.model.records import Caller, Login
from waypoint.service.shapes import Peer
from waypoint.store.callers import asked_by


def serving(peer: Peer, branch: str | None) -> contextlib.AbstractContextManager[None]:
    """Note `peer` as the caller of all operations in the `with` block. `branch`: the branch that the peer works on,
    None: no branch in particular.
    """
    return asked_by(Caller(uid=peer.uid, login=_login_of(peer.pid), branch=branch))


def showing(peer: Peer) -> contextlib.AbstractContextManager[None]:
    """As `serving`, for what leaves nothing in the operation log: where the peer was logged in is not looked up."""
    return asked_by(Caller(uid=peer.uid))


def _login_of(pid: int) -> Login | None:
    """The process session (setsid(2)) of process `pid`, which all processes of its terminal share; None if it cannot be
    found.
    """
    with contextlib.suppress(ProcessLookupError):
        leader = procfs.stat(pid).session
        return Login(pid=leader, start=procfs.start_ticks(leader)) if leader > 0 else None
    return None
