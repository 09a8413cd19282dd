"""The program that starts a router's pasta(1), and ends. It prints pasta's pid, whether that reaches IPv6 (0 or 1), and
the pid of a process that is in the router's network namespace, 0 if none is; or why there is no pasta.

It is a program of its own, as only a process with a single thread can make a user namespace. Its child makes the
router's network namespace, owned by a user of whom nothing else is, and holds it until pasta does: pasta runs as that
user, so nothing that it is led to do is done by root. The mounts are its own, with a /dev that has the tun device for
every user, as on most machines, and a /tmp for the file with its pid (AppArmor lets it write to no other), whose name
tells who looks at the machine's processes which home they belong to.

Without root that user is the one whose sessions these are, and /dev the machine's. There the child goes on, as the
program sleep(1): the kernel shows nobody but the machine's root what pasta has open.
"""

import errno
import os
import signal
import subprocess
import sys

from waypoint.egress import plan
from waypoint.linux.calls import hard_limits, powers, programs
from waypoint.linux.net import network
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import cgroups, kin, namespaces

_NODES = (("null", 1, 3), ("random", 1, 8), ("urandom", 1, 9), ("net/tun", 10, 200))
_HOLDER = "holder"  # the group, without root, of the process that goes on
_MOST_OPEN_FILES = 1 << 20


def main(argv: list[str]) -> None:
    """Run the program. `argv`: the cgroup2 group that all of it is to be in; the home's id; the user that pasta is to
    be; a descriptor of the mount namespace that it is to see.
    """
    group, home_id, owner, mounts_fd = argv[0], argv[1], int(argv[2]), int(argv[3])
    cgroups.enter(group)  # first: by the group all that follows is ended, also by those who wait for it no longer
    # Every connection of a session takes two of pasta's. It raises its soft limit to the hard one by itself.
    hard_limits.raise_own({"RLIMIT_NOFILE": min(hard_limits.most_open_files(), _MOST_OPEN_FILES)})
    if mounts_fd >= 0:
        namespaces.setns(mounts_fd, namespaces.CLONE_NEWNS)
    namespaces.unshare(namespaces.CLONE_NEWNS)
    holder, let_go = _hold_namespace(owner)
    is_kept = kin.is_bare(group)
    try:
        if is_kept:
            cgroups.create(f"{group}/{_HOLDER}")
            kin.note_first(f"{group}/{_HOLDER}", holder)
        _make_places()
        pid, has_ipv6 = _start(owner, holder, pid_file(home_id))
        if is_kept:
            kin.note_first(group, pid)
            os.write(let_go, b".")
        print(pid, int(has_ipv6), holder if is_kept else 0, flush=True)
    except BaseException:
        is_kept = False
        raise
    finally:
        if not is_kept:
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)


def pid_file(home_id: str) -> str:
    """The path, in its own /tmp, of the file with the pid of the home's pasta: one of the words that it is run with."""
    return f"/tmp/waypoint-{home_id}.pid"


def _hold_namespace(owner: int) -> tuple[int, int]:
    """Fork a process with new user and network namespaces, which `owner` owns. It ends with the caller, unless that
    writes to it. Returns its pid, and where to write.
    """
    sleep = programs.find("sleep")
    if sleep is None:
        raise FileNotFoundError(errno.ENOENT, "no program sleep", "sleep")
    told, tell = os.pipe()
    hears, let_go = os.pipe()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    holder = os.fork()
    if holder == 0:
        try:
            namespaces.set_death_signal(signal.SIGKILL)
            if powers.is_machines():
                os.setgroups([])
                os.setresgid(owner, owner, owner)
            namespaces.unshare_user(owner)
            namespaces.unshare(namespaces.CLONE_NEWNET)
            namespaces.prctl(namespaces.PR_SET_DUMPABLE, 1)  # pasta opens both, as `owner`
            os.write(tell, b".")
            if os.read(hears, 1):
                namespaces.set_death_signal(0)
                os.setsid()
                for number in range(3):
                    os.dup2(null, number)
                os.execv(sleep, ["sleep", "infinity"])
        finally:
            os._exit(1)
    os.close(tell)
    os.close(hears)
    if os.read(told, 1) != b".":
        raise OSError(0, "no network namespace could be made")
    namespaces.map_ids(holder, f"0 {owner} 1\n")
    return holder, let_go


def _make_places() -> None:
    mounts.make_private("/")
    mounts.mount("tmpfs", "/tmp", "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, "mode=1777")
    if not powers.is_machines():
        return
    mounts.mount("tmpfs", "/dev", "tmpfs", mounts.MS_NOSUID, "mode=0755")
    os.mkdir("/dev/net")
    for name, major, minor in _NODES:
        os.mknod(f"/dev/{name}", 0o020666, os.makedev(major, minor))
        os.chmod(f"/dev/{name}", 0o666)


def _start(owner: int, holder: int, pid_file: str) -> tuple[int, bool]:
    """Returns pasta's pid, and whether it reaches IPv6."""
    program = programs.find("pasta")
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "no program pasta", "pasta")
    has_ipv6 = network.leads_out_by_ipv6()
    words = [program, "--config-net", "--no-map-gw", "-I", plan.OUT, "--no-dhcp", "--no-dhcpv6", "--no-ra"]
    for forwarded in ("-t", "-u", "-T", "-U"):
        words += [forwarded, "none"]
    words += [*plan.PASTA, *(plan.PASTA_IPV6 if has_ipv6 else ("-4",))]
    words += ["--runas", f"{owner}:{owner}", "--quiet", "--pid", pid_file]
    words += ["--userns", namespaces.path(holder, "user"), "--netns", namespaces.path(holder, "net"), "--no-netns-quit"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd="/")
    if done.returncode != 0:
        said = [line for line in done.stderr.decode(errors="replace").splitlines() if "to syslog" not in line]
        raise OSError(0, f"pasta: {' '.join(said[-1:]) or f'exit status {done.returncode}'}")
    with open(pid_file) as file:
        return int(file.read()), has_ipv6


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, subprocess.SubprocessError) as error:
        where = f": {os.fsdecode(error.filename)}" if isinstance(error, OSError) and error.filename else ""
        print(f"{error.strerror or error}{where}" if isinstance(error, OSError) else str(error), file=sys.stderr)
        sys.exit(1)
