"""Requests to the launcher, and its answer, as values. The daemon makes the requests, the launcher carries them out."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from waypoint.model.records import HOST_IDS, IdMap, Seccomp


class Overlay(msgspec.Struct, frozen=True, kw_only=True):
    """One overlay of a session. `target`: its mount point in the session. `lowers`, `upper`, `work`: host folders, the
    topmost of `lowers` first.

    `ours`: those of `lowers` that are Waypoint's, made with the session's ids. The others, `upper` and `work` are
    idmapped, if the session's ids are shifted.
    """

    target: str
    lowers: list[str]
    upper: str
    work: str
    ours: tuple[str, ...] = ()


class BindMount(msgspec.Struct, frozen=True, kw_only=True):
    """A host path bound into the session. `device_nodes`: device nodes below it may be opened. `ours`: it is
    Waypoint's or the kernel's, and not idmapped if the session's ids are shifted.

    `as_user`: it is bound only if the session's user may use it on the host, and with this user's rights alone.
    """

    source: str
    target: str
    readonly: bool
    device_nodes: bool = False
    ours: bool = False
    as_user: bool = False


class MemoryMount(msgspec.Struct, frozen=True, kw_only=True):
    """A tmpfs of the session's own, which everybody may write to (mode 1777).

    `content`: a host folder that is copied into it; "": it begins empty. `size_bytes`, `files`: how much and how many
    it takes at most; 0: as the kernel would have it. The tmpfs is mounted from outside the session,
    because CRIU would run tar for a tmpfs of the session's at each dump; a capture copies the content itself.
    """

    target: str
    content: str = ""
    size_bytes: int = 0
    files: int = 0


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The user that a process of a session runs as."""

    uid: int
    gid: int
    groups: list[int]


class StartSpec(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Start a session: its mounts in order, then its first process, behind the filter of system calls `seccomp`.

    `owner`: the host's user who owns the session's user namespace. `processes`: how many each of its users may have,
    None: any number.

    If its ids are shifted, a descriptor of a user namespace with the same map is sent with the request, after it one of
    a namespace in which only the ids of the session's user are themselves (`IdMap.lines_with_only`), and `layers` is a
    host folder for the mount points of what is idmapped, in the task's own mount namespace.
    """

    @property
    def outside(self) -> list[str]:
        """The mount points of the mounts from outside. Their order gives the numbers that images name them by."""
        groups: tuple[Sequence[Overlay | BindMount | MemoryMount], ...] = (self.overlays, self.binds, self.memory)
        return [mount.target for group in groups for mount in group]

    cgroup: str
    merged: str
    overlays: list[Overlay]
    binds: list[BindMount]
    memory: list[MemoryMount]
    proc_readonly: list[str]
    masked: list[str]
    net: Literal["private", "host", "none"]
    identity: Identity
    argv: list[str]
    env: dict[str, str]
    cwd: list[str]
    rows: int
    cols: int
    ids: IdMap = HOST_IDS
    layers: str = ""
    seccomp: Seccomp = "none"
    owner: int = 0
    processes: int | None = None


class EnterSpec(msgspec.Struct, frozen=True, kw_only=True, tag="enter"):
    """Start one more process in the live session with init `pid`. Three descriptors are sent with the request (stdin,
    stdout, stderr), none if `tty`: then the process gets a new terminal of `rows` and `cols`. `seccomp`: the session's.
    """

    pid: int
    cgroup: str
    identity: Identity
    argv: list[str]
    env: dict[str, str]
    cwd: list[str]
    tty: bool
    rows: int
    cols: int
    seccomp: Seccomp


CRIU_SOCKET_FD = 3  # the descriptor at which a CRIU of the launcher's finds its socket to the daemon


class CriuBeside(msgspec.Struct, frozen=True, kw_only=True, tag="beside"):
    """Start a CRIU that is to dump the session with init `pid`.

    Two descriptors are sent with the request: CRIU's socket, and the file for its stdout and stderr. `run`: the host
    folder that becomes CRIU's /run. `cgroup`: the cgroup that CRIU runs in.
    """

    pid: int
    run: str
    cgroup: str
    argv: list[str]
    env: dict[str, str]


class CriuInto(msgspec.Struct, frozen=True, kw_only=True, tag="into"):
    """Start a CRIU that is to restore a session. `mounts`: the session's mounts and cgroup; its program is ignored.
    `run` and the descriptors are as for CriuBeside; those for the ids of `mounts` come after them. `hard_limits`: those
    that CRIU is to have (linux/calls/hard_limits.py), as far as the launcher may raise them.
    """

    mounts: StartSpec
    run: str
    argv: list[str]
    env: dict[str, str]
    hard_limits: dict[str, int] = {}


LaunchSpec = StartSpec | EnterSpec | CriuBeside | CriuInto


class LaunchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the new process's pid as the host sees it, or, if `pid` is 0, the errno, message and path of the call
    that failed. `entered`: in which folder of the request's `cwd` the process has started, counted from 0.
    """

    pid: int = 0
    entered: int = 0
    error: str = ""
    errno: int = 0
    path: str = ""
