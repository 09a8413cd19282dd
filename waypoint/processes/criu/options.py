"""Options and results of dumps and restores.

Folders are given as file descriptors *of this process*: CRIU opens `/proc/<our pid>/fd/<n>`, with our pid from the
socket. This works in any mount namespace of CRIU, and with a folder that is renamed meanwhile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from waypoint.linux.storage import filesystem
from waypoint.linux.tasks.removed import RemovedFolder
from waypoint.processes.criu.ghosts import external_name
from waypoint.processes.criu.messages import CGROUPS_IGNORE, EMPTY_NETWORK, NETWORK_LOCK_SKIP, Value

# The image of an open deleted file ("ghost") may have this size; the field of CRIU's request has 32 bits.
_MOST_GHOST_BYTES = (1 << 32) - 1

ERRORS_ONLY = 1
WARNINGS = 2
EVERYTHING = 4


@dataclass(frozen=True, slots=True)
class Notice:
    """CRIU has reached `stage` of a restore and waits for the callback to return. No task of the tree runs meanwhile.

    The stages: pre-restore, setup-namespaces (the root task exists in its namespaces, nothing else does),
    post-setup-namespaces, post-restore (all tasks exist), pre-resume, post-resume.

    `pid`: the root task as the host sees it, at setup-namespaces and post-restore.
    """

    stage: str
    pid: int | None = None


OnNotice = Callable[[Notice], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """One dump, after which the tree continues.

    `tree_pid`: the root task, as the host sees it. `images_fd`, `work_fd`: folders for the images, and for the log and
    the statistics. `freeze_cgroup`: the frozen cgroup2 folder of the tree; a dump of a frozen group without it hangs.
    `externals`: external mounts, as in `mnt[/dev]:dev`. `timeout_s`: CRIU gives up if it cannot stop the tree in this
    time. `deadline_s`: a CRIU that hangs for this time (`Worker.receive`) is killed, which may end a task of the tree
    (docs/criu.md, "When CRIU is killed"). `removed`: the removed folders that tasks hold (ghosts.py). `own_network`:
    CRIU runs in the tree's network namespace and keeps only its sockets; the restore needs `empty_network`.
    `close_connections`: the restore will close TCP connections; set it in RestoreOptions, too. `leave_unwritten`: leave
    out pages that are write-protected (processes/copied_memory.py); the caller adds them.
    """

    log_name: ClassVar[str] = "dump.log"

    tree_pid: int
    images_fd: int
    work_fd: int
    freeze_cgroup: str | None = None
    externals: tuple[str, ...] = ()
    removed: tuple[RemovedFolder, ...] = ()
    own_network: bool = False
    close_connections: bool = False
    leave_unwritten: bool = False
    timeout_s: int = 10
    log_level: int = ERRORS_ONLY
    deadline_s: float | None = None

    def to_message(self) -> dict[str, Value]:
        message: dict[str, Value] = {
            "pid": self.tree_pid,
            "leave_running": True,
            # CRIU's default of 1 MiB refuses ordinary databases, and on overlayfs a deleted file cannot be linked back.
            # Half of the free space: a restore writes the file once more.
            "ghost_limit": min(filesystem.free_bytes(self.images_fd) // 2, _MOST_GHOST_BYTES),
            "timeout": self.timeout_s,
            "log_level": self.log_level,
            "notify_scripts": True,
            # Leave out connections that no program has accepted yet, instead of refusing the dump.
            "tcp_skip_in_flight": True,
        }
        if self.freeze_cgroup is not None:
            message["freeze_cgroup"] = self.freeze_cgroup
        return message | _common(self, [external_name(folder) for folder in self.removed])


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """One restore.

    `root`: where CRIU finds the root of the tree's mount namespace. `work_fd`: never the images' folder, which several
    restores may share. `externals`: as in `mnt[dev]:/some/folder`. `empty_network`: the tree gets a new network
    namespace, to be set up at the stage post-setup-namespaces. `close_connections`: TCP connections are
    restored as if the peer had closed them; in a network namespace that the tree does not own, the kernel allows
    nothing else. `file_locks`: whether the tasks take their file locks again; CRIU waits for those that others have.
    `deadline_s`: a CRIU that hangs for this time (`Worker.receive`) is killed.
    """

    log_name: ClassVar[str] = "restore.log"

    images_fd: int
    work_fd: int
    root: str | None = None
    externals: tuple[str, ...] = ()
    empty_network: bool = False
    close_connections: bool = False
    file_locks: bool = True
    deadline_s: float | None = None
    on_notice: OnNotice | None = None

    def to_message(self) -> dict[str, Value]:
        message: dict[str, Value] = {"log_level": ERRORS_ONLY, "notify_scripts": self.on_notice is not None}
        if self.root is not None:
            message["root"] = self.root
        if self.empty_network:
            message["empty_ns"] = EMPTY_NETWORK
        return message | _common(self, []) | {"file_locks": self.file_locks}


@dataclass(frozen=True, slots=True)
class DumpStats:
    """What CRIU measured: how long the tree was stopped, in microseconds."""

    frozen_us: int


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """`pid`: the root task as the host sees it."""

    pid: int


@dataclass(frozen=True, slots=True)
class Features:
    """`memory_tracking`: soft-dirty bits, for incremental dumps. `lazy_pages`: userfaultfd."""

    memory_tracking: bool
    lazy_pages: bool


@dataclass(frozen=True, slots=True)
class Externals:
    """CRIU's options for a session's external mounts, those whose content is not in the image (criu(8), --external).

    `dump`, `restore`: the values of --external. `root`: for a restore, the folder where the session's root is mounted.
    """

    dump: tuple[str, ...]
    restore: tuple[str, ...]
    root: str


def name_externals(targets: Sequence[str], folder: str) -> Externals:
    """Number the external mounts with the mount points `targets`, which must contain `/`.

    `folder`: for a restore, where the mounts are, as `m0`, `m1`, ... The numbers are stored in CRIU's images, so a
    restore needs the same list in the same order.
    """
    return Externals(
        dump=tuple(f"mnt[{target}]:m{number}" for number, target in enumerate(targets)),
        restore=tuple(f"mnt[m{number}]:{folder}/m{number}" for number in range(len(targets))),
        root=f"{folder}/m{targets.index('/')}",
    )


def _common(options: DumpOptions | RestoreOptions, more_externals: list[Value]) -> dict[str, Value]:
    """The options that a dump and its restore share."""
    return {
        "images_dir_fd": options.images_fd,
        "work_dir_fd": options.work_fd,
        "external": [*options.externals, *more_externals],
        "ext_unix_sk": True,
        "tcp_established": True,
        "tcp_close": options.close_connections,
        "file_locks": True,
        "link_remap": True,
        "log_file": options.log_name,
        # Waypoint makes and limits the session's cgroup.
        "manage_cgroups_mode": CGROUPS_IGNORE,
        "network_lock": NETWORK_LOCK_SKIP,
    }
