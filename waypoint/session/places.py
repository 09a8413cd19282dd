"""The folders and groups that the sessions of one home use, made once by the daemon."""

import contextlib
from pathlib import Path
from typing import NamedTuple

from waypoint.linux import cgroups, mounts
from waypoint.session.skeleton import Kit

_LEGACY = ("memory", "pids")
_CONTROLLERS = ("memory", "pids", "cpu")
DEFAULT_HOME = "/var/lib/waypoint"


class Places(NamedTuple):
    """`runtime`: /run/waypoint/<home id>. `cgroup_parents`: the cgroup2 one first, then those of old hierarchies."""

    home: Path
    runtime: Path
    sessions: Path
    merged: Path
    sys: Path
    kit: Kit
    cgroup_parents: list[str]

    def cgroups_of(self, session: str) -> list[str]:
        return [f"{parent}/{session}" for parent in self.cgroup_parents]

    @property
    def hidden(self) -> tuple[str, ...]:
        return (str(self.home), str(self.runtime), DEFAULT_HOME)


def make_places(home: Path, runtime: Path, home_id: str) -> Places:
    """Make folders, the kit and a read-only sysfs, mounted in the caller's own mount namespace, and the cgroups.

    Everything mounted vanishes with the namespace; the groups are removed by `remove_groups`.
    """
    places = Places(
        home=home,
        runtime=runtime,
        sessions=runtime / "sessions",
        merged=runtime / "merged",
        sys=runtime / "sys",
        kit=Kit(runtime / "kit", home),
        cgroup_parents=_make_groups(home_id),
    )
    for folder in (places.sessions, places.merged, places.sys):
        folder.mkdir(mode=0o700, exist_ok=True)
    places.kit.mount()
    # A sysfs of ours, bound into every session: session root would otherwise write to the host's kernel, and a user
    # namespace that does not own its network namespace may not mount one.
    mounts.mount("sysfs", places.sys, "sysfs", mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC)
    return places


def _make_groups(home_id: str) -> list[str]:
    found = cgroups.find_hierarchies()
    parent = f"{found.unified}/waypoint/{home_id}"
    cgroups.create(parent)
    on = set(_CONTROLLERS)
    for group in (found.unified, f"{found.unified}/waypoint", parent):
        on &= set(cgroups.delegate(group, _CONTROLLERS))
    parents = [parent]
    for controller in _LEGACY:
        if controller not in on and controller in found.legacy:
            parents.append(f"{found.legacy[controller]}/waypoint/{home_id}")
            cgroups.create(parents[-1])
    return parents


def remove_groups(parents: list[str]) -> None:
    """Remove the home's groups, and the program's own where no other home uses it. Groups in use stay."""
    for parent in parents:
        for group in (parent, parent.rpartition("/")[0]):
            with contextlib.suppress(OSError):  # EBUSY: another home, or a session of ours
                cgroups.remove(group)
