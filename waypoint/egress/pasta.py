"""A program that starts a router's pasta(1) and its keeper (keeper.py), and ends. It prints the pid of pasta,
whether pasta forwards IPv6, and without root the pid of a process in the router's network namespace; an error goes to
stderr.

It is a separate program because only a process with a single thread can create a user namespace. A child process
creates the router's network namespace and keeps it until pasta has entered it. The namespace and pasta belong to a user
that owns nothing else, so an attacker who takes over pasta does not get root's rights. The program has its own mounts:
a /dev in which every user may open the tun device, as on most machines, and a /tmp for pasta's pid file, since AppArmor
lets pasta write nowhere else.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from waypoint.egress import plan
from waypoint.linux.calls import abilities, hard_limits, programs
from waypoint.linux.net import network
from waypoint.linux.storage import beneath, mounts
from waypoint.linux.tasks import namespaces, procfs

_KEEPER = str(Path(__file__).with_name("keeper.py"))
_PID_FILE = "/tmp/waypoint-pasta.pid"
_NODES = (("null", 1, 3), ("random", 1, 8), ("urandom", 1, 9), ("net/tun", 10, 200))
_MOST_OPEN_FILES = 1 << 20
_HOLD_S = 20
"""Without root nobody may see which namespace pasta has. So a process stays in it for so long, for the daemon."""


def main(argv: list[str]) -> None:
    """Run the program. `argv`: the uid for pasta; a descriptor of the mount namespace that pasta enters, or -1; the
    home and its cgroup, for the keeper.
    """
    owner, mounts_fd = map(int, argv[:2])
    home, group = argv[2:]
    # Each connection takes two descriptors of pasta, which raises its soft limit to the hard one by itself.
    hard_limits.raise_own({"RLIMIT_NOFILE": min(hard_limits.most_open_files(), _MOST_OPEN_FILES)})
    if mounts_fd >= 0:
        namespaces.setns(mounts_fd, namespaces.CLONE_NEWNS)
    outside = namespaces.open_own("mnt")
    namespaces.unshare(namespaces.CLONE_NEWNS)
    holder = _hold_namespace(owner)
    is_kept = False
    try:
        _make_places()
        pasta, has_ipv6 = _start(owner, holder)
        is_kept = not abilities.own().owners
    finally:
        if not is_kept:
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)
    namespaces.setns(outside, namespaces.CLONE_NEWNS)  # the keeper must see a home in /tmp
    try:
        _start_keeper(home, group, pasta)
    except OSError:
        os.kill(pasta, signal.SIGKILL)
        raise
    print(pasta, int(has_ipv6), holder if is_kept else 0, flush=True)


def _hold_namespace(owner: int) -> int:
    """Fork a process in new user and network namespaces that `owner` owns. Return its pid."""
    told, tell = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            if abilities.own().owners:
                namespaces.set_death_signal(signal.SIGKILL)
                os.setgroups([])
                os.setresgid(owner, owner, owner)
                namespaces.unshare_user(owner)
            else:
                signal.alarm(_HOLD_S)
                null = os.open("/dev/null", os.O_RDWR)
                for standard in (0, 1, 2):  # else the daemon would wait for the end of this process
                    os.dup2(null, standard)
                namespaces.unshare_user(0)  # without root, pasta's user is the caller
            namespaces.unshare(namespaces.CLONE_NEWNET)
            namespaces.prctl(
                namespaces.PR_SET_DUMPABLE, 1
            )  # so that pasta, as `owner`, may open both namespaces in /proc
            os.write(tell, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.close(tell)
    if os.read(told, 1) != b".":
        raise OSError(0, "cannot create a network namespace")
    namespaces.map_ids(holder, f"0 {owner} 1\n" if abilities.own().owners else "")
    return holder


def _make_places() -> None:
    mounts.make_private("/")
    own = {} if abilities.own().device_nodes else {name: os.open(f"/dev/{name}", os.O_PATH) for name, _, _ in _NODES}
    mounts.mount("tmpfs", "/dev", "tmpfs", mounts.MS_NOSUID, "mode=0755")
    mounts.mount("tmpfs", "/tmp", "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, "mode=1777")
    os.mkdir("/dev/net")
    for name, fd in own.items():
        os.close(os.open(f"/dev/{name}", os.O_WRONLY | os.O_CREAT, 0o600))
        mounts.bind(beneath.name_of(fd), f"/dev/{name}")
        os.close(fd)
    for name, major, minor in () if own else _NODES:
        os.mknod(f"/dev/{name}", 0o020666, os.makedev(major, minor))
        os.chmod(f"/dev/{name}", 0o666)


def _start(owner: int, holder: int) -> tuple[int, bool]:
    """Start pasta. Returns its pid, and whether it forwards IPv6."""
    program = programs.find("pasta")
    if program is None:
        raise FileNotFoundError(2, "the program pasta is missing", "pasta")
    has_ipv6 = network.leads_out_by_ipv6()
    words = [program, "--config-net", "--no-map-gw", "-I", plan.OUT, "--no-dhcp", "--no-dhcpv6", "--no-ra"]
    for forwarded in ("-t", "-u", "-T", "-U"):
        words += [forwarded, "none"]
    words += [*plan.PASTA, *(plan.PASTA_IPV6 if has_ipv6 else ("-4",))]
    words += ["--runas", f"{owner}:{owner}"] if abilities.own().owners else []
    words += ["--quiet", "--pid", _PID_FILE]
    words += ["--userns", namespaces.path(holder, "user"), "--netns", namespaces.path(holder, "net"), "--no-netns-quit"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd="/")
    if done.returncode != 0:
        said = [line for line in done.stderr.decode(errors="replace").splitlines() if "to syslog" not in line]
        raise OSError(0, f"pasta: {' '.join(said[-1:]) or f'exit status {done.returncode}'}")
    with open(_PID_FILE) as file:
        return int(file.read()), has_ipv6


def _start_keeper(home: str, group: str, pasta: int) -> None:
    words = [sys.executable, "-I", "-S", _KEEPER, home, group, str(pasta), str(procfs.start_ticks(pasta))]
    null = subprocess.DEVNULL
    subprocess.Popen(words, cwd="/", start_new_session=True, stdin=null, stdout=null, stderr=null)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, subprocess.SubprocessError) as error:
        where = f": {os.fsdecode(error.filename)}" if isinstance(error, OSError) and error.filename else ""
        print(f"{error.strerror or error}{where}" if isinstance(error, OSError) else str(error), file=sys.stderr)
        sys.exit(1)
