"""The tools that start, capture, restore, compare and end sessions, and those for files."""

import base64
import binascii
from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta

from waypoint.agents.mcp.calls import Call
from waypoint.agents.mcp.outputs import DEFAULT_BYTES, MOST_BYTES, decoded
from waypoint.agents.mcp.results import (
    Content,
    Differences,
    Forked,
    History,
    Listing,
    Rewound,
    SessionState,
    Started,
    Undone,
    Written,
    capture_of,
    state_of,
    unusual,
)
from waypoint.agents.mcp.toolbox import tool
from waypoint.agents.mcp.words import Branch, Limit, MaxBytes, Name, New, Offset, Path, Paths
from waypoint.client.results import StartOptions
from waypoint.model.errors import UnknownName, UsageProblem
from waypoint.model.facts import ApplyFacts, CheckpointFacts, VerifyFacts
from waypoint.model.session_facts import StopFacts

Encoding = Annotated[
    Literal["utf-8", "base64"], Meta(description="How `content` stands for bytes. Reading a binary file: base64.")
]
Tier = Annotated[
    Literal["auto", "live", "respawn", "files"],
    Meta(description="live: with all processes; respawn: their command lines; files; auto: the best that is possible."),
]
OnlyFiles = Annotated[Literal["files", "shell"], Meta(description="Restore only this part; programs continue.")]
LoseProcesses = Annotated[bool, Meta(description="Agree that processes that cannot be saved are lost.")]


MOST_CHANGES = 200  # in the result of `apply`


@tool("start", "Start a session", "adds", idempotent=True)
def start(
    call: Call,
    *,
    branch: Branch,
    from_name: Annotated[str, Meta(description="Continue from the files of this branch or capture.")] | None = None,
    cwd: Annotated[str, Meta(description="The folder in which the shell starts.")] | None = None,
    shell: Annotated[str, Meta(description="bash, zsh or another shell. Default: the user's.")] | None = None,
    net: Annotated[Literal["private", "host", "none"], Meta(description="The session's network.")] | None = None,
    allow_net: Annotated[list[str], Meta(description="The only names and networks that it can reach.")] | None = None,
    binds: Annotated[list[str], Meta(description="Folders of the machine to share: HOST:PATH or HOST:PATH:ro.")]
    | None = None,
    memory: Annotated[int, Meta(description="The most memory, in bytes.")] | None = None,
    disk: Annotated[int, Meta(description="The most disk space, in bytes.")] | None = None,
    cpus: Annotated[float, Meta(description="The most processors.")] | None = None,
    pids: Annotated[int, Meta(description="The most processes and threads.")] | None = None,
) -> Started:
    """Start the session of a branch: a shell on a copy-on-write view of this machine. A session that runs is returned
    as it is. A branch that ended continues from its files.
    """
    given = {
        "from_name": from_name,
        "cwd": cwd,
        "shell": shell,
        "net": net,
        "allow_net": allow_net,
        "binds": binds,
        "memory": memory,
        "disk": disk,
        "cpus": cpus,
        "pids": pids,
    }
    options: StartOptions = {name: value for name, value in given.items() if value is not None}  # type: ignore[assignment]
    session = call.client.start(branch, **options)
    return Started(created=session.is_new, session=state_of(session.facts))


@tool("adopt", "Run another agent in a session", "adds", open_world=True)
def adopt(
    call: Call,
    *,
    branch: Branch,
    argv: Annotated[list[str], Meta(min_length=1, description="The agent's program and its arguments.")],
) -> Started:
    """Start a command-line agent in the foreground of a session's shell, with points at its prompts. Its output is the
    session's scrollback.
    """
    session = call.client.start(branch, auto=True)
    return Started(created=session.is_new, session=state_of(session.adopt(*argv)))


@tool("list", "List sessions and branches", "reads")
def list_sessions(call: Call, *, limit: Limit = 100, offset: Offset = 0) -> Listing:
    """List the running sessions, and all branches with their latest captures. `log` lists captures."""
    sessions, branches = call.client.sessions(), call.client.history.branches()
    end = offset + limit
    more = end if max(len(sessions), len(branches)) > end else None
    return Listing(
        sessions=[state_of(one) for one in sessions[offset:end]], branches=branches[offset:end], next_offset=more
    )


