"""Starting a session: the steps that forked children of the launcher take, in their order.

Two processes take part besides the task that asked for them (supervise.py). The *outer* child is in the session's
cgroup; as the host's root it makes a mount namespace and the mounts from outside, then gives that power up in a user
namespace. The *inner* child is pid 1 of the new pid namespace: it makes the mounts that must belong to the session,
pivots into them, opens the terminal and becomes the init program.

The process is small and has one thread, so it may fork freely. Sources: namespaces(7), user_namespaces(7), pty(7),
kernel Documentation/filesystems/overlayfs.rst. Where the order of steps matters, a comment says what fails otherwise.
"""

import contextlib
import os

from waypoint.launch.program import MASTER_FD, become, open_terminal
from waypoint.launch.spec import MemoryMount, Overlay, StartSpec
from waypoint.launch.supervise import REPORT_FD, LaunchResult, hand_over, supervise
from waypoint.linux.net import network
from waypoint.linux.storage import files, mounts
from waypoint.linux.storage.mounts import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY
from waypoint.linux.tasks import namespaces
from waypoint.model.paths import RUN_FOLDER

# Kernels differ in their defaults, so each option is given. redirect_dir makes renames of lower folders work; index and
# nfs_export would tie an upper to its lower's inodes (ESTALE once it is copied); metacopy would leave data in a lower,
# which may change.
OVERLAY_OPTIONS = "index=off,metacopy=off,redirect_dir=on,xino=off,nfs_export=off"


def start(spec: StartSpec) -> LaunchResult:
    """Start the session that `spec` describes. Returns when its init program runs, or a step has failed; then no
    process and no mount of the session is left.

    The descriptors in the answer: a pidfd of the init process, the terminal's master, the session's /run/waypoint.
    """

    def outer(report: int, ask: int, answer: int) -> None:
        os.setsid()
        os.umask(0o022)  # the daemon's umask is stricter, and the mount points made here are for everybody to enter
        namespaces.unshare(namespaces.CLONE_NEWNS)
        mounts.make_slave("/")
        _mount_from_outside(spec)
        namespaces.unshare(namespaces.CLONE_NEWUSER)
        os.write(ask, b"map")
        if os.read(answer, 1) != b".":
            raise OSError(0, "the id maps were not written")
        os.setgid(0)
        os.setuid(0)
        # Within the user namespace, as in every restored copy: only the owner of a network namespace may restore TCP
        # connections in it.
        new_network(spec.net)
        # A time namespace from the start: after a reboot or on another machine the monotonic clock must not go back,
        # and a time namespace cannot be added to an image later.
        kinds = namespaces.CLONE_NEWNS | namespaces.CLONE_NEWPID | namespaces.CLONE_NEWIPC
        namespaces.unshare(kinds | namespaces.CLONE_NEWUTS | namespaces.CLONE_NEWTIME)
        inner = os.fork()
        if inner:
            os.write(ask, f"pid {inner}".encode())
            os._exit(0)
        os.close(ask)
        os.close(answer)
        _become_init(spec, report)

    return supervise(outer, spec.cgroup)


def new_network(net: str) -> None:
    """Enter a new network namespace and set it up, unless `net` is `host`. Raises OSError."""
    if net == "host":
        return
    namespaces.unshare(namespaces.CLONE_NEWNET)
    furnish_network()


def furnish_network() -> None:
    """Set up the caller's network namespace: loopback is up, and every user may bind low ports and ping."""
    network.raise_loopback()
    network.write_setting("ipv4/ip_unprivileged_port_start", "0")
    network.write_setting("ipv4/ping_group_range", "0 2147483647")


def _mount_from_outside(spec: StartSpec) -> None:
    """Make the mounts that need the host's root: overlays, binds, tmpfs. In the session's user namespace they are
    locked: the session cannot undo them.
    """
    for overlay in spec.overlays:
        target = f"{spec.merged}{overlay.target}".rstrip("/")
        mounts.mount("overlay", target, "overlay", MS_NODEV, overlay_options(overlay))
    for item in spec.binds:
        make_place(spec.merged, item.target, is_folder=os.path.isdir(item.source))
        target = f"{spec.merged}{item.target}"
        mounts.bind(item.source, target)
        flags = (0 if item.device_nodes else MS_NODEV) | (MS_RDONLY if item.readonly else 0)
        mounts.remount_bind(target, flags | MS_NOSUID)
    for memory in spec.memory:
        mount_memory(memory, f"{spec.merged}{memory.target}")


def mount_memory(memory: MemoryMount, place: str) -> None:
    """Mount `memory` at the host path `place` and copy its content there. Raises OSError."""
    mounts.mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    if memory.content:
        from waypoint.linux.storage import filesystem  # loads `threading`, which would slow every fork of the launcher

        filesystem.copy_tree(memory.content, place)


def make_place(merged: str, target: str, *, is_folder: bool) -> None:
    """Make the mount point `target` below `merged` if it is missing, a folder or a file. Links are not followed: they
    could lead out of the session. Raises OSError.
    """
    *parents, last = target.strip("/").split("/")
    folder = os.open(merged, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in parents:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=folder)
            below = files.open_beneath(folder, name, os.O_PATH | os.O_DIRECTORY)
            os.close(folder)
            folder = below
        with contextlib.suppress(FileExistsError):
            if is_folder:
                os.mkdir(last, 0o755, dir_fd=folder)
            else:
                os.close(os.open(last, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder))
        os.close(files.open_beneath(folder, last, os.O_PATH))
    finally:
        os.close(folder)


def overlay_options(overlay: Overlay) -> str:
    """The options of mount(2) for `overlay`, with the paths escaped."""
    lowers = ":".join(mounts.escape(path) for path in overlay.lowers)
    places = f"lowerdir={lowers},upperdir={mounts.escape(overlay.upper)},workdir={mounts.escape(overlay.work)}"
    return f"{places},{OVERLAY_OPTIONS}"


def _become_init(spec: StartSpec, report: int) -> None:
    """The steps of the inner child, pid 1 of the session."""
    merged = spec.merged
    # pivot_root needs a mount that this namespace owns: inherited ones are locked.
    mounts.bind(merged, merged, recursive=True)
    mounts.mount("proc", f"{merged}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in spec.proc_readonly:
        place = f"{merged}/proc/{name}"
        with contextlib.suppress(FileNotFoundError):
            mounts.bind(place, place)
            mounts.remount_bind(place, MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    # /proc/keys would show the descriptions of keys that the same uids have on the host. Covered by a file of /dev,
    # which is a mount from outside already: images need not name one more.
    with contextlib.suppress(FileNotFoundError):
        mounts.bind(f"{merged}/dev/null", f"{merged}/proc/keys")
    pts_options = "newinstance,ptmxmode=0666,mode=620,gid=5"
    mounts.mount("devpts", f"{merged}/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, pts_options)
    os.chdir(merged)
    mounts.pivot_root_here()
    # Without this CRIU refuses a dump: "A session leader of ... is outside of its pid namespace".
    os.setsid()
    os.dup2(report, REPORT_FD, inheritable=False)
    os.closerange(MASTER_FD, REPORT_FD)
    open_terminal(spec.rows, spec.cols, spec.identity.uid)
    os.closerange(REPORT_FD + 1, 4096)
    namespaces.join_new_session_keyring()
    run_folder = os.open(f"/{RUN_FOLDER}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    hand_over([MASTER_FD, run_folder])
    become(spec.identity, spec.argv, spec.env, spec.cwd)
