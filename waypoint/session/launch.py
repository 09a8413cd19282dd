"""How a session comes to life: the steps that a forked child of the launcher takes, in their order.

Three processes take part. The *task* stays outside, writes the id maps (only a process outside may) and reports. The
*outer* child enters the cgroup and makes the network and mount namespaces as the host's root, then gives that up in a
user namespace. The *inner* child is pid 1 of the new pid namespace: it mounts what must belong to the session, pivots,
opens the terminal and becomes the init program.

Everything here runs in a small process with one thread; it may fork freely. Sources: namespaces(7), user_namespaces(7),
pty(7), kernel Documentation/filesystems/overlayfs.rst; each order constraint says what fails without it.
"""

import contextlib
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import NoReturn

from waypoint.linux import files, mounts, namespaces, network, ptys
from waypoint.linux.clone import fork_into
from waypoint.linux.mounts import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY
from waypoint.session.launch_spec import RUN_FOLDER, BindMount, EnterSpec, Identity, Launched, Overlay, StartSpec

MASTER_FD = 3  # where pid 1 keeps the master side of the terminal
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_REPORT_FD = 90  # moved out of the way of 0 to 3, closed by exec
_HANDED_OVER = b"+"

Answer = tuple[Launched, list[int]]
"""What became of it, and descriptors of what runs: the caller's, close-on-exec."""

# Docker's default set without mknod: enough for package managers, su and servers, nothing over the host's kernel.
KEPT_CAPABILITIES = frozenset(namespaces.CAPABILITIES.values())

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
        new_network(spec.net)
        namespaces.unshare(namespaces.CLONE_NEWNS)
        mounts.make_slave("/")
        _mount_from_outside(spec)
        namespaces.unshare(namespaces.CLONE_NEWUSER)
        os.write(ask, b"map")
        if os.read(answer, 1) != b".":
            raise OSError(0, "the id maps were not written")
        os.setgid(0)
        os.setuid(0)
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

    return _supervise(outer, spec.cgroup)


def enter(spec: EnterSpec, stdio: list[int]) -> Answer:
    """Start `spec.argv` in the session of init `spec.pid`, adopted by that init. Returns when it runs.

    It is in the session's cgroup (else it would be neither frozen nor dumped) and a child of its pid 1. The
    descriptors: of the process and, with a terminal, of its master.
    """

    def outer(report: int, ask: int, answer: int) -> None:
        os.close(answer)
        pidfd = os.pidfd_open(spec.pid)
        kinds = namespaces.CLONE_NEWUSER | namespaces.CLONE_NEWNS | namespaces.CLONE_NEWPID | namespaces.CLONE_NEWIPC
        kinds |= namespaces.CLONE_NEWUTS | namespaces.CLONE_NEWNET
        namespaces.setns(pidfd, kinds)
        # The time namespace last: entering a user namespace first gives the right to it.
        namespaces.setns(pidfd, namespaces.CLONE_NEWTIME)
        os.setgid(0)
        os.setuid(0)
        _go_to_pid_1(ask)
        os.setsid()
        _give_stdio(spec, stdio, report)
        _hand_over([MASTER_FD] if spec.tty else [])
        _exec(spec.identity, spec.argv, spec.env, spec.cwd)

    return _supervise(outer, spec.cgroup)


def _go_to_pid_1(ask: int) -> None:
    """Return in a grandchild that the session's pid 1 has adopted, after its pid, as the host sees it, went to `ask`.

    A child of this process would not do: once orphaned it goes to a reaper of the host, and CRIU, which follows pid 1's
    descendants, dumps the session without it and says nothing. The child in between is inside, so its orphan stays
    inside. Only the kernel knows the orphan's pid out here: it puts it on a message (unix(7), SCM_CREDENTIALS).
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    between = os.fork()
    if between:
        theirs.close()
        os.waitpid(between, 0)
        _content, messages, _flags, _address = ours.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
        if messages:
            os.write(ask, f"pid {_CREDENTIALS.unpack(messages[0][2])[0]}".encode())
            ours.send(b".")
        os._exit(0)
    if os.fork():
        os._exit(0)
    ours.close()
    theirs.send(b".")
    theirs.recv(1)
    theirs.close()


def _supervise(outer: Callable[[int, int, int], None], cgroup: str) -> Answer:
    """Fork `outer`, write its id maps when it asks, wait until its child has executed a program or something failed."""
    report_r, report_w = (end.detach() for end in socket.socketpair())
    ask_r, ask_w = os.pipe()
    answer_r, answer_w = os.pipe()
    child = fork_into(cgroup)
    if child == 0:
        for fd in (report_r, ask_r, answer_w):
            os.close(fd)
        _run_child(outer, report_w, ask_w, answer_r)
    for fd in (report_w, ask_w, answer_r):
        os.close(fd)
    pid = 0
    said = os.read(ask_r, 64)
    if said == b"map":
        namespaces.map_identity(child)
        os.write(answer_w, b".")
        said = os.read(ask_r, 64)
    if said.startswith(b"pid "):
        pid = int(said[4:])
    failed, handed_over = _read_all(report_r)  # end of file: exec closed the last copy
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    for fd in (report_r, ask_r, answer_w):
        os.close(fd)
    if failed or not pid:
        for fd in handed_over:
            os.close(fd)
        number, _, rest = failed.decode(errors="replace").partition("|")
        path, _, words = rest.partition("|")
        return Launched(errno=int(number or 0), path=path, error=words or "the child died without a word"), []
    return Launched(pid=pid), handed_over


def _run_child(work: Callable[[int, int, int], None], report: int, ask: int, answer: int) -> NoReturn:
    """Run `work`; whatever goes wrong is written to `report`. Never returns into the caller's stack."""
    try:
        os.set_inheritable(report, False)  # noqa: FBT003 - the call takes no keywords
        work(report, ask, answer)
    except OSError as error:
        path = os.fsdecode(error.filename) if error.filename else ""
        _report(report, f"{error.errno or 0}|{path}|{error.strerror or error}")
    except BaseException as error:  # a forked child must not return into its parent's code
        _report(report, f"0||{type(error).__name__}: {error}")
    os._exit(1)


