"""Requests of the control interface, as typed records: bodies and, as `...Query`, queries. Unknown fields are refused.

The daemon decodes requests into these records and makes its OpenAPI document from them. The client, which must
start fast, does not import this module. The answers are in `waypoint.model.facts`.
"""

from typing import Annotated, Literal

import msgspec

from waypoint.model.records import Allowance, Tier

MAX_NUMBER = (1 << 63) - 1
"""The largest number that names.db can hold (sqlite.org/datatype3.html)."""

MAX_SECONDS = 10**9

Cells = Annotated[int, msgspec.Meta(ge=0, le=65535)]
"""Rows or columns of a terminal, as the kernel holds them (struct winsize)."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]

Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]

Processors = Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)]

Net = Literal["private", "host", "none"]

FolderName = Annotated[str, msgspec.Meta(max_length=4096)]
"""The path of a folder that is asked for; the kernel takes none that is longer."""

VariableName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
"""A name that a shell takes for a variable's."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all request bodies."""


class ProfileTestRequest(Request, frozen=True):
    """`text`: a profile that is tried, called `name`. `branch`: the session whose processes are compared."""

    name: str = ""
    text: str | None = None
    branch: str | None = None


class StartRequest(Request, frozen=True):
    """`user`, `cwd` and `shell` are what is asked for. `default_user`, `default_cwd` and `default_shell` are the
    caller's: they are used where nothing is asked for, if they can be used. `shell`: a path or a name. `allow`: what
    the session may do beyond the usual (records.py). `net`: `from` is that of `from_name`; null: that of the branch,
    else `private`. `allow_net`: names and networks, the only ones that it may reach.
    `publish`: ports that lead into it, `[IP:]HOST:INNER[/udp]`; `none`: those of the branch no more. `tier`: what
    is brought back of the capture is no more than one of this tier keeps.
    `memory` and `disk` are in bytes, `cpus` in processors, `pids` in processes and threads. `to_attach`: the caller
    attaches next, naming the session; if it has ended by then, it is shown all the same.
    """

    branch: str
    from_name: str | None = None
    base: str | None = None
    binds: list[str] = []
    net: Net | Literal["from"] | None = None
    user: str | None = None
    default_user: str | None = None
    cwd: FolderName | None = None
    default_cwd: str | None = None
    shell: str | None = None
    default_shell: str | None = None
    env: dict[str, str] = {}
    rows: Cells = 24
    cols: Cells = 80
    command: list[str] = []
    allow: list[Allowance] = []
    allow_net: list[str] = []
    publish: list[str] = []
    tier: Tier | None = None
    memory: Count | None = None
    cpus: Processors | None = None
    pids: Count | None = None
    disk: Count | None = None
    to_attach: bool = False


class StopRequest(Request, frozen=True):
    """`checkpoint`: the name of a checkpoint to be made before the session ends."""

    discard: bool = False
    checkpoint: str | None = None


class StopsRequest(Request, frozen=True):
    """`whole`: end none if a branch has no session, or one that the caller may not end."""

    branches: list[str]
    discard: bool = False
    whole: bool = False


class CheckpointRequest(Request, frozen=True):
    """`tier`: `auto` is `live` if the processes can be dumped, else `respawn`; with `park` it is `live`, of all of them
    unless `lose_processes`. `wait`: answer when the capture is durable in the store.
    """

    name: str
    message: str = ""
    tier: Literal["auto", "live", "respawn", "files"] = "auto"
    force: bool = False
    park: bool = False
    lose_processes: bool = False
    wait: bool = False


class IncomingLayer(Request, frozen=True):
    """A layer that is to be attached. `stamp`: a text by which the client will know the same file or folder again, if
    nobody has changed it; "": none. `same`: it is the one of this kind and stamp that the branch's last capture has,
    and no parcel of it comes.
    """

    kind: Annotated[str, msgspec.Meta(max_length=100)]
    stamp: Annotated[str, msgspec.Meta(max_length=64)] = ""
    same: bool = False


