"""systemd, where it runs the machine: a scope with a delegated part of the cgroup tree (systemd.scope(5),
org.freedesktop.systemd1(5)).

systemd is the one writer of the tree; a part that a unit has asked to be delegated is the unit's own (the kernel's
cgroup-v2.rst and systemd's CGROUP_DELEGATION document). Spoken to by its `busctl`, so there is no D-Bus library in the
daemon.
"""

import os
import subprocess

ANSWER_S = 20.0


def is_manager() -> bool:
    """True if systemd is the init of this machine (sd_booted(3))."""
    return os.path.isdir("/run/systemd/system")


def start_scope(unit: str, pid: int, description: str) -> None:
    """Start the scope `unit` (`NAME.scope`) with process `pid` in it and its cgroup subtree delegated.

    It ends by itself with its last process. Raises OSError with systemd's words if it refuses, or if such a unit runs.
    """
    manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
    properties = ["PIDs", "au", "1", str(pid), "Delegate", "b", "true", "Description", "s", description]
    argv = ["busctl", "--quiet", "call", *manager, "StartTransientUnit", "ssa(sv)a(sa(sv))"]
    argv += [unit, "fail", "3", *properties, "0"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"systemd did not answer within {ANSWER_S:g} s") from error
    if done.returncode:
        raise OSError(0, done.stderr.decode(errors="replace").strip() or "busctl failed", unit)


def own_group(root: str) -> str:
    """The cgroup2 group of this process below the mount point `root`."""
    with open("/proc/self/cgroup") as file:
        for line in file:
            if line.startswith("0::"):
                return f"{root}{line[3:].strip()}".rstrip("/")
    return root
