"""What a dump and a restore are told and what they answer, in Waypoint's words.

Folders go as file descriptors *of this process*: CRIU opens `/proc/<our pid>/fd/<n>` (it learns our pid from the
socket), so they serve in whatever mount namespace CRIU runs, and a folder that is renamed meanwhile stays the right
one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from waypoint.linux.tasks.removed import RemovedFolder
from waypoint.processes.criu.ghosts import external_name
from waypoint.processes.criu.messages import CGROUPS_IGNORE, EMPTY_NETWORK, NETWORK_LOCK_SKIP, Value

ERRORS_ONLY = 1
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
    """One dump, after which the tree goes on.

    `tree_pid`: the root task, as the host sees it. `images_fd`, `work_fd`: folders for the images, and for the log and
    CRIU's figures.
    `freeze_cgroup`: the cgroup2 folder of the tree, frozen already (a frozen group dumped without naming it hangs).
    `externals`: what is outside, as in `mnt[/dev]:dev`. `timeout_s`: CRIU gives up if the tree cannot be stopped within
    it. `deadline_s`: a CRIU that hangs for as long (`Worker.receive`) is killed, which a task of the tree survives
    unless it is just then running a system call of CRIU's (docs/criu.md, "When CRIU is killed").
    `removed`: the folders without a name that tasks of the tree hold. CRIU refuses those of a lower layer (ghosts.py).
    `own_network`: CRIU runs in the tree's network namespace, of which nothing but sockets is to be kept; the images are
    to say that it is the tree's own. Their restore needs `empty_network`.
    `close_connections`: as in the restore (RestoreOptions), which must be told so, too.
    `deleted_files_mib`: up to which size deleted files are kept with the image; 0: CRIU's own limit, 1 MiB. On
    overlayfs a deleted file cannot be linked back, so there is no other way to keep it.
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
    deleted_files_mib: int = 0
    timeout_s: int = 10
    log_level: int = ERRORS_ONLY
    deadline_s: float | None = None

    def to_message(self) -> dict[str, Value]:
        message: dict[str, Value] = {
            "pid": self.tree_pid,
            "leave_running": True,
            "timeout": self.timeout_s,
            "log_level": self.log_level,
            "notify_scripts": True,
            # Connections that nobody has accepted yet are left out, in place of a refusal.
            "tcp_skip_in_flight": True,
        }
        if self.deleted_files_mib:
            message["ghost_limit"] = self.deleted_files_mib << 20
        if self.freeze_cgroup is not None:
            message["freeze_cgroup"] = self.freeze_cgroup
        return message | _common(self, [external_name(folder) for folder in self.removed])


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """One restore.

    `root`: where the root of the tree's mount namespace lies mounted in CRIU's. `work_fd`: never the images' folder,
    which several restores may share. `externals`: as in `mnt[dev]:/some/folder`. `empty_network`: the tree gets a new
    network namespace, in which nothing is set up before the stage post-setup-namespaces. `close_connections`: TCP
    connections come back closed, as if their other side had ended them. Whoever does not own the network namespace may
    restore them in no other way. `deadline_s`: a CRIU that hangs for as long (`Worker.receive`) is killed.
    """

    log_name: ClassVar[str] = "restore.log"

    images_fd: int
    work_fd: int
    root: str | None = None
    externals: tuple[str, ...] = ()
    empty_network: bool = False
    close_connections: bool = False
    deadline_s: float | None = None
    on_notice: OnNotice | None = None

    def to_message(self) -> dict[str, Value]:
        message: dict[str, Value] = {"log_level": ERRORS_ONLY, "notify_scripts": self.on_notice is not None}
        if self.root is not None:
            message["root"] = self.root
        if self.empty_network:
            message["empty_ns"] = EMPTY_NETWORK
        return message | _common(self, [])


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
    """`memory_tracking`: the kernel has soft-dirty bits, so dumps can be incremental. `lazy_pages`: userfaultfd
    serves."""

    memory_tracking: bool
    lazy_pages: bool


def _common(options: DumpOptions | RestoreOptions, more_externals: list[Value]) -> dict[str, Value]:
    """What both are told: a restore the same as the dump was."""
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
        # The session's cgroup is made, entered and limited by us.
        "manage_cgroups_mode": CGROUPS_IGNORE,
        "network_lock": NETWORK_LOCK_SKIP,
    }