IncomingLayers = Annotated[list[IncomingLayer], msgspec.Meta(min_length=1, max_length=32)]


class AttachedCheckpointRequest(Request, frozen=True):
    """The first line of a body; a parcel of each layer follows, in their order (docs/protocol.md, section 6)."""

    checkpoint: CheckpointRequest
    layers: IncomingLayers


class LayersRequest(Request, frozen=True):
    """The first line of a body, as of AttachedCheckpointRequest: what is attached to a capture that is there."""

    layers: IncomingLayers


AttachAt = Annotated[dict[str, FolderName], msgspec.Meta(max_length=32)]


class RestoreRequest(Request, frozen=True):
    """`name`: a checkpoint, a branch, a capture's id or a unique prefix of one. `lose_processes`: of a session that is
    replaced, as much is kept as can be; otherwise a session of which a process cannot be kept is not replaced.
    `tier`: as in StartRequest. `attach_at`: by kind, the paths in the session to which what is attached goes.
    """

    name: str
    only: Literal["files", "shell"] | None = None
    tier: Tier | None = None
    lose_processes: bool = False
    attach_at: AttachAt = {}


class ForkRequest(Request, frozen=True):
    """Either `branches`, or `count` of them, named `<prefix>-1` and so on (`prefix`: default `name`). `tier`: as in
    StartRequest. `attach_at`: as in RestoreRequest.
    """

    name: str
    branches: list[str] = []
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    prefix: str | None = None
    tier: Tier | None = None
    attach_at: AttachAt = {}


class RenameRequest(Request, frozen=True):
    to: str


class RemoveRequest(Request, frozen=True):
    names: Annotated[list[str], msgspec.Meta(min_length=1)]


class UndoRequest(Request, frozen=True):
    """`number`: the number of the operation; null: the last operation that was not taken back yet, of `branch`, or if
    that is null too, of the caller. `dry_run`: only tell what would be taken back, and what would not come back.
    `lose_processes`: as for a restore, of all sessions that the undo replaces or ends. `force`: of an apply, also files
    that somebody has changed since; the undo's own journal keeps what they have.
    """

    number: Count | None = None
    branch: str | None = None
    dry_run: bool = False
    lose_processes: bool = False
    force: bool = False


class GcRequest(Request, frozen=True):
    """`keep_operations_s`: operations of so many last seconds can be taken back afterwards; null: as long as the home's
    setting says. `dry_run`: only tell what would be removed. `keep_...`: of each branch's history so many captures are
    kept besides (branch/keeping_policy.py).
    """

    keep_operations_s: Seconds | None = None
    dry_run: bool = False
    keep_last: Count | None = None
    keep_hourly: Count | None = None
    keep_daily: Count | None = None
    keep_weekly: Count | None = None
    keep_monthly: Count | None = None


class VerifyRequest(Request, frozen=True):
    """`read_data`: read all that the store has, not only what tells of it."""

    read_data: bool = False


class DiffRequest(Request, frozen=True):
    """What `one` and `other`, which are names, differ in. `other` null: what is now on the branch that the capture
    `one` was taken on; of a branch, `one` with what is under it. `machine`: `one` with what is under it, whatever
    it is. `only`: absolute paths, at or below which it is wanted. `patch`: with the content of text files.
    """

    one: str
    other: str | None = None
    machine: bool = False
    only: list[str] = []
    patch: bool = False


MOST_PATHS = 1024  # that may be chosen at once
MOST_NAMES = 256  # whose usage may be asked for at once: each is a walk over all files of a capture


class EvictRequest(Request, frozen=True):
    """`names`: checkpoints, branches or ids of captures. `all`: all captures in the store."""

    names: Annotated[list[str], msgspec.Meta(max_length=MOST_NAMES)] = []
    all: bool = False


class ApplyRequest(Request, frozen=True):
    """`name`: a branch, a checkpoint, a capture's id or a unique prefix of one. `paths`: absolute paths in the session;
    only what is at or below them is applied; none: everything. `dry_run`: only tell what would be done. `force`: also
    where the machine has changed since; the operation keeps what it has.
    """

    name: str
    paths: Annotated[list[FolderName], msgspec.Meta(max_length=MOST_PATHS)] = []
    dry_run: bool = False
    force: bool = False


