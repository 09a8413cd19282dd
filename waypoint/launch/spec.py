"""The daemon's requests to the launcher, and the launcher's answer."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from waypoint.model.records import HOST_IDS, IdMap, Seccomp


class Overlay(msgspec.Struct, frozen=True, kw_only=True):
    """One overlay of a session. `target`: its mount point in the session. `lowers`, `upper`, `work`: host folders, the
    topmost of `lowers` first. `ours`: those of `lowers` that Waypoint has made with the session's ids; all other
    folders are idmapped if the session's ids are shifted.
    """

    target: str
    lowers: list[str]
    upper: str
    work: str
    ours: tuple[str, ...] = ()


class BindMount(msgspec.Struct, frozen=True, kw_only=True):
    """A host path bound into the session. `device_nodes`: device nodes below it may be opened. `ours`: a path of
    Waypoint or the kernel, which is not idmapped if the session's ids are shifted. `as_user`: bound only if the
    session's user has access on the host, and with this user's rights alone.
    """

    source: str
    target: str
    readonly: bool
    device_nodes: bool = False
    ours: bool = False
    as_user: bool = False


class MemoryMount(msgspec.Struct, frozen=True, kw_only=True):
    """A tmpfs of the session, with mode 1777.

    `content`: a host folder that is copied into it; "": none. `size_bytes`, `files`: its limits; 0: the kernel's
    default. It is mounted from outside, because CRIU would run tar for a tmpfs of the session at each dump; a capture
    copies the content itself.
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
    """Start a session: its mounts in order, then its first process, with the filter of system calls `seccomp`.

    `owner`: the host's user who owns the session's user namespace. `processes`: the limit for each of its users; None:
    no limit.

    If the ids are shifted, two descriptors of user namespaces follow the request, the second one only with binds
    `as_user`: one with the session's map, and one in which only the ids of the session's user map to themselves
    (`IdMap.lines_with_only`). `layers` is then a host folder for idmapped mounts, in the task's own mount namespace.
    """

    @property
    def outside(self) -> list[str]:
        """The mount points of the mounts from outside, in the order of their numbers in images."""
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
    """Start one more process in the live session with init `pid`. stdin, stdout and stderr follow the request; with
    `tty` the process gets a new terminal of `rows` and `cols` instead. `seccomp`: the session's.
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


CRIU_SOCKET_FD = 3  # CRIU's descriptor of its socket to the daemon


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
    `run` and the descriptors are as for CriuBeside, followed by those for the ids of `mounts`. `hard_limits`: to be set
    for CRIU (linux/calls/hard_limits.py), as far as the launcher may raise them.
    """

    mounts: StartSpec
    run: str
    argv: list[str]
    env: dict[str, str]
    hard_limits: dict[str, int] = {}


LaunchSpec = StartSpec | EnterSpec | CriuBeside | CriuInto


class LaunchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the new process's pid as the host sees it, or, if `pid` is 0, the errno, message and path of the
    failed call. `entered`: the index in `cwd` of the folder in which the process has started.
    """

    pid: int = 0
    entered: int = 0
    error: str = ""
    errno: int = 0
    path: str = ""
