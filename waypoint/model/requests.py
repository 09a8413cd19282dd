"""Requests of the API as typed records: bodies and, as `...Query`, queries. Unknown fields are refused.

The daemon decodes requests into these records and makes its OpenAPI document from them. The client does not import this
module, to start fast. Answers: `waypoint.model.facts`.
"""

from typing import Annotated, Literal

import msgspec

from waypoint.model.records import Allowance, Conversation, LayerKind

MAX_NUMBER = (1 << 63) - 1
"""The largest number that names.db can hold (sqlite.org/datatype3.html)."""

MAX_SECONDS = 10**9

Cells = Annotated[int, msgspec.Meta(ge=0, le=65535)]
"""Rows or columns of a terminal (struct winsize)."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]

Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]

Processors = Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)]

WantedTier = Literal["auto", "live", "respawn", "files"]

VariableName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?![\s\S])")]
"""A valid name of a shell variable."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all request bodies."""


class StartRequest(Request, frozen=True):
    """If `user`, `cwd` or `shell` cannot be used, the start fails. `default_user`, `default_cwd` and `default_shell`
    are those of the caller; they are used if the former are missing, and ignored if they cannot be used. `shell`: a
    path or a name. `default_branch`: as in CallersRequest. `allow_net`: the only names and networks that the session
    can reach. `memory` and `disk` are in bytes, `cpus` in processors, `pids` in processes and threads. `auto`: make
    points at prompts. `idle_park`, `ttl`: park the session when nobody has used it for so many seconds, and so many
    seconds after its start; 0: never. `publish`: ports, as `[ADDRESS:]HOST:SESSION`.
    """

    branch: str
    from_name: str | None = None
    base: str | None = None
    binds: list[str] = []
    net: Literal["private", "host", "none"] | None = None
    user: str | None = None
    default_user: str | None = None
    default_branch: bool = False
    cwd: str | None = None
    default_cwd: str | None = None
    shell: str | None = None
    default_shell: str | None = None
    env: dict[str, str] = {}
    rows: Cells = 24
    cols: Cells = 80
    command: list[str] = []
    allow: list[Allowance] = []
    allow_net: list[str] = []
    memory: Count | None = None
    cpus: Processors | None = None
    pids: Count | None = None
    disk: Count | None = None
    auto: bool = False
    idle_park: Seconds | None = None
    ttl: Seconds | None = None
    publish: list[str] = []


class PublishRequest(Request, frozen=True):
    """Publish a port of a running session, or with `remove` end that. `port`: as `[ADDRESS:]HOST:SESSION`, or the port
    of the session alone: then it has the port that it has already, else the same number if it is free, else any.
    """

    port: str
    remove: bool = False


class StopRequest(Request, frozen=True):
    """`checkpoint`: the name of a checkpoint to make before the session ends. `keep_programs`: keep the processes; if
    they cannot be kept, the command lines of the programs; if they cannot be kept either, the files only. Without it:
    the files only.
    """

    discard: bool = False
    checkpoint: str | None = None
    keep_programs: bool = False


class CheckpointRequest(Request, frozen=True):
    """`name`: null: the branch's name and the next number, such as `main-3`. `tier`: `auto` is `live` if the
    processes can be dumped, else `respawn`; with `park` it is `live`. `attach`: absolute paths on the host, of
    files or folders that are attached to the capture, by kind. `prove`: prove the capture afterwards
    (ProveRequest). `wait`: answer when the capture is durable. `anew`: take a capture even if the last one has the
    session as it is.
    """

    name: str | None = None
    message: str = ""
    tier: WantedTier = "auto"
    force: bool = False
    park: bool = False
    attach: dict[LayerKind, str] = {}
    prove: bool = False
    wait: bool = False
    anew: bool = False


class PointRequest(Request, frozen=True):
    """Make a point (Point). `label`: the prompt or command. `conversation`: the agent's own file of its conversation;
    of one outside of the session a copy is attached to the capture.
    """

    label: str = ""
    conversation: Conversation | None = None


class VerifyRequest(Request, frozen=True):
    """Look for damage in the store of images. `read_data`: read every byte of it."""

    read_data: bool = False


class UnlockRequest(Request, frozen=True):
    """Unlock the store of an encrypted home. `passphrase`: empty if a key file unlocks it."""

    passphrase: str = ""


class EvictRequest(Request, frozen=True):
    """Remove the copies outside of the store of these captures; null: of all captures with a name."""

    names: list[str] | None = None


class BaseRequest(Request, frozen=True):
    """Make a pinned base of the folder or the container image at `source`, an absolute path on the host; null: of the
    files of the machine that new sessions see. `label`: what lists show as the source, such as the Dockerfile from
    which the image was built. `force`: the name may mean another base, which it then means no more.
    """

    name: str
    source: str | None = None
    label: str = ""
    force: bool = False