class CallersRequest(Request, frozen=True, kw_only=True):
    """Base of the requests that go on with a live session. `user`: whose session it must be. `default_user`: who asks,
    if that is not the connection's user. Without `user` the session must be the asker's, if the asker is not root.
    """

    user: str | None = None
    default_user: str | None = None


class AttachRequest(CallersRequest, frozen=True):
    """`session`: the id of the one that the client has started for this (`StartRequest.to_attach`), or ""."""

    rows: Cells = 24
    cols: Cells = 80
    session: str = ""


class ExecRequest(CallersRequest, frozen=True):
    """Either `text` (a new command) or `resume` and `offset` (go on with a command whose stream was cut).

    `id`: an id that the client has chosen for the command. If the client repeats the request with the same id after a
    cut, the daemon goes on with the command, if it has begun, and never runs it twice.

    `rows` and `cols`: with `tty` the size of the client's window, which the terminal has before the command begins;
    zeros: unknown, the terminal's size stays.

    `cwd` and `env`: folder and variables for this command alone. With them the command runs in a subshell.
    """

    text: str = ""
    tty: bool = False
    stdin: bool = False
    rows: Cells = 0
    cols: Cells = 0
    timeout_s: Seconds | None = None
    wait_prompt_s: Seconds = 5.0
    cwd: FolderName | None = None
    env: dict[VariableName, str] = {}
    id: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{16})?$")] = ""
    resume: str | None = None
    offset: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)] = 0


class RunRequest(CallersRequest, frozen=True, kw_only=True):
    argv: Annotated[list[str], msgspec.Meta(min_length=1)]
    tty: bool = False
    stdin: bool = False
    rows: Cells = 24
    cols: Cells = 80
    cwd: FolderName | None = None
    env: dict[str, str] = {}


class LogsRequest(Request, frozen=True):
    """`session`, `position`, `offset`: where a stream that was cut goes on: so many bytes behind its last note."""

    follow: bool = False
    session: str = ""
    position: Annotated[int, msgspec.Meta(ge=0)] = 0
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0


class FileRequest(Request, frozen=True):
    """`path`: of a file or folder, percent-encoded, so that it can have any bytes. A relative one begins in the folder
    in which the session starts.
    """

    path: Annotated[str, msgspec.Meta(max_length=3 * 4096)]


class MountRequest(Request, frozen=True):
    """`name`: what stands for a capture. `folder`: where its files are mounted: an absolute path of the machine's."""

    name: str
    folder: FolderName


class SessionsQuery(Request, frozen=True):
    """`all`: also the branches that could be started again."""

    all: bool = False


class LogQuery(Request, frozen=True):
    """`name`: where to go back from, default `main`. `all`: every capture instead."""

    name: str | None = None
    all: bool = False
    limit: Count | None = None


class ExportRequest(Request, frozen=True):
    """`alone`: without the images that it goes on from. `key`: the content of a file with a private key, which signs
    it. `passphrase`: what it is encrypted with.
    """

    name: str
    alone: bool = False
    key: Annotated[str, msgspec.Meta(max_length=1 << 16)] = ""
    passphrase: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class ImportRequest(Request, frozen=True):
    """`name`: what the checkpoint is to be called; null: as the export says. `signer`: the content of a file with the
    public key of who must have signed it. `trust`: also if what is in it reaches out of its sessions.
    """

    name: str | None = None
    signer: Annotated[str, msgspec.Meta(max_length=1 << 16)] = ""
    passphrase: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    trust: bool = False


class DuQuery(Request, frozen=True):
    """`names`: of which captures and live branches, at most MOST_NAMES, separated by spaces (no name has one in it);
    null: of all.
    """

    names: str | None = None


class OperationsQuery(Request, frozen=True):
    limit: Count | None = None