@tool("read_file", "Read a file of a session or capture", "reads")
def read_file(
    call: Call,
    *,
    name: Name,
    path: Path,
    offset: Annotated[int, Meta(ge=0, le=1 << 60, description="The first byte to read.")] = 0,
    max_bytes: Annotated[int, Meta(ge=1, le=MOST_BYTES, description="The most bytes to read.")] = 65536,
    encoding: Encoding = "utf-8",
) -> Content:
    """Read a file as it is in a running session, in a branch or in a capture."""
    data, is_end = _part(call, name, _absolute(path), offset, max_bytes)
    if encoding == "base64":
        text, used = base64.b64encode(data).decode(), len(data)
    else:
        text, used = decoded(data, is_end=is_end)
        if not used:  # max_bytes is shorter than this character
            text, used = decoded(data, is_end=True)
    return Content(
        path=path, content=text, encoding=encoding, offset=offset, next_offset=None if is_end else offset + used
    )


def _part(call: Call, name: str, path: str, offset: int, size: int) -> tuple[bytes, bool]:
    """The bytes of a file from `offset` on, at most `size`, and whether the file ends there."""
    found, place = bytearray(), 0
    for piece in call.client.files(name).iter_content(path):
        call.check()
        found += piece[max(offset - place, 0) :]
        place += len(piece)
        if len(found) > size:
            return bytes(found[:size]), False
    return bytes(found), True


