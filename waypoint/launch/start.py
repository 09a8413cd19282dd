"""Starting a session: the steps of the launcher's forked children.

Besides the launcher's task (supervise.py) two processes take part. The *outer* child is in the session's cgroup; as the
host's root it makes a mount namespace and the mounts from outside (externals.py), then enters a user namespace. The
*inner* child is pid 1 of the new pid namespace: it makes the mounts that the session owns, pivots into them, opens the
terminal and becomes the init program.

Sources: namespaces(7), user_namespaces(7), pty(7), kernel Documentation/filesystems/overlayfs.rst.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import Literal

from waypoint.egress import session_side
from waypoint.launch import externals
from waypoint.launch.program import (
    MASTER_FD,
    TERMINALS_GROUP,
    execute,
    limit_processes,
    open_terminal,
    take_on,
)
from waypoint.launch.spec import StartSpec
from waypoint.launch.supervise import REPORT_FD, LaunchResult, hand_over, supervise
from waypoint.linux.calls import abilities
from waypoint.linux.net import network
from waypoint.linux.storage import beneath, mounts
from waypoint.linux.storage.beneath import MountPlace
from waypoint.linux.storage.mounts import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY
from waypoint.linux.tasks import namespaces
from waypoint.linux.tasks.clone import wait_entered
from waypoint.model.paths import RUN_FOLDER

MOST_TERMINALS = 64  # the limit for one session; with 256, twelve sessions could use all terminals of the machine
GROUP_MAX = 2**31 - 1  # the highest group id that net.ipv4.ping_group_range accepts


def start(spec: StartSpec, users: Sequence[int]) -> LaunchResult:
    """Start the session that `spec` describes. Return when its init program runs or a step has failed. After a failure
    no process and no mount of the session remains. `users`: the descriptors that `FromOutside` takes.

    The result contains the descriptors of a pidfd of the init process, of the terminal's master and of the session's
    /run/waypoint, in this order.
    """

    def outer(report: int, ask: int, answer: int) -> None:
        if abilities.own().owners:
            namespaces.hide_from_peers()  # else not even the launcher could write the id maps
        os.setsid()
        os.umask(
            0o022
        )  # the daemon's umask is stricter, but all users of the session must be able to enter mount points
        namespaces.unshare(namespaces.CLONE_NEWNS)
        mounts.make_slave("/")
        _mount_from_outside(spec, users)
        # While still the host's root: any other user may have only 200 keys for all sessions together (keyrings(7)).
        namespaces.join_new_session_keyring()
        namespaces.unshare_user(spec.owner)
        os.write(ask, b"map")
        if os.read(answer, 1) != b".":
            raise OSError(0, "the id maps were not written")
        namespaces.hide_from_peers()
        namespaces.become_root()
        # The user namespace must own the network namespace, as in a restore: only the owner of a network namespace may
        # restore its connections.
        new_network(spec)
        # A time namespace from the start, because it cannot be added to an image later: after a reboot or on another
        # machine the monotonic clock must not go back.
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

    return supervise(outer, spec.cgroup, spec.ids.lines() if spec.ids.is_shifted else "")


def new_network(spec: StartSpec) -> None:
    """Enter a new network namespace and set it up, unless the session is on the host's network."""
    if spec.net == "host":
        return
    namespaces.unshare(namespaces.CLONE_NEWNET)
    furnish_network(spec.net, spec.ids.last if spec.ids.is_shifted else GROUP_MAX)


