"""The folders, mounts and cgroups shared by all sessions of a home, which the daemon makes at its start."""

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from waypoint.launch.ground import homes
from waypoint.launch.ground.host_mounts import HostMounts
from waypoint.launch.ground.id_choice import IdChoice
from waypoint.launch.ground.limits import DEPTH, NO_LIMITER, Limiter, find_limiter, of_all
from waypoint.launch.ground.lower_check import LowerCheck
from waypoint.launch.ground.skeleton import Kit
from waypoint.linux.calls import abilities
from waypoint.linux.net import netns
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import cgroups, process_groups, systemd
from waypoint.model.paths import DAEMON_GROUP, SYSTEM_HOME
from waypoint.processes.profiles import Profiles
from waypoint.upper import layout
from waypoint.upper.pool_image import FOLDER

_CONTROLLERS = ("memory", "pids", "cpu")
_DUMPS = "dumps"
SCOPE_S = 5.0  # how long systemd may take to move the daemon into its scope


class SharedPlaces(NamedTuple):
    """`runtime`: /run/waypoint/<home id>. `merged`: the mount point of a session's root during its start. `sys`: a
    read-only sysfs. `cgroup`: the home's cgroup2 group, the parent of the sessions' groups. `profiles`: the workload
    profiles. `host`: the host's mounts to follow, or None. `filters`:
    whether new sessions get a system call filter.
    """

    home: Path
    runtime: Path
    sessions: Path
    merged: Path
    sys: Path
    kit: Kit
    check_lower: LowerCheck
    ids: IdChoice
    cgroup: str
    profiles: Profiles
    host: HostMounts | None = None
    filters: bool = True
    limiter: Limiter = NO_LIMITER

    def cgroup_of(self, session: str) -> str:
        return f"{self.cgroup}/{session}"

    def folder_of(self, base: str) -> str:
        """The folder on this machine below a session with this `Setting.base`."""
        return layout.base_folder(f"{self.home}/{FOLDER}", base)

    @property
    def dumps(self) -> str:
        """The cgroup whose children are the cgroups of dumping CRIUs."""
        return f"{self.cgroup}/{_DUMPS}"

    @property
    def hidden(self) -> tuple[str, ...]:
        """Waypoint's folders. No session may see the mounts below them."""
        return _hidden(self.home, self.runtime)

    def follow_host(self) -> int:
        """Bring the daemon's mounts up to date with the host's. Call it before paths of the host are read for a
        session. Return a number that changes with the host's mounts. Blocks. Raises OSError.
        """
        if self.host is None:
            return 0 if abilities.own().whole_mounts else hash(tuple(mounts.read_mounts()))
        self.host.follow()
        return self.host.changes


def _hidden(home: Path, runtime: Path) -> tuple[str, ...]:
    return (str(home), str(runtime), SYSTEM_HOME)


def make_places(home: Path, runtime: Path, home_id: str, first_id: int, host_mounts: int | None = None) -> SharedPlaces:
    """Make the home's folders and cgroup, and mount the kit and a read-only sysfs in the caller's mount namespace.
    `first_id`: the first id of the home's range, or 0 for the host's ids. `host_mounts`: a descriptor of the host's
    mount namespace to follow, or None.

    The mounts vanish with the caller's namespace; `remove_group` removes the cgroup. Raises OSError.
    """
    group, controllers = _make_group(home_id, runtime)
    limiter = find_limiter(group, controllers)
    limiter.hold_all(group)
    # This limits all sessions together, because a session whose root is the host's root may raise its own limit.
    cgroups.confine(group, depth=DEPTH + 1)
    places = SharedPlaces(
        home=home,
        runtime=runtime,
        sessions=runtime / "sessions",
        merged=runtime / "merged",
        sys=runtime / "sys",
        kit=Kit(runtime / "kit", home),
        check_lower=LowerCheck(runtime),
        ids=IdChoice(first_id, runtime, runtime / "kit"),
        cgroup=group,
        profiles=Profiles(home),
        host=_follow(host_mounts, _hidden(home, runtime)),
        limiter=limiter,
    )
    homes.note(home, runtime)
    for folder in (places.sessions, places.sys):
        folder.mkdir(mode=0o700, exist_ok=True)
    places.merged.mkdir(exist_ok=True)
    places.merged.chmod(0o711)  # so that the root of a session, another user of the host, can enter it
    places.kit.mount()
    cgroups.create(places.dumps)
    # A read-only sysfs for every session: through the host's, a session's root could change the kernel, and a user
    # namespace that does not own its network namespace must not mount a sysfs. Each network namespace has a sysfs of
    # its own, so a lock on a file of this one locks no file of the machine's.
    flags = mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
    try:
        netns.work_in_new(lambda: mounts.mount("sysfs", places.sys, "sysfs", flags))
    except PermissionError:  # in a container parts of /sys are covered, and without root the kernel keeps them so
        if abilities.own().whole_mounts:
            raise
        return places._replace(sys=Path("/sys"))
    return places


