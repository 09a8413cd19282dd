"""The folders and groups that the sessions of one home use, made once by the daemon."""

import contextlib
from pathlib import Path
from typing import NamedTuple

from waypoint.linux import cgroups, mounts
from waypoint.session.skeleton import Kit

_CONTROLLERS = ("memory", "pids", "cpu")
DEFAULT_HOME = "/var/lib/waypoint"


class Places(NamedTuple):
    """`runtime`: /run/waypoint/<home id>. `cgroup`: the cgroup2 group of the home, whose children are the sessions'."""

    home: Path
    runtime: Path
    sessions: Path
    merged: Path
    sys: Path
    kit: Kit
    cgroup: str

    def cgroup_of(self, session: str) -> str:
        return f"{self.cgroup}/{session}"

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
        cgroup=_make_group(home_id),
    )
    for folder in (places.sessions, places.merged, places.sys):
        folder.mkdir(mode=0o700, exist_ok=True)
    places.kit.mount()
    # A sysfs of ours, bound into every session: session root would otherwise write to the host's kernel, and a user
    # namespace that does not own its network namespace may not mount one.
    mounts.mount("sysfs", places.sys, "sysfs", mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC)
    return places


def _make_group(home_id: str) -> str:
    """The home's group in cgroup2, with the controllers that are to be had there.

    The old hierarchies of hybrid hosts are left alone: to enter a group there costs an RCU grace period at every start
    (clone3 knows only cgroup2), too much for mere accounting.
    """
    found = cgroups.find_hierarchies()
    group = f"{found.unified}/waypoint/{home_id}"
    cgroups.create(group)
    for parent in (found.unified, f"{found.unified}/waypoint", group):
        cgroups.delegate(parent, _CONTROLLERS)
    return group


def remove_group(group: str) -> None:
    """Remove the home's group, and the program's own if no other home uses it. A group in use stays."""
    for path in (group, group.rpartition("/")[0]):
        with contextlib.suppress(OSError):  # EBUSY: another home, or a session of ours
            cgroups.remove(path)
