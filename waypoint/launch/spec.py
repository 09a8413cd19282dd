"""The daemon's requests to the launcher, and the launcher's answer."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from waypoint.model.records import HOST_IDS, IdMap, Seccomp


class Overlay(msgspec.Struct, frozen=True, kw_only=True):
    """One overlay of a session. `target`: its mount point in the session. `lowers`, `upper`, `work`: host folders, the
    topmost of `lowers` first. `ours`: the folders in `lowers` that Waypoint has made with the session's ids. If the
    session's ids are shifted, all other folders are idmapped.
    """

    target: str
    lowers: list[str]
    upper: str
    work: str
    ours: tuple[str, ...] = ()


class BindMount(msgspec.Struct, frozen=True, kw_only=True):
    """A host path that is bound into the session. `device_nodes`: whether device nodes below it may be opened. `ours`:
    whether the path belongs to Waypoint or the kernel; such a path is never idmapped. `as_user`: whether the path is
    bound only if the session's user has access to it on the host, and then with no more than this user's rights.
    """

    source: str
    target: str
    readonly: bool
    device_nodes: bool = False
    ours: bool = False
    as_user: bool = False


class MemoryMount(msgspec.Struct, frozen=True, kw_only=True):
    """A tmpfs of the session, with mode 1777.

    `content`: a host folder that is copied into it, or "". `size_bytes`, `files`: its limits; 0 is the kernel's
    default. The tmpfs is mounted from outside, because CRIU would otherwise run tar for it at each dump. A capture
    copies the content without CRIU.
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
    """Start a session: make its mounts in order, then its first process, with the system call filter `seccomp`.

    `owner`: the host's user who owns the session's user namespace. `processes`: the highest number of processes of each
    user of the session; None means no limit.

    If the ids are shifted, one or two descriptors of user namespaces are sent with the request. The first has the
    session's id map. In the second, which is sent only if there are binds with `as_user`, only the ids of the session's
    user map to themselves (`IdMap.lines_with_only`). `layers` is then the host folder in which the task mounts idmapped
    copies of the layers, in its own mount namespace.
    """

    @property
    def outside(self) -> list[str]:
        """The mount points of the mounts from outside. A mount's index in this list is its number in CRIU images."""
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


START_S = 60.0


class EnterSpec(msgspec.Struct, frozen=True, kw_only=True, tag="enter"):
    """Start one more process in the live session with init `pid`. The descriptors for stdin, stdout and stderr are sent
    with the request; with `tty` the process gets a new terminal of `rows` and `cols` instead. `seccomp`: the system
    call filter of the session. `patience_s`: how long the start may take; the session's processes may stop a process
    that enters the session.
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
    patience_s: float = START_S


CRIU_SOCKET_FD = 3  # CRIU's descriptor of its socket to the daemon


class CriuBeside(msgspec.Struct, frozen=True, kw_only=True, tag="beside"):
    """Start a CRIU that is to dump the session with init `pid`.

    Two descriptors are sent with the request: CRIU's socket, and the file for its stdout and stderr. `run`: the host
    folder that becomes CRIU's /run. `cgroup`: the cgroup that CRIU runs in. `is_urgent`: whether somebody waits for the
    session, which CRIU stops.
    """

    pid: int
    run: str
    cgroup: str
    argv: list[str]
    env: dict[str, str]
    is_urgent: bool = True


class CriuInto(msgspec.Struct, frozen=True, kw_only=True, tag="into"):
    """Start a CRIU that is to restore a session. `mounts`: the session's mounts and cgroup; its program is ignored.
    `run`: the host folder that becomes CRIU's /run. `hard_limits`: hard resource limits for CRIU, set as far as the
    launcher may raise its limits (linux/calls/hard_limits.py). `no_host_network`: a session that shares the host's
    network is restored in a network namespace that leads nowhere. `from_template`: fork CRIU from a template, or start
    it as usual if the template has ended.

    The descriptors sent with the request: CRIU's socket, the file for its stdout and stderr, with `from_template` the
    daemon's side of the template's socket, and those that StartSpec describes for the ids of `mounts`.
    """

    mounts: StartSpec
    run: str
    argv: list[str]
    env: dict[str, str]
    hard_limits: dict[str, int] = {}
    no_host_network: bool = False
    from_template: bool = False


class CriuTemplate(msgspec.Struct, frozen=True, kw_only=True, tag="template"):
    """Start a template: a CRIU that has the memory of a capture, and forks CRIUs that restore it (templates.py).

    Four descriptors are sent with the request: the template's socket, the file for its stdout and stderr, its plan
    (processes/criu/memory_plan.py), and the folder of the images. `cgroup`: which the template runs in. `hard_limits`:
    as in CriuInto.
    """

    run: str
    cgroup: str
    argv: list[str]
    env: dict[str, str]
    hard_limits: dict[str, int] = {}


TEMPLATE_PLAN_FD, TEMPLATE_IMAGES_FD = 4, 5  # the template's descriptors; its socket is CRIU_SOCKET_FD


class CriuAhead(msgspec.Struct, frozen=True, kw_only=True, tag="ahead"):
    """Start a CRIU in `cgroup` that is to restore a session whose mounts are not known yet. `run`: as for CriuInto.

    Three descriptors are sent with the request: CRIU's socket, the file for its stdout and stderr, and a socket on
    which the launcher's task waits for one MountOrder and answers it by a LaunchAnswer. The answer to the request
    itself has a pidfd of CRIU.
    """

    cgroup: str
    run: str
    argv: list[str]
    env: dict[str, str]


class MountOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Make the mounts of a session for the CRIU that was started ahead, and raise its hard limits. `mounts`,
    `hard_limits`, and the descriptors that are sent with it: as for CriuInto.
    """

    mounts: StartSpec
    hard_limits: dict[str, int] = {}


LaunchSpec = StartSpec | EnterSpec | CriuBeside | CriuInto | CriuTemplate | CriuAhead


class LaunchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The launcher's answer to a request. `pid`: the host's pid of the new process; if it is 0, the request failed, and
    `errno`, `error` and `path` describe the failed call. `entered`: the index in `cwd` of the folder in which the
    process started.
    """

    pid: int = 0
    entered: int = 0
    error: str = ""
    errno: int = 0
    path: str = ""
