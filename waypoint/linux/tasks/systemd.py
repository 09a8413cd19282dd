"""Requests a scope from systemd: a unit with a delegated part of the cgroup tree (systemd.scope(5)).

If systemd is the init, only systemd may change the cgroup tree, except for the parts that it has delegated to a unit
(the kernel's cgroup-v2.rst and systemd's CGROUP_DELEGATION document). The request is sent by systemd's program
`busctl`, so that the daemon needs no D-Bus library (org.freedesktop.systemd1(5)).
"""

import os
import subprocess

from waypoint.model.records import SessionLimits

ANSWER_S = 20.0


def is_manager() -> bool:
    """True if systemd is the init of this machine (sd_booted(3))."""
    return os.path.isdir("/run/systemd/system")


def start_scope(unit: str, pid: int, description: str, most: SessionLimits) -> None:
    """Start the scope `unit` (`NAME.scope`), which contains process `pid` and has its cgroup subtree delegated. `most`:
    the limits of the scope. They replace systemd's defaults, which are meant for a single service (DefaultTasksMax).

    The scope ends with its last process. Raises OSError with systemd's message if systemd refuses, for example because
    a unit of this name runs, and TimeoutError if systemd does not answer within ANSWER_S seconds.
    """
    manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
    properties = ["PIDs", "au", "1", str(pid), "Delegate", "b", "true", "Description", "s", description]
    bounds = {"TasksMax": most.pids, "MemoryMax": most.memory}
    limits = [word for name, value in bounds.items() for word in (name, "t", str(value))]
    argv = ["busctl", "--quiet", "call", *manager, "StartTransientUnit", "ssa(sv)a(sa(sv))"]
    argv += [unit, "fail", str(3 + len(bounds)), *properties, *limits, "0"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"systemd did not answer within {ANSWER_S:g} s") from error
    if done.returncode:
        raise OSError(0, done.stderr.decode(errors="replace").strip() or "busctl failed", unit)
