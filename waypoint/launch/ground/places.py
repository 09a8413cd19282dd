"""The folders, mounts and cgroups that all sessions of one home share, made by the daemon when it starts."""

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from waypoint.launch.ground.lower_check import LowerCheck
from waypoint.launch.ground.skeleton import Kit
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import cgroups, systemd
from waypoint.processes.profiles import session_environment

_CONTROLLERS = ("memory", "pids", "cpu")
_DUMPS = "dumps"
SCOPE_S = 5.0  # how long systemd may take to move the daemon into its scope
DEFAULT_HOME = "/var/lib/waypoint"


class SharedPlaces(NamedTuple):
    """`runtime`: /run/waypoint/<home id>. `merged`: the mount point of a session's root while the session is started.
    `sys`: a read-only sysfs. `cgroup`: the home's cgroup2 group; each session's group is a child of it. `profile_env`:
    variables that the workload profiles give to every session.
    """

    home: Path
    runtime: Path
    sessions: Path
    merged: Path
    sys: Path
    kit: Kit
    check_lower: LowerCheck
    cgroup: str
    profile_env: dict[str, str]

    def cgroup_of(self, session: str) -> str:
        return f"{self.cgroup}/{session}"

    @property
    def dumps(self) -> str:
        """The cgroup above the cgroups of the CRIUs that dump sessions of the home."""
        return f"{self.cgroup}/{_DUMPS}"

    @property
    def hidden(self) -> tuple[str, ...]:
        """Folders of Waypoint's, of which a session must see no mount."""
        return (str(self.home), str(self.runtime), DEFAULT_HOME)


def make_places(home: Path, runtime: Path, home_id: str) -> SharedPlaces:
    """Make the home's folders and cgroup, and mount the kit and a read-only sysfs in the caller's mount namespace.

    The mounts vanish with that namespace; `remove_group` removes the cgroup. Raises OSError.
    """
    places = SharedPlaces(
        home=home,
        runtime=runtime,
        sessions=runtime / "sessions",
        merged=runtime / "merged",
        sys=runtime / "sys",
        kit=Kit(runtime / "kit", home),
        check_lower=LowerCheck(runtime),
        cgroup=_make_group(home_id),
        profile_env=session_environment(),
    )
    for folder in (places.sessions, places.merged, places.sys):
        folder.mkdir(mode=0o700, exist_ok=True)
    places.kit.mount()
    cgroups.create(places.dumps)
    # A read-only sysfs, to be bound into every session: with the host's, a session's root could change the host's
    # kernel, and a user namespace that does not own its network namespace may not mount a sysfs.
    mounts.mount("sysfs", places.sys, "sysfs", mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC)
    return places


def _make_group(home_id: str) -> str:
    """Make the home's group in cgroup2, with as many of `_CONTROLLERS` as the host offers there, and return its path.

    The old hierarchies of hybrid hosts are not used: entering a group there costs an RCU grace period at every start
    (clone3 can enter only cgroup2), too much for mere accounting.
    """
    root = cgroups.find_hierarchies().unified
    if systemd.is_manager():
        with contextlib.suppress(OSError):  # systemd does not answer: make a group beside those of systemd
            return _join_scope(root, f"waypoint-{home_id}.scope")
    group = f"{root}/waypoint/{home_id}"
    cgroups.create(group)
    for parent in (root, f"{root}/waypoint", group):
        cgroups.delegate(parent, _CONTROLLERS)
    return group


def _join_scope(root: str, unit: str) -> str:
    """Move this process into the systemd scope `unit`, which is started if it does not exist; return the scope's group.

    A scope lives as long as a process in it, so sessions that outlive a daemon keep it. The daemon is put into a child
    group, because a group that hands controllers on to its children may not hold processes (cgroups(7)).
    """
    group = f"{root}/system.slice/{unit}"
    if not os.path.isdir(group):
        systemd.start_scope(unit, os.getpid(), "Waypoint sessions")
        group = _wait_in_scope(root, unit)
    cgroups.create(f"{group}/daemon")
    cgroups.enter(f"{group}/daemon")
    cgroups.delegate(group, _CONTROLLERS)
    return group


def _wait_in_scope(root: str, unit: str) -> str:
    """Wait until systemd has moved this process into the scope: it answers some milliseconds before. Returns the
    scope's group. Raises TimeoutError after SCOPE_S.
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
    for path in (f"{group}/{_DUMPS}", group, group.rpartition("/")[0]):
        with contextlib.suppress(OSError):  # EBUSY: another home or a session uses it
            cgroups.remove(path)
