"""The resource limits of a session: their defaults, the cgroup controllers that enforce them, and the limits that this
machine cannot enforce.

Cgroup controllers limit memory, processors and the number of processes. A cgroup2 controller works in the session's own
cgroup. A controller in a version 1 hierarchy works in a cgroup with the same path there, the *twin*, which the
session's processes enter when they are forked (linux/tasks/clone.py). Entering takes 5 to 17 ms at each start, fork and
`run`, so a session has a twin only for limits that the user requested. A version 1 hierarchy is not used if another
program has put the daemon into a cgroup there, because a subtree has one owner (admin-guide/cgroup-v2.rst, Delegation).

Without a pids controller, the kernel limits the number of processes of each user of the session (RLIMIT_NPROC).

The home's cgroup limits all sessions together. In a version 1 hierarchy the launcher, and so all its children, are in
that cgroup; only the memory controller is not used for this.
"""

import os
from typing import NamedTuple

from waypoint.linux.calls import machine
from waypoint.linux.tasks import cgroups, process_groups
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import UsageProblem
from waypoint.model.records import IdMap, SessionLimits
from waypoint.model.verbs import LIMIT_BOUNDS, parse_amount, parse_size

USUAL_PIDS = 4096
MEMORY_SHARE = 0.75
"""The default limit of a session's memory, as a share of the machine's memory."""
ALL_MEMORY_SHARE, ALL_PIDS_SHARE = 0.9, 0.5
"""The limits of all sessions of a home together, as shares of the machine's memory and processes."""
SHARED_FILES = 65_536
"""The limit of files in a session's /dev/shm: each takes a kilobyte of kernel memory."""
DEPTH, GROUPS = 32, 1024
"""The highest depth and number of cgroups in a session: more than a systemd inside the session needs."""

_SHARED_SHARE = 0.5  # size of /dev/shm as a share of the session's memory; the kernel takes half of the machine's
_PERIOD_US = 100_000
_MOST_PIDS = int(LIMIT_BOUNDS["pids"][1])  # settings of earlier versions may be higher, which pids.max refuses
_CONTROLLER_OF = {"memory": "memory", "cpus": "cpu", "pids": "pids"}


def checked(asked: SessionLimits) -> SessionLimits:
    """Return `asked`. Raises UsageProblem if a limit is out of LIMIT_BOUNDS."""
    for name, (least, most) in LIMIT_BOUNDS.items():
        read, value = parse_amount if name == "cpus" else parse_size, getattr(asked, name)
        if value is not None and not (read(least) or 0) <= value <= (read(most) or 0):
            said = f"the value is not between {least} and {most}"
            raise UsageProblem("start a session with", f"--{name}", said, f"give a value from {least} to {most}")
    return asked


def fill_in(asked: SessionLimits) -> SessionLimits:
    """Return `asked` with the defaults in place of None."""
    memory = asked.memory or int(machine.total_memory_bytes() * MEMORY_SHARE)
    return SessionLimits(memory=memory, cpus=asked.cpus, pids=asked.pids or USUAL_PIDS, disk=asked.disk)


def of_all() -> SessionLimits:
    """Return the limits of all sessions of a home together."""
    return SessionLimits(
        memory=int(machine.total_memory_bytes() * ALL_MEMORY_SHARE),
        pids=int(machine.most_processes() * ALL_PIDS_SHARE),
    )


def shared_memory_bytes(asked: SessionLimits) -> int:
    """The size of a session's /dev/shm."""
    return int((fill_in(asked).memory or 0) * _SHARED_SHARE)


