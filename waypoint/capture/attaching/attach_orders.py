"""What the program that moves attached layers is told, and what it answers."""

import msgspec

from waypoint.model.details.attached_records import AttachedLayer
from waypoint.model.records import IdMap


class Incoming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A layer that is to be attached. `stamp`: as in AttachedLayer. `earlier`: the folder of a layer that is the same
    one, and is shared. `path`: of a session, where it is. With neither its parcel comes.
    """

    kind: str
    stamp: str = ""
    earlier: str = ""
    path: str = ""


class SessionSide(msgspec.Struct, frozen=True, kw_only=True):
    """The session whose files are attached: a descriptor of its root, the map of its ids, and the devices (st_dev) of
    what is a view of the kernel's there. They are opened with the rights of the user `uid`, `gid`, `groups`, the host's
    ids; None: nobody else has any (without root).
    """

    root_fd: int
    ids: IdMap
    views: list[int]
    user: tuple[int, int, list[int]] | None


class TakeIn(msgspec.Struct, frozen=True, kw_only=True, tag="take in"):
    """Take layers in, into `folder`, which is there: a parcel of each comes on stdin, in their order. At least
    `floor_bytes` of the disk stay free. `side`: of layers with a path. Answered by TakenIn.
    """

    folder: str
    layers: list[Incoming]
    floor_bytes: int
    side: SessionSide | None = None


class TakenIn(msgspec.Struct, frozen=True, kw_only=True):
    """By kind."""

    layers: dict[str, AttachedLayer]


class PutBack(msgspec.Struct, frozen=True, kw_only=True, tag="put back"):
    """Write the layer in the folder `source` to `path` below the folder behind the descriptor `root_fd`, in place of
    what is there, without following a link. It, and folders on the way that are missing, are to belong to `uid` and
    `gid`, the host's ids. `ids`: the map of the session. `disk`: the limit of the session's files in bytes, None: it
    has none. Answered by PutThere.
    """

    source: str
    root_fd: int
    path: str
    uid: int
    gid: int
    ids: IdMap
    disk: int | None = None


class PutThere(msgspec.Struct, frozen=True, kw_only=True):
    """All of the layer is there."""


AttachOrder = TakeIn | PutBack
AttachOutcome = TakenIn | PutThere
