"""Starting a session: the steps that forked children of the launcher take, in their order.

Two processes take part besides the task that asked for them (supervise.py). The *outer* child is in the session's
cgroup; as the host's root it makes a mount namespace and the mounts from outside, then gives that power up in a user
namespace. The *inner* child is pid 1 of the new pid namespace: it makes the mounts that must belong to the session,
pivots into them, opens the terminal and becomes the init program.

The process is small and has one thread, so it may fork freely. Sources: namespaces(7), user_namespaces(7), pty(7),
kernel Documentation/filesystems/overlayfs.rst. Where the order of steps matters, a comment says what fails otherwise.
"""

import os
from collections.abc import Sequence
from typing import Literal

from waypoint.egress import session_side
from waypoint.launch import externals
from waypoint.launch.program import MASTER_FD, check_program, execute, limit_processes, open_terminal, take_on
from waypoint.launch.spec import StartSpec
from waypoint.launch.supervise import REPORT_FD, LaunchResult, hand_over, supervise
from waypoint.linux.calls import powers
from waypoint.linux.net import network
from waypoint.linux.storage import beneath, mounts
from waypoint.linux.storage.beneath import MountPlace
from waypoint.linux.storage.mounts import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY
from waypoint.linux.tasks import namespaces
from waypoint.linux.tasks.clone import wait_entered
from waypoint.model.paths import NOTHING, NULL, PROC, RUN_FOLDER, TERMINALS

MOST_TERMINALS = 64  # of a session at a time: 256 let twelve sessions take all of the machine
LEAST = (("ipv4/tcp_max_tw_buckets", 65536), ("ipv4/tcp_max_syn_backlog", 1024))
"""What the kernel makes less of in a namespace with a small table of connections (`network.open_birthplace`)."""
GROUP_MAX = 2**31 - 1  # of net.ipv4.ping_group_range


def start(spec: StartSpec, users: Sequence[int], birthplace: int) -> LaunchResult:
    """Start the session that `spec` describes. Returns when its init program runs, or a step has failed; then no
    process and no mount of the session is left. `users`: as for `FromOutside`. `birthplace`: as for `go_to_birthplace`.

    The descriptors in the answer: a pidfd of the init process, the terminal's master, the session's /run/waypoint.
    """

    def outer(report: int, ask: int, answer: int) -> None:
        if powers.is_machines():  # else nobody could write the id maps
            namespaces.hide_from_peers()
        os.setsid()
        os.umask(0o022)  # the daemon's umask is stricter, and the mount points made here are for everybody to enter
        go_to_birthplace(birthplace, spec)
        namespaces.unshare(namespaces.CLONE_NEWNS)
        mounts.make_slave("/")
        _mount_from_outside(spec, users)
        # As the host's root, whose keys are not counted: all sessions of a home together may have 200 (keyrings(7)).
        namespaces.join_new_session_keyring()
        namespaces.unshare_user(spec.owner)
        os.write(ask, b"map")
        if os.read(answer, 1) != b".":
            raise OSError(0, "the id maps were not written")
        namespaces.hide_from_peers()
        _become_root()
        # Within the user namespace, as in every restored copy: only the owner of a network namespace may restore TCP
        # connections in it.
        new_network(spec)
        # A time namespace from the start: after a reboot or on another machine the monotonic clock must not go back,
        # and a time namespace cannot be added to an image later.
        kinds = namespaces.CLONE_NEWNS | namespaces.CLONE_NEWPID | namespaces.CLONE_NEWIPC
        namespaces.unshare(kinds | namespaces.CLONE_NEWUTS | namespaces.CLONE_NEWTIME)
        wait_entered()
        inner = os.fork()
        if inner:
            os.write(ask, f"pid {inner}".encode())
            os._exit(0)
        os.close(ask)
        os.close(answer)
        _become_init(spec, report)

    return supervise(outer, spec.cgroup, spec.ids.lines())


def _become_root() -> None:
    """Become the root of the user namespace that the caller has made, if it has one. The capabilities stay."""
    if powers.is_machines():
        os.setgid(0)
        os.setuid(0)


def go_to_birthplace(birthplace: int, spec: StartSpec) -> None:
    """Go where the network namespace of the session is to be made: `network.open_birthplace`; -1: there is none."""
    if birthplace >= 0 and spec.net != "host":
        namespaces.setns(birthplace, namespaces.CLONE_NEWNET)


