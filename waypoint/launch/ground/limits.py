"""How much of the machine a session may use: what is usual, who holds it, and what this machine does not hold.

Memory, processors and processes are held by the controllers of the session's cgroup. Where a controller is in cgroup2,
the session's group has it; where it is in a version 1 hierarchy, a group with the same path there, the *twin*, which
the session's processes enter at their birth (linux/tasks/clone.py). To enter one takes 5 to 17 ms at each start, fork
and `run`, so a session has a twin only where a limit of its own was asked for. A hierarchy in which somebody has put
the daemon into a group of theirs is left alone: a part of the tree has one owner (admin-guide/cgroup-v2.rst,
Delegation).

Without a controller for processes, the kernel counts those of each user of the session (RLIMIT_NPROC).

All sessions of a home have a bound together, too: the home's group has it. In a version 1 hierarchy the launcher is in
that group, once and for all, and with it whatever it forks. Of memory there is none such: who allocates it would pay.
"""

import os
from typing import NamedTuple

from waypoint.linux.calls import machine
from waypoint.linux.tasks import cgroups
from waypoint.model.errors import UsageProblem
from waypoint.model.records import IdMap, SessionLimits
from waypoint.model.verbs import LIMIT_BOUNDS, parse_amount, parse_size

USUAL_PIDS = 4096
MEMORY_SHARE = 0.75
"""The share of the machine's memory that a session may usually have."""
ALL_MEMORY_SHARE, ALL_PIDS_SHARE = 0.9, 0.5
"""The shares of the machine's memory and processes that all sessions of a home together may have."""
SHARED_FILES = 65_536
"""Files in a session's /dev/shm, each of which takes a kilobyte of the kernel's memory."""
DEPTH, GROUPS = 32, 1024
"""How deep cgroups may be nested in a session's own, and how many there may be in all: more than systemd in the session
would make.
"""

HELD_BACK_WEIGHT = 10
"""Of the processors, for what the home does behind its sessions: a tenth of what a session has."""
_HELD_BACK_SHARE, _HELD_BACK_LEAST = 0.25, 512 << 20  # of the memory, for the same; with the files that it reads
_SHARED_SHARE = 0.5  # of the session's memory, for /dev/shm, as the kernel's default is half of the machine's
_PERIOD_US = 100_000
_MOST_PIDS = int(LIMIT_BOUNDS["pids"][1])  # settings of earlier versions may ask for more, which pids.max does not take
_CONTROLLER_OF = {"memory": "memory", "cpus": "cpu", "pids": "pids"}


def checked(asked: SessionLimits) -> SessionLimits:
    """Return `asked`. Raises UsageProblem if a session could not live with it."""
    for name, (least, most) in LIMIT_BOUNDS.items():
        read, value = parse_amount if name == "cpus" else parse_size, getattr(asked, name)
        if value is not None and not (read(least) or 0) <= value <= (read(most) or 0):
            said = f"it is not from {least} to {most}"
            raise UsageProblem("start a session with", f"--{name}", said, f"give {least} to {most}")
    return asked


def fill_in(asked: SessionLimits) -> SessionLimits:
    """The limits of a session for which `asked` was asked: the usual ones in place of those that are None."""
    memory = asked.memory or int(machine.total_memory_bytes() * MEMORY_SHARE)
    return SessionLimits(memory=memory, cpus=asked.cpus, pids=asked.pids or USUAL_PIDS, disk=asked.disk)


def of_all() -> SessionLimits:
    """What all sessions of a home may use together."""
    return SessionLimits(
        memory=int(machine.total_memory_bytes() * ALL_MEMORY_SHARE),
        pids=int(machine.most_processes() * ALL_PIDS_SHARE),
    )


def shared_memory_bytes(asked: SessionLimits) -> int:
    """How much a session's /dev/shm may take."""
    return int((fill_in(asked).memory or 0) * _SHARED_SHARE)


