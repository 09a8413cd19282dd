"""The parts of /proc that are masked or read-only in a session, and the parts of /sys that it has.

The list is Docker's (moby, oci/defaults.go) with additions. There are two reasons. If a session's ids are the host's,
the kernel allows uid 0 to access these files, even in a user namespace. And with any ids, some of these files show the
activity of others on the machine, for example when keys are pressed (`interrupts`).

Of /sys a session has only what programs need to fit themselves to the processors and the memory (externals.py). The
rest shows disks,
pools, network interfaces and counters of the machine. Its top folders are empty, since programs list them (lsblk).
"""

import glob
import os

_PROC = "proc"
PROC_READONLY = ("sys", "sysrq-trigger", "irq", "bus", "fs", "mtrr", "driver", "dynamic_debug", "pressure")

# Paths without the leading slash.
_MASKED = (
    "proc/acpi",
    "proc/asound",
    "proc/interrupts",
    "proc/kcore",
    "proc/keys",
    "proc/kpagecgroup",
    "proc/kpagecount",
    "proc/kpageflags",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/scsi",
    "proc/slabinfo",
    "proc/timer_list",
    "proc/timer_stats",
    "proc/vmallocinfo",
)
_MASKED_OF_EACH = "sys/devices/system/cpu/cpu*/thermal_throttle"  # one folder for each processor

EMPTY_IN_SYS = (
    "block",
    "bus",
    "class/net",
    "dev/block",
    "dev/char",
    "devices/virtual",
    "firmware",
    "fs/cgroup",
    "module",
    "power",
)


def readonly() -> list[str]:
    """Return the names in PROC_READONLY that this kernel has in /proc."""
    return [name for name in PROC_READONLY if os.path.exists(f"/{_PROC}/{name}")]


def masked() -> list[str]:
    """Return the paths of the masked files and folders that this kernel has."""
    return [*filter(os.path.exists, (f"/{name}" for name in _MASKED)), *sorted(glob.glob(f"/{_MASKED_OF_EACH}"))]