def new_network(spec: StartSpec) -> None:
    """Enter a new network namespace and set it up, unless the session is on the host's network. Raises OSError."""
    if spec.net == "host":
        return
    namespaces.unshare(namespaces.CLONE_NEWNET)
    furnish_network(spec.net, spec.ids.last if spec.ids.is_shifted else GROUP_MAX)


def furnish_network(net: Literal["private", "none"], last_group: int = GROUP_MAX) -> None:
    """Set up the caller's network namespace: loopback is up, with the session's address if it is to have a way out, and
    every user may bind low ports and ping. `last_group`: the last group id of the caller's user namespace.
    """
    if net == "private":
        session_side.furnish()
    else:
        network.raise_loopback()
    for name, least in LEAST:
        network.raise_setting(name, least)
    network.write_setting("ipv4/ip_unprivileged_port_start", "0")
    first_group, last_group = (0, last_group) if powers.is_machines() else (os.getgid(),) * 2
    network.write_setting("ipv4/ping_group_range", f"{first_group} {last_group}")


def _mount_from_outside(spec: StartSpec, users: Sequence[int]) -> None:
    """Make the mounts that need the host's root: overlays, binds, tmpfs. In the session's user namespace they are
    locked: the session cannot undo them.
    """
    outside = externals.FromOutside(spec, users)
    for overlay in spec.overlays:
        outside.overlay(overlay, MountPlace(spec.merged, overlay.target))
    for item in spec.binds:
        outside.make_place(item, spec.merged)
        outside.bind(item, MountPlace(spec.merged, item.target))
    for memory in spec.memory:
        outside.memory(memory, MountPlace(spec.merged, memory.target))


def _become_init(spec: StartSpec, report: int) -> None:
    """The steps of the inner child, pid 1 of the session."""
    merged = spec.merged
    # pivot_root needs a mount that this namespace owns: inherited ones are locked.
    mounts.bind(merged, merged, recursive=True)
    _mount_kernel_views(spec)
    externals.check_mounts(spec, mounts.read_mounts(), merged)
    os.chdir(merged)
    mounts.pivot_root_here()
    # Without this CRIU refuses a dump: "A session leader of ... is outside of its pid namespace".
    os.setsid()
    os.dup2(report, REPORT_FD, inheritable=False)
    os.closerange(MASTER_FD, REPORT_FD)
    open_terminal(spec.rows, spec.cols, spec.identity.uid)
    os.closerange(REPORT_FD + 1, 4096)
    with MountPlace("/").opened_fd() as root:
        run_folder = beneath.open_beneath(root, RUN_FOLDER, os.O_RDONLY | os.O_DIRECTORY)
    if spec.processes is not None:
        limit_processes(spec.processes)
    entered = take_on(spec.identity, spec.cwd, spec.seccomp)
    if spec.needed:
        check_program(spec.needed, spec.env)
    hand_over([MASTER_FD, run_folder], entered)
    execute(spec.argv, spec.env)


def _mount_kernel_views(spec: StartSpec) -> None:
    """Mount the session's own proc, with its masks, and devpts. A mask that cannot be set raises OSError."""
    merged = spec.merged
    with MountPlace(merged, PROC).opened() as point:
        mounts.mount("proc", point, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in spec.proc_readonly:
        place = MountPlace(merged, f"{PROC}/{name}")
        with place.opened() as point:
            mounts.bind(point, point)
        with place.opened() as mounted:
            mounts.remount_bind(mounted, MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for path in spec.masked:
        with MountPlace(merged, path).opened() as point:
            # Of /dev, which is a mount from outside already: images need not name one more.
            cover = NOTHING if os.path.isdir(point) else NULL
            with MountPlace(merged, cover).opened() as nothing:
                mounts.bind(nothing, point)
    with MountPlace(merged, TERMINALS).opened() as point:
        pts_options = f"newinstance,ptmxmode=0666,mode=620,max={MOST_TERMINALS}"
        pts_options += ",gid=5" if powers.is_machines() else ""
        mounts.mount("devpts", point, "devpts", MS_NOSUID | MS_NOEXEC, pts_options)