def furnish_network(net: Literal["private", "none"], last_group: int = GROUP_MAX) -> None:
    """Set up the caller's network namespace: loopback, on a private network also the session's address, permission for
    every user to bind low ports and to ping, and no MPTCP. `last_group`: the last group id of the caller's user
    namespace.
    """
    if net == "private":
        session_side.furnish()
    else:
        network.raise_loopback()
    network.write_setting("ipv4/ip_unprivileged_port_start", "0")
    groups = f"0 {last_group}" if abilities.own().groups else f"{os.getgid()} {os.getgid()}"
    network.write_setting("ipv4/ping_group_range", groups)
    with contextlib.suppress(FileNotFoundError):  # a kernel without MPTCP
        # CRIU cannot dump MPTCP sockets. Programs that ask for MPTCP (servers of Go 1.24) then use TCP.
        network.write_setting("mptcp/enabled", "0")


def _mount_from_outside(spec: StartSpec, users: Sequence[int]) -> None:
    """Make the mounts that need the host's root: overlays, binds, tmpfs. The session's user namespace locks them, so
    that the session cannot unmount them.
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
    """Do the steps of the inner child, pid 1 of the session."""
    merged = spec.merged
    # pivot_root needs a mount that this namespace owns: inherited ones are locked.
    mounts.bind(merged, merged, recursive=True)
    _mount_kernel_views(spec)
    externals.check_mounts(spec, mounts.read_mounts(), merged)
    os.chdir(merged)
    mounts.pivot_root_here()
    # Otherwise CRIU refuses a dump: "A session leader of ... is outside of its pid namespace".
    os.setsid()
    os.dup2(report, REPORT_FD, inheritable=False)
    os.closerange(MASTER_FD, REPORT_FD)
    open_terminal(spec.rows, spec.cols, spec.identity.uid)
    os.closerange(REPORT_FD + 1, 4096)
    with MountPlace("/").opened_fd() as root:
        run_folder = beneath.open_beneath(root, RUN_FOLDER, os.O_RDONLY | os.O_DIRECTORY)
    if spec.processes is not None:
        limit_processes(spec.processes)
    argv = _without_terminal(spec.argv) if _is_bash(spec.argv[0]) else spec.argv
    hand_over([MASTER_FD, run_folder], take_on(spec.identity, spec.cwd, spec.seccomp))
    execute(argv, spec.env)


def _is_bash(shell: str) -> bool:
    return os.path.basename(os.path.realpath(shell)) == "bash"


def _without_terminal(argv: list[str]) -> list[str]:
    """Replace stdin of pid 1 by /dev/null, and return its argv so that its program has the terminal as stdin again.

    bash opens the terminal that is its stdin when it starts. So pid 1, a session leader, would get it as its
    controlling terminal, and the program could not.
    """
    null = os.open("/dev/null", os.O_RDONLY | os.O_NOCTTY)
    os.dup2(null, 0)
    os.close(null)
    return [*argv[:2], argv[0], "-c", 'exec "$@" <&1', "sh", *argv[2:]]


def _mount_kernel_views(spec: StartSpec) -> None:
    """Mount the session's own proc and devpts, and cover the paths in `spec.masked`. Any failure raises OSError."""
    merged = spec.merged
    with MountPlace(merged, externals.PROC).opened() as point:
        mounts.mount("proc", point, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in spec.proc_readonly:
        place = MountPlace(merged, f"{externals.PROC}/{name}")
        with place.opened() as point:
            mounts.bind(point, point)
        with place.opened() as mounted:
            mounts.remount_bind(mounted, MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for path in spec.masked:
        with MountPlace(merged, path).opened() as point:
            # The covers are in /dev. Since /dev is itself a mount from outside, the covers add none to CRIU's images.
            cover = externals.NOTHING if os.path.isdir(point) else externals.NULL
            with MountPlace(merged, cover).opened() as nothing:
                mounts.bind(nothing, point)
    with MountPlace(merged, externals.TERMINALS).opened() as point:
        group = f"gid={TERMINALS_GROUP}," if abilities.own().owners else ""
        pts_options = f"newinstance,ptmxmode=0666,mode=620,{group}max={MOST_TERMINALS}"
        mounts.mount("devpts", point, "devpts", MS_NOSUID | MS_NOEXEC, pts_options)
