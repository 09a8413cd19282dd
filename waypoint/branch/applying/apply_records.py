"""What is ordered of the program that changes the machine's files, what it answers, and what its journal says.

Paths are relative to the root of the mount that they lie on (a *place*). They are bytes in the journal, since a name
may be any.
"""

import msgspec

from waypoint.upper.writing.file_marks import Attributes, FileMark


class ApplyPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A mount of the session that has changes. `target`: where it is in the session. `upper`: the path of its upper
    directory. `machine`: the path of the folder of the machine that it shows, without links; "": that is not there any
    more. `hidden`: the folders below it, by their path in the session, that are none of the machine's: the session's
    own, its binds, Waypoint's homes.
    """

    target: str
    upper: str
    machine: str
    hidden: list[str]


class ApplyOrder(msgspec.Struct, frozen=True, kw_only=True, tag="apply"):
    """Put what is in uppers onto the machine. Answered by ApplyOutcome.

    `journals`: the folder of all journals. `ident`: of the new one. `branch`: for people. `since_ns`: files of the
    machine that were changed later than this, in nanoseconds since the epoch, are not what the session has seen.
    `chosen`: absolute paths in the session; empty: all. `absent`: those of them that the machine does not have. `seen`:
    the journals of changes that the session has made before, so what they have left is what it has seen; `reverts`:
    those of changes that took others back, the earliest first. `dry_run`: only make the plan. `force`: also what was
    changed on the machine since; the journal keeps what it has.
    """

    journals: str
    ident: str
    branch: str
    places: list[ApplyPlace]
    since_ns: int
    chosen: list[str]
    seen: list[str]
    reverts: list[str]
    dry_run: bool
    absent: list[str] = []
    force: bool = False


class RevertOrder(msgspec.Struct, frozen=True, kw_only=True, tag="revert"):
    """Take back what the journal `of` has done. `later`: the journals of the reverts that were done after that, the
    earliest first. `force`: also where the machine's files were changed since; the new journal keeps what they have.
    Answered by ApplyOutcome.
    """

    journals: str
    ident: str
    branch: str
    of: str
    later: list[str]
    dry_run: bool
    force: bool = False


class RecoverOrder(msgspec.Struct, frozen=True, kw_only=True, tag="recover"):
    """See to journals whose work was broken off: finish it if it is in `recorded`, the ids of journals in the operation
    log, and take it back otherwise. Answered by Recovered.
    """

    journals: str
    recorded: list[str]


MachineOrder = ApplyOrder | RevertOrder | RecoverOrder


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the plan, or a conflict. `path`: in the session. `said`: in words. `gives_way`: the machine has
    changed it since, and an order with `force` has it replaced.
    """

    path: str
    said: str
    gives_way: bool = False


class ApplyOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """`files`: how many changes the plan has, `changes` the first MOST_LINES of them, `setid` all files that get rights
    of another user, as far as MOST_LINES go. `conflicts`: likewise the first, of `conflicts_total`: if there are any,
    nothing was done. `fixed`: how many of them stand in the way of an order with `force`, too. `replaced`: the first
    MOST_LINES paths of what was changed since, and is replaced all the same.
    """

    files: int
    changes: list[Line]
    setid: list[str]
    conflicts: list[Line]
    conflicts_total: int
    fixed: int = 0
    replaced: list[str] = []


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """`taken_back`, `finished`: the ids of journals. `unrecorded`: ids and branches of those that are finished, and
    that the operation log has lost (a power loss). `failed`: in words, what could not be seen to.
    """

    taken_back: list[str]
    finished: list[str]
    unrecorded: list[tuple[str, str]]
    failed: list[str]


MOST_LINES = 1000


class Action(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A name in a folder of the machine gets something else (`puts`), or nothing.

    `place`: the number of the place. `before`: what has the name now, None: nothing. `upper`, `lower`: where its
    content is, in the upper directory and, of a folder that the session has moved, on the machine. `kept`: or the
    number of the action of another journal (`Plan.of`) that has kept it. `digest`: of what has the name now, if it is
    what an earlier change has put there, and that is known (`Waiting.digest`).
    """

    place: int
    folder: bytes
    name: bytes
    puts: bool
    before: FileMark | None
    upper: bytes | None = None
    lower: bytes | None = None
    kept: int | None = None
    digest: bytes = b""


class FolderChange(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A folder of the machine that stays, in which names change, or whose attributes do. `handle`: its kind and its
    handle (linux/calls/handles.py), by which it is found where somebody has moved it; None where there are none, and in
    journals of earlier versions.
    """

    place: int
    folder: bytes
    before: Attributes
    wanted: Attributes
    handle: tuple[int, bytes] | None = None


class ApplyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`machines`: the machine's folder of each place; `targets`: where a session has it. `of`: the journal that this
    one takes back, "": none.
    """

    ident: str
    branch: str
    machines: list[str]
    targets: list[str]
    actions: list[Action]
    folders: list[FolderChange]
    of: str = ""


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """What waits beside its place. `inode`: of what is to be put, 0: nothing. `is_copied`: what was there before is in
    the journal's folder already, since it cannot be moved there. `digest`: of what is to be put
    (upper/writing/whole_digest.py); b"" if that is not known, as in journals of earlier versions.
    """

    inode: int
    is_copied: bool
    digest: bytes = b""