class Limiter(NamedTuple):
    """Holds the limits of a home's sessions. `unified`: the controllers that the groups of sessions have in cgroup2.
    `legacy`: by controller, the home's group in its version 1 hierarchy. `missing`: by controller, why it can hold
    nothing.
    """

    unified: frozenset[str]
    legacy: dict[str, str]
    missing: dict[str, str]

    def of_session(self, asked: SessionLimits) -> "Limiter":
        """The limiter of a session for which the limits `asked` were asked."""
        unasked = [(name, controller) for name, controller in _CONTROLLER_OF.items() if getattr(asked, name) is None]
        unused = {
            controller: f"here that takes --{name}, which makes the start slower (cgroups of version 1)"
            for name, controller in unasked
            if controller in self.legacy
        }
        legacy = {controller: above for controller, above in self.legacy.items() if controller not in unused}
        return Limiter(self.unified, legacy, {**self.missing, **unused})

    def make_group(self, group: str) -> None:
        """Make the cgroup2 group of a session at the path `group`, and its twins. Raises OSError."""
        cgroups.create(group)
        cgroups.confine(group, depth=DEPTH, groups=GROUPS)
        for above in self.legacy.values():
            cgroups.create(f"{above}/{os.path.basename(group)}")

    def hold(self, group: str, limits: SessionLimits) -> None:
        """Put `limits` on the group `group` that `make_group` has made. Raises OSError."""
        for controller, new_name, old_name, value in _settings(limits):
            if controller in self.unified:
                cgroups.write(group, new_name, value if controller != "cpu" else f"{value} {_PERIOD_US}")
            elif controller in self.legacy:
                cgroups.write(f"{self.legacy[controller]}/{os.path.basename(group)}", old_name, value)

    def hold_all(self, group: str) -> None:
        """Limit what all sessions of the home together use. `group`: the home's. Raises OSError."""
        legacy = {controller: os.path.dirname(above) for controller, above in self.legacy.items()}
        self._replace(legacy={"pids": legacy["pids"]} if "pids" in legacy else {}).hold(group, of_all())

    def hold_back(self, group: str) -> None:
        """Limit what works for the home behind its sessions, in the cgroup2 group at the path `group`, by those
        controllers that groups have in cgroup2. Raises OSError.
        """
        memory = max(_HELD_BACK_LEAST, int(machine.total_memory_bytes() * _HELD_BACK_SHARE))
        self._replace(legacy={}).hold(group, SessionLimits(memory=memory))
        if "cpu" in self.unified:
            cgroups.write(group, "cpu.weight", str(HELD_BACK_WEIGHT))

    @property
    def entered(self) -> list[str]:
        """The groups in which the launcher is to be, so that what it forks is counted with all of the home."""
        return [self.legacy["pids"]] if "pids" in self.legacy else []

    def most_of_each_user(self, asked: SessionLimits) -> int | None:
        """How many processes each user of a session may have, where no controller counts all; None where one does."""
        return fill_in(asked).pids if "pids" in self.missing else None

    def unlimited(self, limits: SessionLimits, ids: IdMap) -> list[str]:
        """Which of `limits` are not held, and why, in the words of `Bounds.unlimited`."""
        names = [name for name in _CONTROLLER_OF if getattr(limits, name) is not None]
        return [self._tell(name, ids) for name in names if _CONTROLLER_OF[name] in self.missing]

    def _tell(self, name: str, ids: IdMap) -> str:
        why = self.missing[_CONTROLLER_OF[name]]
        if name != "pids":
            return f"{name}: not enforced: {why}"
        whom = "each of its users" if ids.is_shifted else "each of its users but root"
        return f"{name}: held for {whom}, not for all of them together: {why}"


NO_LIMITER = Limiter(frozenset(), {}, {})
"""Makes groups, and limits nothing."""


def no_limiter(why: str) -> Limiter:
    """One that limits nothing but the processes of each user, since there is no cgroup: `why`, in words."""
    return Limiter(frozenset(), {}, dict.fromkeys(_CONTROLLER_OF.values(), why))


class Bounds(NamedTuple):
    """The limits of a session and what holds them. `no_disk`: in words, why the limit of its tree is not held; "" if it
    is held, or if there is none.
    """

    limits: SessionLimits
    limiter: Limiter
    no_disk: list[str]

    def unlimited(self, ids: IdMap) -> list[str]:
        """In words, which of the limits the machine does not hold, or in part only; each begins with the limit's name.
        `ids`: those of the session.
        """
        return [*self.no_disk, *self.limiter.unlimited(self.limits, ids)]


def _settings(limits: SessionLimits) -> list[tuple[str, str, str, str]]:
    """Controller, the names of its file in cgroup2 and in version 1, and what is written there, for each limit."""
    found = []
    if limits.memory is not None:
        found.append(("memory", "memory.max", "memory.limit_in_bytes", str(limits.memory)))
    if limits.pids is not None:
        found.append(("pids", "pids.max", "pids.max", str(min(limits.pids, _MOST_PIDS))))
    if limits.cpus is not None and limits.cpus < (os.cpu_count() or 1):
        found.append(("cpu", "cpu.max", "cpu.cfs_quota_us", str(int(limits.cpus * _PERIOD_US))))
    return found


def find_limiter(group: str, unified: list[str]) -> Limiter:
    """The limiter of the home whose cgroup2 group is at the path `group`. `unified`: the controllers that the group
    hands on to its children. Makes the home's groups in version 1 hierarchies.
    """
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
    """Make the home's group in the version 1 hierarchy that is mounted at `root`. Returns "", or why that cannot be."""
    own = cgroups.own_group(root, controller).removeprefix(root)
    if own and not f"{within}/".startswith(f"{own}/"):
        return f"Waypoint was started in a group of the controller '{controller}' that another program manages"
    try:
        cgroups.create(f"{root}{within}")
    except OSError as error:
        return f"no group of the controller '{controller}' can be made: {error.strerror}"
    return ""
