"""What a dump and a restore are told and what they answer, in Waypoint's words.

Folders go as file descriptors *of this process*: CRIU opens `/proc/<our pid>/fd/<n>` (it learns our pid from the
socket), so they serve in whatever mount namespace CRIU runs, and a folder that is renamed meanwhile stays the right
one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from waypoint.processes.criu_messages import CGROUPS_IGNORE, EMPTY_NETWORK, NETWORK_LOCK_SKIP, Value

# Deleted files up to this size are stored with the image. CRIU's own limit of 1 MiB refuses ordinary databases; on
# overlayfs a deleted file cannot be linked back, so there is no other way to keep it.
GHOST_LIMIT_BYTES = 64 << 20

ERRORS_ONLY = 1
EVERYTHING = 4


@dataclass(frozen=True, slots=True)
class Notice:
    """CRIU has reached `stage` and waits for the callback to return. No task of the tree runs meanwhile.

    Stages of a dump: pre-dump, query-ext-files, post-dump (network-lock and -unlock with a lock). Of a restore:
    pre-restore, setup-namespaces (the root task exists in its namespaces, nothing else does), post-setup-namespaces,
    orphan-pts-master, post-restore (all tasks exist), pre-resume, post-resume.

    `pid`: the root task as the host sees it, at setup-namespaces and post-restore. `fd`: a terminal's master, at
    orphan-pts-master; the callback owns it.
    """

    stage: str
    pid: int | None = None
    fd: int | None = None


OnNotice = Callable[[Notice], None]


@dataclass(frozen=True, slots=True)
class InheritedFd:
    """A file that the restored tree is to have instead of the one that was external: CRIU's key for it, and our fd."""

    key: str
    fd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """One dump.

    `tree_pid`: the root task, as the host sees it. `images_fd`, `work_fd`: folders for the images, and for the log and
    CRIU's figures.
    `freeze_cgroup`: the cgroup2 folder of the tree, frozen already (a frozen group dumped without naming it hangs).
    `externals`: what is outside, as in `mnt[/dev]:dev`. `parent`: the images of a previous dump, relative to
    `images_fd`; with
    `track_memory` only pages changed since then are written. `irmap_paths`: folders in which watched files are looked
    for by inode. `timeout_s`: CRIU gives up if the tree cannot be stopped within it. `deadline_s`: a CRIU that is
    silent for longer is killed, which leaves tasks of the tree damaged: only for a tree that will be thrown away.
    `own_network`: CRIU runs in the tree's network namespace, of which nothing but sockets is to be kept; the images are
    to say that it is the tree's own. Their restore needs `empty_network`.
    `on_let_go`: called when the dump has worked and CRIU holds no task any more, a millisecond before it has ended.
    """

    tree_pid: int
    images_fd: int
    work_fd: int
    freeze_cgroup: str | None = None
    leave_running: bool = True
    externals: tuple[str, ...] = ()
    ghost_limit_bytes: int = GHOST_LIMIT_BYTES
    tcp_established: bool = True
    file_locks: bool = True
    link_remap: bool = True
    external_unix_sockets: bool = True
    skip_network_lock: bool = True
    own_network: bool = False
    irmap_paths: tuple[str, ...] = ()
    parent: str | None = None
    track_memory: bool = False
    timeout_s: int = 10
    log_level: int = ERRORS_ONLY
    log_name: str = "dump.log"
    deadline_s: float | None = None
    on_notice: OnNotice | None = None
    on_let_go: Callable[[], None] | None = None

    def to_message(self) -> dict[str, Value]:
        message: dict[str, Value] = {
            "images_dir_fd": self.images_fd,
            "work_dir_fd": self.work_fd,
            "pid": self.tree_pid,
            "leave_running": self.leave_running,
            "ghost_limit": self.ghost_limit_bytes,
            "track_mem": self.track_memory,
            "timeout": self.timeout_s,
            "irmap_scan_paths": list(self.irmap_paths),
            "external": list(self.externals),
        }
        if self.freeze_cgroup is not None:
            message["freeze_cgroup"] = self.freeze_cgroup
        if self.parent is not None:
            message["parent_img"] = self.parent
        return message | _common(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """One restore. The options that also a dump has must be those of the dump.

    `root`: where the root of the tree's mount namespace lies mounted in CRIU's. `work_fd`: never the images' folder,
    which several restores may share. `externals`: as in `mnt[dev]:/some/folder`. `sibling`: the root task becomes a
    child of CRIU's parent instead of being orphaned. `lazy`: memory arrives on demand from a lazy-pages server that
    listens in `work_fd`. `empty_network`: the tree gets a new network namespace, in which nothing is set up before the
    stage post-setup-namespaces. `deadline_s`: a CRIU that is silent for longer is killed.
    """

    images_fd: int
    work_fd: int
    root: str | None = None
    externals: tuple[str, ...] = ()
    inherited: tuple[InheritedFd, ...] = ()
    tcp_established: bool = True
    tcp_close: bool = False
    file_locks: bool = True
    link_remap: bool = True
    external_unix_sockets: bool = True
    skip_network_lock: bool = True
    empty_network: bool = False
    orphan_terminal_master: bool = False
    sibling: bool = False
    lazy: bool = False
    log_level: int = ERRORS_ONLY
    log_name: str = "restore.log"
    deadline_s: float | None = None
    on_notice: OnNotice | None = None

    def to_message(self) -> dict[str, Value]:
        message: dict[str, Value] = {
            "images_dir_fd": self.images_fd,
            "work_dir_fd": self.work_fd,
            "tcp_close": self.tcp_close,
            "rst_sibling": self.sibling,
            "lazy_pages": self.lazy,
            "orphan_pts_master": self.orphan_terminal_master,
            "external": list(self.externals),
            "inherit_fd": [{"key": item.key, "fd": item.fd} for item in self.inherited],
        }
        if self.root is not None:
            message["root"] = self.root
        if self.empty_network:
            message["empty_ns"] = EMPTY_NETWORK
        return message | _common(self)


@dataclass(frozen=True, slots=True)
class DumpStats:
    """What CRIU measured: how long the tree was stopped, and the memory it looked at and wrote."""

    frozen_us: int
    memory_dump_us: int
    pages_scanned: int
    pages_skipped_parent: int
    pages_written: int


@dataclass(frozen=True, slots=True)
class DumpResult:
    stats: DumpStats


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
    pidfd_store: bool


def _common(options: DumpOptions | RestoreOptions) -> dict[str, Value]:
    message: dict[str, Value] = {
        "ext_unix_sk": options.external_unix_sockets,
        "tcp_established": options.tcp_established,
        "file_locks": options.file_locks,
        "link_remap": options.link_remap,
        "log_level": options.log_level,
        "log_file": options.log_name,
        # The session's cgroup is made, entered and limited by us.
        "manage_cgroups_mode": CGROUPS_IGNORE,
        "notify_scripts": options.on_notice is not None,
    }
    if options.skip_network_lock:
        message["network_lock"] = NETWORK_LOCK_SKIP
    return message
