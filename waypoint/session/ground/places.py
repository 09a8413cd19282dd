"""The folders and groups that the sessions of one home use, made once by the daemon."""

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from waypoint.linux import cgroups, mounts, systemd
from waypoint.processes.profiles import session_environment
from waypoint.session.ground.lower_check import LowerCheck
from waypoint.session.ground.skeleton import Kit

_CONTROLLERS = ("memory", "pids", "cpu")
_DUMPS = "dumps"
SCOPE_S = 5.0
DEFAULT_HOME = "/var/lib/waypoint"


class Places(NamedTuple):
    """`runtime`: /run/waypoint/<home id>. `cgroup`: the cgroup2 group of the home, whose children are the sessions'.
    `profile_env`: the variables that the workload profiles give to every session."""

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
        """The group of every CRIU that dumps a session of the home."""
        return f"{self.cgroup}/{_DUMPS}"

    @property
    def hidden(self) -> tuple[str, ...]:
        return (str(self.home), str(self.runtime), DEFAULT_HOME)


def make_places(home: Path, runtime: Path, home_id: str) -> Places:
    """Make folders, the kit and a read-only sysfs, mounted in the caller's own mount namespace, and the cgroup.

    Everything mounted vanishes with the namespace; the group is removed by `remove_group`.
    """
    places = Places(
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
    # A sysfs of ours, bound into every session: session root would otherwise write to the host's kernel, and a user
    # namespace that does not own its network namespace may not mount one.
    mounts.mount("sysfs", places.sys, "sysfs", mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC)
    return places


def _make_group(home_id: str) -> str:
    """The home's group in cgroup2, with the controllers that are to be had there.

    The old hierarchies of hybrid hosts are left alone: to enter a group there costs an RCU grace period at every start
    (clone3 knows only cgroup2), too much for mere accounting.
    """
    root = cgroups.find_hierarchies().unified
    if systemd.is_manager():
        with contextlib.suppress(OSError):  # it does not answer: a group beside its own is what is left
            return _join_scope(root, f"waypoint-{home_id}.scope")
    group = f"{root}/waypoint/{home_id}"
    cgroups.create(group)
    for parent in (root, f"{root}/waypoint", group):
        cgroups.delegate(parent, _CONTROLLERS)
    return group


def _join_scope(root: str, unit: str) -> str:
    """Be in the scope `unit`, started if need be, and return its group.

    Sessions that outlived a daemon keep its scope alive. The daemon lives in a group of its own below, because a group
    that hands controllers on may hold no process.
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
    """systemd answers before it has moved the process; it takes some milliseconds."""
    deadline = time.monotonic() + SCOPE_S
    while not (group := systemd.own_group(root)).endswith(unit):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {unit} after {SCOPE_S:g} s")
        time.sleep(0.001)
    return group


def remove_group(group: str) -> None:
    """Remove the home's group, and the program's own if no other home uses it. A group in use stays.

    A scope is removed by systemd, with the last process in it.
    """
    if group.endswith(".scope"):
        return
    for path in (f"{group}/{_DUMPS}", group, group.rpartition("/")[0]):
        with contextlib.suppress(OSError):  # EBUSY: another home, or a session of ours
            cgroups.remove(path)