def _follow(host_mounts: int | None, hidden: tuple[str, ...]) -> HostMounts | None:
    if host_mounts is None or not abilities.own().whole_mounts:  # else the kernel passes the mounts on, and locks them
        return None
    return HostMounts(host_mounts, hidden)


def _make_group(home_id: str, runtime: Path) -> tuple[str, list[str]]:
    """Make the home's group in cgroup2. Returns its path and the `_CONTROLLERS` delegated to its children. Without root
    the group is a folder of its runtime folder.
    """
    if not abilities.own().cgroups:
        group = f"{runtime}/{process_groups.FOLDER}"
        cgroups.create(group)
        return group, []
    root = cgroups.find_hierarchies().unified
    if systemd.is_manager():
        with contextlib.suppress(OSError):  # systemd does not answer: make a group beside those of systemd
            return _join_scope(root, f"waypoint-{home_id}.scope")
    group = f"{root}/waypoint/{home_id}"
    cgroups.create(group)
    found: list[str] = []
    for parent in (root, f"{root}/waypoint", group):
        found = cgroups.delegate(parent, _CONTROLLERS)
    return group, found


def _join_scope(root: str, unit: str) -> tuple[str, list[str]]:
    """Move this process into the systemd scope `unit`, which is started if needed. Return the scope's cgroup and the
    `_CONTROLLERS` delegated to its children.

    A scope lives as long as a process in it, so sessions that outlive a daemon keep it. The daemon goes into a child
    group, because a group that delegates controllers to children must not contain processes (cgroups(7)).
    """
    group = f"{root}/system.slice/{unit}"
    if not os.path.isdir(group):
        systemd.start_scope(unit, os.getpid(), "Waypoint sessions", of_all())
        group = _wait_in_scope(root, unit)
    cgroups.create(f"{group}/{DAEMON_GROUP}")
    cgroups.enter(f"{group}/{DAEMON_GROUP}")
    return group, cgroups.delegate(group, _CONTROLLERS)


def _wait_in_scope(root: str, unit: str) -> str:
    """Wait until systemd has moved this process into the scope, which happens some milliseconds after its reply. Return
    the scope's cgroup. Raises TimeoutError after SCOPE_S.
    """
    deadline = time.monotonic() + SCOPE_S
    while not (group := cgroups.own_group(root)).endswith(unit):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {unit} after {SCOPE_S:g} s")
        time.sleep(0.001)
    return group


def remove_group(group: str) -> None:
    """Remove the home's cgroup and Waypoint's cgroup above it, unless in use. systemd removes a scope itself."""
    if group.endswith(".scope") or process_groups.is_one(group):
        return
    for path in (f"{group}/{_DUMPS}", group, group.rpartition("/")[0]):
        for each in (*cgroups.twins(path), path):
            with contextlib.suppress(OSError):  # EBUSY: another home or a session uses it
                cgroups.remove(each)