class ExportRequest(Request, frozen=True):
    """Write a capture and its ancestors to the file `dest`, which must not exist. `sign`: a file with an Ed25519
    private key. Both are absolute paths on the host. `oci_layers`: add layers that other tools can read.
    """

    name: str
    dest: str
    sign: str | None = None
    oci_layers: bool = True


class ImportRequest(Request, frozen=True):
    """Import the archive `source`, an absolute path on the host. `name`: of the exported capture; its ancestors get no
    names then. Null: all get `prefix` and their names in the archive. `require_signature`: a file with an Ed25519
    public key.
    """

    source: str
    name: str | None = None
    prefix: str = ""
    require_signature: str | None = None


class ProveRequest(Request, frozen=True):
    """Restore the processes of these captures without running them, and compare them with the captures."""

    names: Annotated[list[str], msgspec.Meta(min_length=1)]


class RestoreRequest(Request, frozen=True):
    """`name`: a checkpoint, a branch, or a capture's id or unique prefix. `lose_processes`: of the
    processes of the replaced session, keep only the command lines to start them again. Without it, the restore fails if
    these processes cannot be captured. `attach_at`: absolute paths in the session, at which attached layers are placed,
    by kind. `tier`: at which the capture is restored. `auto`: the best tier that it has and that works on this machine;
    if that is not `live`, although the capture is, the answer says why. Any other: the request fails if that tier
    cannot be had.
    """

    name: str
    only: Literal["files", "shell"] | None = None
    lose_processes: bool = False
    attach_at: dict[LayerKind, str] = {}
    tier: WantedTier = "auto"


class ForkRequest(Request, frozen=True):
    """Either `branches`, or `count` branches named `<prefix>-1` and so on (`prefix`: default `name`). `tier`: as in
    RestoreRequest. `memory`, `cpus`, `pids`, `disk`: limits of each session, as in StartRequest. `partial`: if some
    sessions cannot start, start the others.
    """

    name: str
    branches: list[str] = []
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    prefix: str | None = None
    attach_at: dict[LayerKind, str] = {}
    tier: WantedTier = "auto"
    memory: Count | None = None
    cpus: Processors | None = None
    pids: Count | None = None
    disk: Count | None = None
    partial: bool = False


class LayerRequest(Request, frozen=True):
    """`dest`: an absolute path on the host that does not exist."""

    kind: str
    dest: str


class DiffRequest(Request, frozen=True):
    """`one`, `other`: a name, or `machine`; without `other`: what `one` has changed of the machine. `paths`: absolute
    paths in the session; if there are any, only files at or below them are compared. `lines`: count inserted and
    deleted lines. `patch`: also return patches, with paths relative to the folder `root`. `ignore`: without the files
    that `.gitignore` files of the later state name, caches and logs.
    """

    one: str
    other: str | None = None
    paths: list[str] = []
    lines: bool = True
    patch: bool = False
    root: str = "/"
    ignore: bool = False


class ApplyRequest(Request, frozen=True):
    """`name`: a branch (its running session is captured now) or a capture. `paths`: as in DiffRequest. `dry_run`: only
    report what would be done. `conflicts`: files that the machine has changed since the session has seen them: nothing
    is applied (`refuse`), the machine's stay (`ours`), the session's replace them (`theirs`), or git merges both
    (`merge`; files that it cannot merge are conflicts). `allow_special`: also apply files that run with the rights of
    their owner or group, or with capabilities, and devices. `hold`: a dry run records the capture of a running session.
    `capture`: the id of the capture that a dry run has reported; this capture is applied.
    """

    name: str
    paths: list[str] = []
    dry_run: bool = False
    hold: bool = False
    capture: str | None = None
    conflicts: Literal["refuse", "ours", "theirs", "merge"] = "refuse"
    allow_special: bool = False


class FileRequest(Request, frozen=True):
    """`name`: a branch (its running session, if there is one) or a capture. `path`: absolute in the session."""

    name: str
    path: str


class ReadRequest(FileRequest, frozen=True):
    """`archive`: return a tar archive, also of a folder; else the content of a file, whose links are followed.
    `descriptor`: return a descriptor to read from, and the word `file` or `archive`: of a file, no links are followed.
    """

    archive: bool = False
    descriptor: bool = False


class CommitRequest(Request, frozen=True):
    """`name`: as in ApplyRequest. `repository`: the root of a git repository's working tree. `branch`: a new branch.
    `paths`: as in DiffRequest.
    """

    name: str
    repository: str
    branch: str
    paths: list[str] = []


class MountRequest(Request, frozen=True):
    """`point`: an absolute path of a folder on the machine."""

    name: str
    point: str


class UnmountRequest(Request, frozen=True):
    point: str


