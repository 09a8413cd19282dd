"""Answers about live sessions, as records (model/facts). Standard library only."""

from dataclasses import dataclass
from typing import Literal, TypedDict

from waypoint.model.details.kept_in import KeptIn
from waypoint.model.facts.limit_facts import LimitFacts


class ReplacedFacts(TypedDict):
    """The capture that keeps what a restore has replaced."""

    capture: str
    tier: Literal["live", "respawn", "files"]


class RestoredFacts(TypedDict):
    """The capture that a restore has brought back, and the name that was asked for. `moment`: what the name is.

    `now`: a branch that was live, of which the capture was made for the restore; `last`: a branch, of which it is the
    last capture; `then`: a checkpoint, or the capture's id.
    """

    capture: str
    name: str
    moment: Literal["now", "last", "then"]


class ExchangedFacts(TypedDict):
    """What a restore of files has done to a live session: how many entries and bytes, in which pause."""

    changed: int
    written_bytes: int
    paused_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """A session. With `state` `ended` or `lost`: a branch that can be started again, with only a few of the fields.
    With `unreachable`: it runs, and the daemon cannot reach it, for the reason in `said`; it can be stopped.

    `left_out`: the mounts of the machine that the session does not have. `shared`: the folders and files that are the
    machine's own (binds): what is done there is not kept and not undone. `shell`: the path of its shell, None if a
    command runs in its place. `hooks`: whether this shell has Waypoint's hooks, without which there is no exec.
    `capture`: the id of the capture with the files of an ended session; `kept_in`: where that is. `degraded`: in words,
    which hard limits its processes have lost since they were captured; in the answer to a restore, also the parts of
    the capture that could not be brought back, and what was not kept of a session that was replaced; in the answers to
    a start and a fork, also what the capture keeps less faithfully than asked. `restored`: in the answer to a restore,
    what was brought back; `replaced`: what keeps what was on the branch before; None if nothing was; `exchanged`: in
    that to one of files alone. `respawned`, `offered`, `lost`: the command lines, without secrets, of what a capture of
    the tier `respawn` had: started again, put on the shell's line for Enter to run, and not started again, with why.

    `allow_net`: the names and networks that it may reach, and no others; None: all that is public. `no_way_out`: in
    words, why a session on a private network reaches nothing. `published`: `IP:HOST:INNER[/udp]`. `not_published`: in
    words, why none of the branch's ports leads into it.

    `ids`: `shifted`, if the ids of its users are none that a user of the machine has, so that its root is nobody
    outside; `host`, if they are the machine's own. `why_host_ids`: then, in words, why, unless config.json wants that.

    `seccomp`: the filter of system calls around its processes: `default`, `userns` (it may make namespaces and mounts
    of its own) or `none`. `why_no_seccomp`: then, in words, why, unless config.json wants that.

    `limits`: how much of the machine it may use. `unlimited`: in words, which of these limits this machine does not
    hold, or only in part; each begins with the limit's name.
    """

    branch: str
    state: Literal["live", "unreachable", "parked", "ended", "lost"]
    created: str
    id: str | None = None
    pid: int | None = None
    uptime_s: float | None = None
    user: str | None = None
    base: str | None = None
    net: str | None = None
    allow_net: list[str] | None = None
    no_way_out: str | None = None
    published: list[str] | None = None
    not_published: str | None = None
    cwd: str | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    upper_bytes: int | None = None
    attached: int | None = None
    left_out: list[str] | None = None
    shared: list[str] | None = None
    ids: Literal["shifted", "host"] | None = None
    why_host_ids: str | None = None
    seccomp: Literal["default", "userns", "none"] | None = None
    why_no_seccomp: str | None = None
    limits: LimitFacts | None = None
    unlimited: list[str] | None = None
    shell: str | None = None
    hooks: bool | None = None
    capture: str | None = None
    kept_in: KeptIn | None = None
    degraded: list[str] | None = None
    respawned: list[str] | None = None
    offered: list[str] | None = None
    lost: list[str] | None = None
    restored: RestoredFacts | None = None
    replaced: ReplacedFacts | None = None
    exchanged: ExchangedFacts | None = None
    said: str | None = None
