"""The trial of the kernel: it uses each feature that sessions need once.

This is a single-threaded program, run as root by waypoint/setup/trials.py. Each probe runs in a forked child, so that
it changes nothing in this process.
"""

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from waypoint.launch.externals import overlay_options
from waypoint.launch.spec import Overlay
from waypoint.launch.walls import refused
from waypoint.linux.calls import inotify
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import cgroups, namespaces, pidfd
from waypoint.model.errors import WaypointError
from waypoint.model.paths import home_id
from waypoint.model.session_facts import Capability
from waypoint.setup.trials import POOL_SIZES, write_rows
from waypoint.upper.open_pool import open_pool

KSM_SWITCH = "/sys/kernel/mm/ksm/run"
_FEW_INSTANCES = 1024
MAX_WORDS_BYTES = 4096


class Probe(NamedTuple):
    """The test of one feature. `work`: uses the feature in the given empty folder, and raises an exception if the
    feature does not work. `else_state`: the state in the feature's row if `work` fails.
    """

    name: str
    work: Callable[[Path], None]
    required_for: Literal["session", "live", "optional"]
    remedy: str
    else_state: Literal["missing", "degraded"] = "missing"


def main(argv: list[str]) -> None:
    """Run the program. `argv`: the path of the temporary home."""
    namespaces.set_death_signal(signal.SIGKILL)
    (home,) = map(Path, argv)
    write_rows(home, probe_host(home))


def probe_host(home: Path) -> list[Capability]:
    """Run all PROBES, each in its own folder below the temporary home `home`. Returns one row for each."""
    rows = []
    for number, probe in enumerate(PROBES):
        place = home / f"probe-{number}"
        place.mkdir(mode=0o700)
        why, next_step = _in_child(probe, place)
        state = probe.else_state if why else "ok"
        remedy = (next_step or probe.remedy) if why else ""
        rows.append(Capability(name=probe.name, state=state, why=why, remedy=remedy, required_for=probe.required_for))
    return rows


def _in_child(probe: Probe, place: Path) -> tuple[str, str]:
    """Run a probe in a child process. Returns the reason why it failed and the next step, if the error has one; two
    empty strings if it succeeded.
    """
    said_r, said_w = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            probe.work(place)
        except OSError as error:
            where = f": {os.fsdecode(error.filename)}" if error.filename else ""
            os.write(said_w, f"{error.strerror or error}{where}".encode(errors="replace"))
        except WaypointError as error:
            os.write(said_w, f"{error.said}\0{error.next_step}".encode(errors="replace"))
        except BaseException as error:
            os.write(said_w, f"{type(error).__name__}: {error}".encode(errors="replace"))
        os._exit(0)
    os.close(said_w)
    with open(said_r, "rb") as said:
        words = said.read(MAX_WORDS_BYTES)
    os.waitpid(child, 0)
    why, _, next_step = words.decode(errors="replace").partition("\0")
    return why, next_step


def _user_namespace(_: Path) -> None:
    namespaces.unshare(namespaces.CLONE_NEWUSER)


def _time_namespace(_: Path) -> None:
    namespaces.unshare(namespaces.CLONE_NEWTIME)


def _refusals(_: Path) -> None:
    """Install the seccomp filter of sessions, and check that it refuses a call."""
    refused.put_up("default")
    try:
        namespaces.unshare(namespaces.CLONE_NEWUSER)
    except OSError as error:
        if error.errno == errno.EPERM:
            return
        raise
    raise OSError(0, "a filter of system calls was installed, but it refuses nothing")


def _overlay(place: Path) -> None:
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.make_private("/")
    mounts.mount("tmpfs", place, "tmpfs")
    for name in ("upper", "work", "merged"):
        (place / name).mkdir()
    overlay = Overlay(target="/", lowers=["/etc"], upper=str(place / "upper"), work=str(place / "work"))
    mounts.mount("overlay", place / "merged", "overlay", mounts.MS_NODEV, overlay_options(overlay))
    (place / "merged/new").mkdir()


def _freezer(place: Path) -> None:
    with _group(place) as (group, _pid):
        cgroups.freeze(group)
        cgroups.thaw(group)


def _kill_group(place: Path) -> None:
    with _group(place) as (group, _pid):
        cgroups.write(group, "cgroup.kill", "1")
        cgroups.wait_empty(group)


def _take_fd(place: Path) -> None:
    with _group(place) as (_name, pid):
        fd = pidfd.open(pid)
        os.close(pidfd.getfd(fd, 0))


def _btrfs(place: Path) -> None:
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.make_private("/")
    pool = open_pool(place, "btrfs", POOL_SIZES)
    try:
        pool.create("a")
        pool.snapshot("a", "b")
        for name in pool.list():
            pool.remove(name)
    finally:
        pool.close()


def _merge_memory(_: Path) -> None:
    namespaces.merge_memory()
    with open(KSM_SWITCH) as switch:
        if switch.read().strip() != "1":
            raise OSError(0, "the kernel can merge memory, but this feature is switched off", KSM_SWITCH)


@contextlib.contextmanager
def _group(place: Path) -> Iterator[tuple[str, int]]:
    """Make a cgroup with a sleeping process for the `with` block. Yields the cgroup's path and the process's pid.

    The cgroup is below that of the temporary home, so that removing the home removes the cgroup, too.
    """
    group = f"{cgroups.find_hierarchies().unified}/waypoint/{home_id(str(place.parent))}/{place.name}"
    cgroups.create(group)
    try:
        ready_r, ready_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                cgroups.enter(group)
                os.close(ready_w)
                signal.pause()
            finally:
                os._exit(1)
        os.close(ready_w)
        os.read(ready_r, 1)
        os.close(ready_r)
        try:
            yield group, pid
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    finally:
        cgroups.wait_empty(group)
        cgroups.remove(group)


def _inotify_room(_: Path) -> None:
    count = inotify.most_instances()
    if count < _FEW_INSTANCES:
        raise OSError(0, f"root and all restored sessions together can have only {count} inotify instances")


PROBES = (
    Probe("user namespaces", _user_namespace, "session", "sysctl -w user.max_user_namespaces=15000"),
    Probe("time namespaces", _time_namespace, "session", "a kernel of at least 5.6 with CONFIG_TIME_NS"),
    Probe("overlayfs", _overlay, "session", "modprobe overlay; in a container, give it CAP_SYS_ADMIN"),
    Probe("cgroup2 freezer", _freezer, "session", "mount -t cgroup2 none /sys/fs/cgroup/unified, on a kernel >= 5.2"),
    Probe(
        "cgroup kill",
        _kill_group,
        "optional",
        "a kernel of at least 5.14",
        "degraded",
    ),
    Probe(
        "taking fds (pidfd_getfd)",
        _take_fd,
        "session",
        "a kernel of at least 5.6, and CAP_SYS_PTRACE",
    ),
    Probe(
        "refusing system calls (seccomp)",
        _refusals,
        "optional",
        "a kernel with CONFIG_SECCOMP_FILTER",
        "degraded",
    ),
    Probe("btrfs pool", _btrfs, "optional", "apt-get install btrfs-progs; modprobe btrfs loop", "degraded"),
    Probe("inotify", _inotify_room, "optional", "sysctl -w fs.inotify.max_user_instances=8192", "degraded"),
    Probe("memory merging (KSM)", _merge_memory, "optional", f"echo 1 > {KSM_SWITCH}", "degraded"),
)