@tool("write_file", "Write a file in a session", "destroys", idempotent=True)
def write_file(
    call: Call,
    *,
    branch: Branch,
    path: Path,
    content: Annotated[str, Meta(description="All of the file's new content.")],
    encoding: Encoding = "utf-8",
) -> Written:
    """Write a file in a running session, with the rights of the session's user. It replaces a file at once."""
    try:
        data = content.encode() if encoding == "utf-8" else base64.b64decode(content, validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise UsageProblem("write", path, f"content is not {encoding}: {error}", "encode it so") from error
    call.client.session(branch).files.write(_absolute(path), data)
    return Written(path=path, size_bytes=len(data))


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise UsageProblem("use the path", path, "it is not absolute", "begin it with /")
    return path


@tool("checkpoint", "Make a checkpoint", "adds")
def checkpoint(
    call: Call,
    *,
    branch: Branch,
    name: New,
    message: Annotated[str, Meta(description="A note for people.")] = "",
    tier: Tier = "auto",
    force: Annotated[bool, Meta(description="Move the name if a checkpoint has it already.")] = False,
) -> CheckpointFacts:
    """Capture a running session under a name: files, processes with their memory, terminal, shell. It continues."""
    made = call.client.session(branch).checkpoint(name, message=message, tier=tier, force=force)
    return replace(made, degraded=unusual(made.degraded))


@tool("log", "List captures", "reads")
def log(
    call: Call,
    *,
    name: Annotated[str, Meta(description="Start at this branch, checkpoint or capture. Default: all captures.")]
    | None = None,
    limit: Limit = 20,
    offset: Offset = 0,
) -> History:
    """List the captures before a name, or all captures, the newest first."""
    end = offset + limit
    if name is None:
        found = call.client.history.log(all=True, limit=end + 1)
    else:
        found = call.client.history.log(name, limit=end + 1)
    return History(
        captures=[capture_of(one) for one in found[offset:end]], next_offset=end if len(found) > end else None
    )


@tool("diff", "Compare two states", "reads")
def diff(
    call: Call,
    *,
    one: Annotated[str, Meta(description="A branch, checkpoint or capture.")],
    other: Annotated[
        str, Meta(description="The later state; `machine` is this machine. Default: the changes of `one`.")
    ]
    | None = None,
    paths: Paths = [],  # noqa: B006  # never changed
    patch: Annotated[bool, Meta(description="Also return the changes of text, in git's format.")] = False,
    limit: Limit = 200,
    offset: Offset = 0,
    max_bytes: MaxBytes = DEFAULT_BYTES,
) -> Differences:
    """List what differs from `one` to `other`: files, processes, variables. Without `other`: what `one` has changed of
    the machine.
    """
    found = call.client.history.diff(one, other, paths=paths, patch=patch)
    end = offset + limit
    changes, text = found[offset:end], call.record(max_bytes)
    if patch:
        for change in changes:
            text(memoryview((change.patch or "").encode(errors="backslashreplace")))
        changes = [replace(change, patch=None) for change in changes]
    more = end if len(found) > end else None
    return Differences(total=len(found), changes=changes, next_offset=more, patch=text.finish() if patch else None)


@tool("apply", "Bring changes onto this machine", "destroys")
def apply(
    call: Call,
    *,
    name: Name,
    paths: Paths = [],  # noqa: B006  # never changed
    dry_run: Annotated[bool, Meta(description="Only report what would be changed.")] = False,
    conflicts: Annotated[
        Literal["refuse", "ours", "theirs", "merge"],
        Meta(description="For files that the machine has changed: change nothing, keep its file, replace it, merge."),
    ] = "refuse",
) -> ApplyFacts:
    """Make the machine's files like those of a session or capture, where it has changed them: all or nothing. If
    `conflict_count` of the result is not 0, nothing was changed. `undo` with the result's `operation` reverses it. At
    most 200 changes and conflicts are listed.
    """
    facts = call.client.history.apply(name, paths=paths, dry_run=dry_run, conflicts=conflicts)
    return replace(facts, changes=facts.changes[:MOST_CHANGES], conflicts=facts.conflicts[:MOST_CHANGES])


@tool("fork", "Start sessions from a capture", "adds")
def fork(
    call: Call,
    *,
    name: Annotated[str, Meta(description="A checkpoint or capture; a running branch is captured now.")],
    branches: Annotated[list[str], Meta(min_length=1, description="The new branches. All start, or none.")],
    tier: Tier = "auto",
) -> Forked:
    """Start a session on each of the new branches, all as copies of one state, with its processes."""
    made = call.client.fork(name, *branches, tier=tier)
    return Forked(sessions=[state_of(one.facts) for one in made])


@tool("restore", "Go back to a capture", "changes")
def restore(
    call: Call,
    *,
    branch: Branch,
    name: Annotated[str, Meta(description="The checkpoint or capture to go back to.")],
    only: OnlyFiles | None = None,
    lose_processes: LoseProcesses = False,
    tier: Tier = "auto",
) -> SessionState:
    """Replace the session of a branch by a capture: files, processes, terminal. The replaced state is captured first
    (`replaced`), and `undo` brings it back.
    """
    session = call.client.session(branch)
    return state_of(session.restore(name, only=only, lose_processes=lose_processes, tier=tier))


@tool("rewind", "Go back to before a prompt", "changes")
def rewind(
    call: Call,
    *,
    branch: Branch,
    number: Annotated[int, Meta(ge=1, description="How many points to go back. Default: only list them.")]
    | None = None,
    only: Annotated[Literal["files"], Meta(description="Restore only the files; programs continue.")] | None = None,
    lose_processes: LoseProcesses = False,
    limit: Limit = 20,
) -> Rewound:
    """List the points of a branch (before each prompt, and checkpoints), the newest first, or go back to one, like
    `restore`. The conversation of an agent stays; the command 'waypoint rewind' brings it back, too.
    """
    session = call.client.session(branch)
    points = session.points(limit if number is None else number)
    if number is None:
        return Rewound(points=points)
    if len(points) < number:
        said = f"it has {len(points)} points"
        raise UnknownName("rewind", f"branch {branch} by {number}", said, "call `rewind` without a number to see them")
    point = points[number - 1]
    facts = session.restore(point.capture, only=only, lose_processes=lose_processes)
    return Rewound(points=[point], session=state_of(facts))


@tool("undo", "Undo an operation", "changes")
def undo(
    call: Call,
    *,
    branch: Branch,
    operation: Annotated[int, Meta(ge=1, description="The number of the operation. Default: the last one.")]
    | None = None,
    dry_run: Annotated[bool, Meta(description="Only report what would be undone.")] = False,
    lose_processes: LoseProcesses = False,
    force: Annotated[bool, Meta(description="For apply: also replace files that were changed since.")] = False,
) -> Undone:
    """Undo the last operation on a branch that is not undone yet, or another one. An undo can be undone, too."""
    history = call.client.history
    target = branch if operation is None else None
    if dry_run:
        return Undone(undone=history.plan_undo(operation, branch=target))
    entry, undone = history.take_back(operation, branch=target, lose_processes=lose_processes, force=force)
    return Undone(undone=undone, operation=entry)


@tool("stop", "End a session", "destroys")
def stop(
    call: Call,
    *,
    branch: Branch,
    discard: Annotated[bool, Meta(description="Delete its files; this cannot be undone.")] = False,
    checkpoint: Annotated[New, Meta(description="First make this checkpoint, with the processes.")] | None = None,
) -> StopFacts:
    """End the session of a branch. Its files are kept unless you discard them, and `start` continues from them."""
    return call.client.session(branch).stop(discard=discard, checkpoint=checkpoint)


@tool("verify", "Look for damage", "reads")
def verify(
    call: Call, *, read_data: Annotated[bool, Meta(description="Read every byte; takes long.")] = False
) -> VerifyFacts:
    """Look for damage in the store of captures."""
    return call.client.history.verify(read_data=read_data)
