"""The folders, mounts and cgroups that all sessions of one home share, made by the daemon when it starts."""

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from waypoint.launch.ground import homes
from waypoint.launch.ground.host_mounts import HostMounts
from waypoint.launch.ground.id_choice import IdChoice
from waypoint.launch.ground.limits import DEPTH, NO_LIMITER, Limiter, find_limiter, no_limiter, of_all
from waypoint.launch.ground.lower_check import LowerCheck
from waypoint.launch.ground.skeleton import Kit
from waypoint.linux.calls import powers
from waypoint.linux.net import systemd
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import cgroups, kin
from waypoint.model.paths import SYSTEM_HOME
from waypoint.processes.profiles.known import KnownProfiles

_CONTROLLERS = ("memory", "pids", "cpu")
_DUMPS, _ROUTERS, _PUBLISHED, _STORE = "dumps", "routers", "published", "store"
SCOPE_S = 5.0  # how long systemd may take to move the daemon into its scope


class SharedPlaces(NamedTuple):
    """`runtime`: /run/waypoint/<home id>. `merged`: the mount point of a session's root while the session is started.
    `sys`: a read-only sysfs. `cgroup`: the home's cgroup2 group; each session's group is a child of it. `profiles`: the
    workload profiles. `host`: the machine's mounts, which the daemon's own follow; None: they do not. `filters`:
    whether new sessions get a filter of system calls. `limiter`: holds the limits of sessions.
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
    profiles: KnownProfiles
    host: HostMounts | None = None
    filters: bool = True
    limiter: Limiter = NO_LIMITER

    def cgroup_of(self, session: str) -> str:
        return f"{self.cgroup}/{session}"

    @property
    def dumps(self) -> str:
        """The cgroup above the cgroups of the CRIUs that dump sessions of the home."""
        return f"{self.cgroup}/{_DUMPS}"

    @property
    def routers(self) -> str:
        """The cgroup above the cgroups of the home's router, and of those that were left."""
        return f"{self.cgroup}/{_ROUTERS}"

    @property
    def published(self) -> str:
        """The cgroup above the cgroups of the programs that lead into sessions."""
        return f"{self.cgroup}/{_PUBLISHED}"

    @property
    def store(self) -> str:
        """The cgroup of the programs that work on the home's store; "" where no cgroups can be made."""
        return "" if kin.is_bare(self.cgroup) else f"{self.cgroup}/{_STORE}"

    @property
    def hidden(self) -> tuple[str, ...]:
        """Folders of Waypoint's, of which a session must see no mount."""
        return _hidden(self.home, self.runtime)

    def shown(self) -> dict[str, str]:
        """By id of the home's captures that are mounted on the machine: where. For any thread. Raises OSError."""
        return {} if self.host is None else self.host.shown(self.runtime.name)

    def follow_host(self) -> int:
        """Give the daemon the mounts that the machine has now. To be called before paths of the machine are looked at
        for a session. Returns how often the mounts have changed so far. Blocks. Raises OSError.
        """
        if self.host is None:
            return 0
        self.host.follow()
        return self.host.changes


def _hidden(home: Path, runtime: Path) -> tuple[str, ...]:
    return (str(home), str(runtime), SYSTEM_HOME)


def make_places(home: Path, runtime: Path, home_id: str, first_id: int, host_mounts: int | None = None) -> SharedPlaces:
    """Make the home's folders and cgroup, and mount the kit and a read-only sysfs in the caller's mount namespace.
    `first_id`: as for IdChoice. `host_mounts`: a descriptor of the machine's mount namespace, whose changes the
    caller's is to follow; None: it does not.

    The mounts vanish with that namespace; `remove_group` removes the cgroup. Raises OSError.
    """
    if powers.is_machines():
        group, controllers = _make_group(home_id)
        limiter = find_limiter(group, controllers)
    else:
        group, limiter = f"{runtime}/{kin.FOLDER}", no_limiter("Waypoint runs without root, and makes no groups")
        cgroups.create(group)
    limiter.hold_all(group)
    # A bound for all sessions together, above the bound of each: a session whose root is the host's may be able to
    # raise its own.
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
        profiles=KnownProfiles(home),
        host=None if host_mounts is None else HostMounts(host_mounts, _hidden(home, runtime)),
        limiter=limiter,
    )
    homes.note(home, runtime)
    for folder in (places.sessions, places.sys):
        folder.mkdir(mode=0o700, exist_ok=True)
    places.merged.mkdir(exist_ok=True)
    places.merged.chmod(0o711)  # for a session's own root
    places.kit.mount()
    cgroups.create(places.dumps)
    if places.store:
        cgroups.create(places.store)
        limiter.hold_back(places.store)
    _mount_sys(places.sys)
    return places


def _mount_sys(place: Path) -> None:
    # A read-only sysfs, to be bound into every session: with the host's, a session's root could change the host's
    # kernel, and a user namespace that does not own its network namespace may not mount a sysfs.
    flags = mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
    if powers.is_machines():
        mounts.mount("sysfs", place, "sysfs", flags)
    else:  # it belongs to who owns the network namespace
        mounts.bind_readonly("/sys", place)


def _make_group(home_id: str) -> tuple[str, list[str]]:
    """Make the home's group in cgroup2. Returns its path, and those of `_CONTROLLERS` that its children have there."""
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
    """Move this process into the systemd scope `unit`, which is started if it does not exist. Returns as `_make_group`.

    A scope lives as long as a process in it, so sessions that outlive a daemon keep it. The daemon is put into a child
    group, because a group that hands controllers on to its children may not hold processes (cgroups(7)).
    """
    group = f"{root}/system.slice/{unit}"
    if not os.path.isdir(group):
        systemd.start_scope(unit, os.getpid(), "Waypoint sessions", of_all())
        group = _wait_in_scope(root, unit)
    cgroups.create(f"{group}/daemon")
    cgroups.enter(f"{group}/daemon")
    return group, cgroups.delegate(group, _CONTROLLERS)


def _wait_in_scope(root: str, unit: str) -> str:
    """Wait until systemd has moved this process into the scope, which it does some milliseconds after its answer.
    Returns the scope's group. Raises TimeoutError after SCOPE_S.
    """
    deadline = time.monotonic() + SCOPE_S
    while not (group := cgroups.own_group(root)).endswith(unit):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {unit} after {SCOPE_S:g} s")
        time.sleep(0.001)
    return group


def remove_group(group: str) -> None:
    """Remove the home's group, and Waypoint's group above it if no other home uses that. A group in use stays.

    Does nothing for a scope: systemd removes it when its last process has ended.
    """
    if group.endswith(".scope"):
        return
    if kin.is_bare(group):
        cgroups.end(group)
        return
    own = (f"{group}/{name}" for name in (_DUMPS, _ROUTERS, _PUBLISHED, _STORE))
    for path in (*own, group, group.rpartition("/")[0]):
        for each in (*cgroups.twins(path), path):
            with contextlib.suppress(OSError):  # EBUSY: another home or a session uses it
                cgroups.remove(each)