def _report(report: int, text: str) -> None:
    """The report's fd moves to _REPORT_FD in the inner child: write to whichever is open."""
    for fd in (_REPORT_FD, report):
        with contextlib.suppress(OSError):
            os.write(fd, text.encode(errors="replace"))
            return


def _read_all(report: int) -> tuple[bytes, list[int]]:
    """The words of failure, and the descriptors that were handed over."""
    text, descriptors = b"", []
    with socket.socket(fileno=os.dup(report)) as sock:
        while True:
            chunk, received, _flags, _address = socket.recv_fds(sock, 4096, 4, socket.MSG_CMSG_CLOEXEC)
            descriptors += received
            if not chunk:
                return text, descriptors
            text += chunk.removeprefix(_HANDED_OVER)


def new_network(net: str) -> None:
    if net == "host":
        return
    namespaces.unshare(namespaces.CLONE_NEWNET)
    network.raise_loopback()
    # In a user namespace that does not own the network namespace no capability helps: these two let anyone serve port
    # 80 and ping.
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
    mounts.mount("tmpfs", f"{merged}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    os.chdir(merged)
    mounts.pivot_root_here()
    # CRIU otherwise: "A session leader of ... is outside of its pid namespace".
    os.setsid()
    os.dup2(report, _REPORT_FD, inheritable=False)
    os.closerange(MASTER_FD, _REPORT_FD)
    _open_terminal(spec.rows, spec.cols, spec.identity.uid)
    os.closerange(_REPORT_FD + 1, 4096)
    namespaces.join_new_session_keyring()
    run_folder = os.open(f"/{RUN_FOLDER}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    _hand_over([MASTER_FD, run_folder])
    _exec(spec.identity, spec.argv, spec.env, spec.cwd)


def _hand_over(descriptors: list[int]) -> None:
    """Give them to whoever supervises, behind one of this process itself.

    Now, because the process may end before anybody could get hold of it, and of what it has open, by its pid.
    """
    with socket.socket(fileno=os.dup(_REPORT_FD)) as report:
        own = os.pidfd_open(os.getpid())
        socket.send_fds(report, [_HANDED_OVER], [own, *descriptors])
        os.close(own)


def _open_terminal(rows: int, cols: int, uid: int) -> None:
    """A fresh pair in the session's own devpts: the master as fd 3, the slave as 0, 1 and 2."""
    master = os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY)
    if master != MASTER_FD:
        raise OSError(0, f"the master became fd {master}, not {MASTER_FD}")
    number = ptys.unlock_slave(master)
    ptys.set_size(master, rows, cols)
    slave = os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY)
    os.fchown(slave, uid, 5)
    for fd in (0, 1, 2):
        os.dup2(slave, fd)
    os.close(slave)
    os.set_inheritable(MASTER_FD, True)  # noqa: FBT003 - the call takes no keywords


def _give_stdio(spec: EnterSpec, stdio: list[int], report: int) -> None:
    os.dup2(report, _REPORT_FD, inheritable=False)
    if spec.tty:
        os.closerange(MASTER_FD, _REPORT_FD)
        _open_terminal(spec.rows, spec.cols, spec.identity.uid)
    else:
        high = [os.dup(fd) for fd in stdio]
        for place, fd in enumerate(high):
            os.dup2(fd, place)
        os.closerange(3, _REPORT_FD)
    os.closerange(_REPORT_FD + 1, 4096)


def _enter_first(folders: list[str]) -> None:
    """Raises what the last of `folders` said if none can be entered."""
    for folder in folders[:-1]:
        with contextlib.suppress(OSError):
            os.chdir(folder)
            return
    os.chdir(folders[-1])


def _exec(identity: Identity, argv: list[str], env: dict[str, str], cwd: list[str]) -> NoReturn:
    """Become `argv` as `identity`, in the first of `cwd` that can be entered; nothing is inherited."""
    namespaces.limit_capabilities(KEPT_CAPABILITIES)
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python ignores or catches some; exec would hand that on
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.setgroups(identity.groups)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
    _enter_first(cwd)
    os.execve(argv[0], argv, env)
    sys.exit(1)