class AttachLayerRequest(Request, frozen=True):
    """`path`: the absolute path on the host of a file or folder, which is attached as the layer `kind`. `wait`: answer
    when the new capture is durable.
    """

    kind: LayerKind
    path: str
    wait: bool = False


class RenameRequest(Request, frozen=True):
    to: str


class RemoveRequest(Request, frozen=True):
    """`now`: also remove the captures of these names, and of branches all others, unless something besides undo needs
    them. Then this cannot be undone.
    """

    names: Annotated[list[str], msgspec.Meta(min_length=1)]
    now: bool = False


class UndoRequest(Request, frozen=True):
    """`number`: the operation to undo; null: the last one of `branch`, or of the caller, that is not undone yet.
    `dry_run`: only report what would be undone and what would be lost. `lose_processes`: as in RestoreRequest,
    for all sessions that the undo replaces or ends. `force`: files of the machine that an apply has changed are put
    back although they were changed after that.
    """

    number: Count | None = None
    branch: str | None = None
    dry_run: bool = False
    lose_processes: bool = False
    force: bool = False


class GcRequest(Request, frozen=True):
    """`keep_operations_s`: keep operations of this many last seconds undoable; null: the home's setting. `keep_last`,
    `keep_daily`: keep of each branch so many last captures, and the last capture of each of so many days; null: the
    home's settings. `hot_budget_bytes`: what captures may take on disk that are in the store, too; null: the home's
    setting. `undo_budget_bytes`: what captures may take that only undo needs; null: the home's setting. `dry_run`:
    only report what would be removed. `compact`: fail if a session is running, because the pool can return free space
    to the disk only while no session runs.
    """

    keep_operations_s: Seconds | None = None
    keep_last: Number | None = None
    keep_daily: Number | None = None
    hot_budget_bytes: Number | None = None
    undo_budget_bytes: Number | None = None
    dry_run: bool = False
    compact: bool = False


class CallersRequest(Request, frozen=True, kw_only=True):
    """Base of the requests that continue a live session. `user`: the required owner of the session.
    `default_user`: the caller, if it is not the user of the connection. Without `user` the session must belong to the
    caller, unless the caller is root and has named the branch. `default_branch`: the caller has not named it.
    """

    user: str | None = None
    default_user: str | None = None
    default_branch: bool = False


class AttachRequest(CallersRequest, frozen=True):
    rows: Cells = 24
    cols: Cells = 80


class ExecRequest(CallersRequest, frozen=True):
    """Either `text` (a new command) or `resume` and `offset` (continue a command after a lost connection).

    `id`: chosen by the client. A repeated request with the same id continues the command and never runs it twice.

    `rows`, `cols`: with `tty`, the size that the terminal gets before the command begins; zeros: unchanged.

    `cwd`, `env`: for this command alone, which then runs in a subshell.
    """

    text: str = ""
    tty: bool = False
    stdin: bool = False
    rows: Cells = 0
    cols: Cells = 0
    timeout_s: Seconds | None = None
    wait_prompt_s: Seconds = 5.0
    cwd: str | None = None
    env: dict[VariableName, str] = {}
    id: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{16})?$")] = ""
    resume: str | None = None
    offset: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)] = 0


class RunRequest(CallersRequest, frozen=True, kw_only=True):
    """`timeout_s`: from the start of the process; then it gets the signals of an `exec` at its timeout."""

    argv: Annotated[list[str], msgspec.Meta(min_length=1)]
    tty: bool = False
    stdin: bool = False
    rows: Cells = 24
    cols: Cells = 80
    timeout_s: Seconds | None = None
    cwd: str | None = None
    env: dict[str, str] = {}


class LogsRequest(Request, frozen=True):
    follow: bool = False


MOST_NAMES = 256  # in one `du` request: each may take a walk over all files of a capture


class SessionsQuery(Request, frozen=True):
    """`all`: also return branches without a live session."""

    all: bool = False


class LogQuery(Request, frozen=True):
    """`name`: the capture with which the log begins, default `main`. `all`: return every capture instead."""

    name: str | None = None
    all: bool = False
    limit: Count | None = None


class AdoptRequest(Request, frozen=True):
    """`argv`: a program and its arguments."""

    argv: Annotated[list[str], msgspec.Meta(min_length=1)]


class SearchRequest(Request, frozen=True):
    """`text`: upper and lower case are the same, and no character has a special meaning. `limit`: of captures."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class PointsQuery(Request, frozen=True):
    limit: Count | None = None


class DuQuery(Request, frozen=True):
    """`names`: captures and live branches, at most MOST_NAMES, separated by spaces; null: all."""

    names: str | None = None


class OperationsQuery(Request, frozen=True):
    """`branch`: only the operations on this branch, and those that were requested from its session."""

    limit: Count | None = None
    branch: str | None = None