class Limiter(NamedTuple):
    """Enforces the limits of a home's sessions. `unified`: the cgroup2 controllers of the sessions' groups. `legacy`:
    by controller, the home's group in its version 1 hierarchy. `missing`: by controller, why it is not available.
    """

    unified: frozenset[str]
    legacy: dict[str, str]
    missing: dict[str, str]

    def of_session(self, asked: SessionLimits) -> "Limiter":
        """Return the limiter for a session with the requested limits `asked`. It does not use the version 1 controllers
        of limits that were not requested.
        """
        unasked = {controller for name, controller in _CONTROLLER_OF.items() if getattr(asked, name) is None}
        unused = unasked & self.legacy.keys()
        why = "because cgroups of version 1, which slow every start, are used only for requested limits"
        legacy = {controller: above for controller, above in self.legacy.items() if controller not in unused}
        return Limiter(self.unified, legacy, {**self.missing, **dict.fromkeys(unused, why)})

    def make_group(self, group: str) -> None:
        """Make the cgroup2 group of a session at the path `group`, and its twins. Raises OSError."""
        cgroups.create(group)
        cgroups.confine(group, depth=DEPTH, groups=GROUPS)
        for above in self.legacy.values():
            cgroups.create(f"{above}/{os.path.basename(group)}")

    def hold(self, group: str, limits: SessionLimits) -> None:
        """Set `limits` for the group `group`, made by `make_group`. Raises OSError."""
        for controller, new_name, old_name, value in _settings(limits):
            if controller in self.unified:
                cgroups.write(group, new_name, value if controller != "cpu" else f"{value} {_PERIOD_US}")
            elif controller in self.legacy:
                cgroups.write(f"{self.legacy[controller]}/{os.path.basename(group)}", old_name, value)

    def hold_all(self, group: str) -> None:
        """Limit all sessions of the home together. `group`: the home's cgroup. Raises OSError."""
        legacy = {controller: os.path.dirname(above) for controller, above in self.legacy.items()}
        self._replace(legacy={"pids": legacy["pids"]} if "pids" in legacy else {}).hold(group, of_all())

    @property
    def entered(self) -> list[str]:
        """The groups that the launcher must enter, so that its children count for the home's limits."""
        return [self.legacy["pids"]] if "pids" in self.legacy else []

    def most_of_each_user(self, asked: SessionLimits) -> int | None:
        """Return the highest number of processes of each user of a session; None if the pids controller limits all."""
        return fill_in(asked).pids if "pids" in self.missing else None

    def unlimited(self, limits: SessionLimits, ids: IdMap) -> list[Degradation]:
        """Return degradations about those of `limits` that the machine does not enforce, or only in part."""
        names = [name for name in _CONTROLLER_OF if getattr(limits, name) is not None]
        return [self._tell(name, ids) for name in names if _CONTROLLER_OF[name] in self.missing]

    def _tell(self, name: str, ids: IdMap) -> Degradation:
        why = self.missing[_CONTROLLER_OF[name]]
        if name != "pids":
            return degradation("limit-not-enforced", name, why)
        whom = "each user of the session" if ids.is_shifted else "each user of the session but root"
        return degradation("limit-for-each-user", name, f"{whom} separately, {why}")


NO_LIMITER = Limiter(frozenset(), {}, {})
"""A limiter that makes cgroups without limits."""


class Bounds(NamedTuple):
    """The limits of a session. `no_disk`: why its disk limit is not enforced; empty if it is."""

    limits: SessionLimits
    limiter: Limiter
    no_disk: list[Degradation]

    def unlimited(self, ids: IdMap) -> list[Degradation]:
        """Return the limits (as `subject`) that the machine does not enforce, or only in part. `ids`: the id map of the
        session.
        """
        return [*self.no_disk, *self.limiter.unlimited(self.limits, ids)]


def _settings(limits: SessionLimits) -> list[tuple[str, str, str, str]]:
    """Return for each limit the controller, the names of its file in cgroup2 and in version 1, and the value."""
    found = []
    if limits.memory is not None:
        found.append(("memory", "memory.max", "memory.limit_in_bytes", str(limits.memory)))
    if limits.pids is not None:
        found.append(("pids", "pids.max", "pids.max", str(min(limits.pids, _MOST_PIDS))))
    if limits.cpus is not None and limits.cpus < (os.cpu_count() or 1):
        found.append(("cpu", "cpu.max", "cpu.cfs_quota_us", str(int(limits.cpus * _PERIOD_US))))
    return found


def find_limiter(group: str, unified: list[str]) -> Limiter:
    """Return the limiter of a home, and make the home's cgroups in version 1 hierarchies. `group`: the home's cgroup2
    group. `unified`: the controllers that are delegated to its children.
    """
    if process_groups.is_one(group):
        return Limiter(frozenset(), {}, dict.fromkeys(_CONTROLLER_OF.values(), "because Waypoint runs without root"))
    hierarchies = cgroups.find_hierarchies()
    within = group.removeprefix(hierarchies.unified)
    legacy: dict[str, str] = {}
    missing: dict[str, str] = {}
    for controller in {*_CONTROLLER_OF.values()} - {*unified}:
        root = hierarchies.legacy.get(controller)
        why = f"the machine offers no controller '{controller}' for groups" if root is None else ""
        if root is not None:
            why = _try_twin(root, within, controller)
            legacy |= {} if why else {controller: f"{root}{within}"}
        missing |= {controller: why} if why else {}
    return Limiter(frozenset(unified), legacy, missing)


def _try_twin(root: str, within: str, controller: str) -> str:
    """Make the home's cgroup in the version 1 hierarchy mounted at `root`. Return "", or why this is not possible."""
    own = cgroups.own_group(root, controller).removeprefix(root)
    if own and not f"{within}/".startswith(f"{own}/"):
        return f"Waypoint runs in a group of the controller '{controller}' that another program manages"
    try:
        cgroups.create(f"{root}{within}")
    except OSError as error:
        return f"no group of the controller '{controller}' can be made: {error.strerror}"
    return ""
