"""How a session comes to life: the steps that a forked child of the launcher takes, in their order.

Two processes take part besides the one that asks (birth.py). The *outer* child enters the cgroup and makes the mount
namespace as the host's root, then gives that up in a user namespace. The *inner* child is pid 1 of the new
pid namespace: it mounts what must belong to the session, pivots, opens the terminal and becomes the init program.

Everything here runs in a small process with one thread; it may fork freely. Sources: namespaces(7), user_namespaces(7),
pty(7), kernel Documentation/filesystems/overlayfs.rst; each order constraint says what fails without it.
"""

import contextlib
import os

from waypoint.linux import files, mounts, namespaces, network
from waypoint.linux.mounts import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY
from waypoint.session.launch.birth import REPORT_FD, Answer, hand_over, supervise
from waypoint.session.launch.program import MASTER_FD, become, open_terminal
from waypoint.session.launch.spec import RUN_FOLDER, BindMount, MemoryMount, Overlay, StartSpec

# Kernels differ in their defaults, so each is said. redirect_dir makes renames of lower folders work; index and
# nfs_export tie an upper to its lower's inodes (ESTALE once copied); metacopy would leave data in a lower that may
# change.
OVERLAY_OPTIONS = "index=off,metacopy=off,redirect_dir=on,xino=off,nfs_export=off"


def start(spec: StartSpec) -> Answer:
    """Carry out `spec`; returns when the session's init program runs. On failure no process of it is left.

    The descriptors: of that process, of the terminal's master, of the session's /run/waypoint.
    """

    def outer(report: int, ask: int, answer: int) -> None:
        os.setsid()
        os.umask(0o022)  # the daemon's hides what it makes; what is mounted on here is for everybody
        namespaces.unshare(namespaces.CLONE_NEWNS)
        mounts.make_slave("/")
        _mount_from_outside(spec)
        namespaces.unshare(namespaces.CLONE_NEWUSER)
        os.write(ask, b"map")
        if os.read(answer, 1) != b".":
            raise OSError(0, "the id maps were not written")
        os.setgid(0)
        os.setuid(0)
        # In the user namespace: CRIU makes a fork's there too, since only who owns it may bring connections back.
        new_network(spec.net)
        # The time namespace is there from the start: after a reboot or on another machine the monotonic clock must not
        # go back, and it cannot be added to an image later.
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
    if net == "host":
        return
    namespaces.unshare(namespaces.CLONE_NEWNET)
    furnish_network()


def furnish_network() -> None:
    """Of the network namespace that the caller is in: loopback, and that anyone may serve port 80, and ping."""
    network.raise_loopback()
    network.write_setting("ipv4/ip_unprivileged_port_start", "0")
    network.write_setting("ipv4/ping_group_range", "0 2147483647")


def _mount_from_outside(spec: StartSpec) -> None:
    """What needs the host's root: overlays (of host folders) and binds. The session cannot undo any of them."""
    for overlay in spec.overlays:
        target = f"{spec.merged}{overlay.target}".rstrip("/")
        mounts.mount("overlay", target, "overlay", MS_NODEV, overlay_options(overlay))
    for item in spec.binds:
        _make_place(spec.merged, item)
        target = f"{spec.merged}{item.target}"
        mounts.bind(item.source, target)
        flags = (0 if item.device_nodes else MS_NODEV) | (MS_RDONLY if item.readonly else 0)
        mounts.remount_bind(target, flags | MS_NOSUID)
    for memory in spec.memory:
        mount_memory(memory, f"{spec.merged}{memory.target}")


def mount_memory(memory: MemoryMount, place: str) -> None:
    mounts.mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    if memory.content:
        from waypoint.linux import filesystem  # with threads: not for every fork of the launcher

        filesystem.copy_tree(memory.content, place)


def _make_place(merged: str, item: BindMount) -> None:
    """Make what `item` is mounted on, if it is not there. No link is followed: it could lead out of the session."""
    *parents, last = item.target.strip("/").split("/")
    folder = os.open(merged, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in parents:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=folder)
            below = files.open_beneath(folder, name, os.O_PATH | os.O_DIRECTORY)
            os.close(folder)
            folder = below
        with contextlib.suppress(FileExistsError):
            if os.path.isdir(item.source):
                os.mkdir(last, 0o755, dir_fd=folder)
            else:
                os.close(os.open(last, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder))
        os.close(files.open_beneath(folder, last, os.O_PATH))
    finally:
        os.close(folder)


def overlay_options(overlay: Overlay) -> str:
    lowers = ":".join(mounts.escape(path) for path in overlay.lowers)
    places = f"lowerdir={lowers},upperdir={mounts.escape(overlay.upper)},workdir={mounts.escape(overlay.work)}"
    return f"{places},{OVERLAY_OPTIONS}"


def _become_init(spec: StartSpec, report: int) -> None:
    """The inner child: pid 1 of the session."""
    merged = spec.merged
    # pivot_root needs a mount that this namespace owns: inherited ones are locked.
    mounts.bind(merged, merged, recursive=True)
    mounts.mount("proc", f"{merged}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in spec.proc_readonly:
        place = f"{merged}/proc/{name}"
        with contextlib.suppress(FileNotFoundError):
            mounts.bind(place, place)
            mounts.remount_bind(place, MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    # Descriptions of keys of the host's same uids would show there. Over a file of the external /dev: no mount more for
    # an image to name.
    with contextlib.suppress(FileNotFoundError):
        mounts.bind(f"{merged}/dev/null", f"{merged}/proc/keys")
    pts_options = "newinstance,ptmxmode=0666,mode=620,gid=5"
    mounts.mount("devpts", f"{merged}/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, pts_options)
    os.chdir(merged)
    mounts.pivot_root_here()
    # CRIU otherwise: "A session leader of ... is outside of its pid namespace".
    os.setsid()
    os.dup2(report, REPORT_FD, inheritable=False)
    os.closerange(MASTER_FD, REPORT_FD)
    open_terminal(spec.rows, spec.cols, spec.identity.uid)
    os.closerange(REPORT_FD + 1, 4096)
    namespaces.join_new_session_keyring()
    run_folder = os.open(f"/{RUN_FOLDER}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    hand_over([MASTER_FD, run_folder])
    become(spec.identity, spec.argv, spec.env, spec.cwd)
