"""What a session sees nothing of, or cannot write to, in its views of the kernel.

The list is that of Docker (moby, oci/defaults.go) and some more. Where a session's ids are the host's, the kernel asks
for the global uid 0 here, in whatever user namespace that is; and whatever the ids are, some files tell what others do
on the machine: which keys are pressed (`interrupts`), how much power the processors take (`powercap`).
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
    "sys/devices/virtual/powercap",
    "sys/firmware",
)
_MASKED_OF_EACH = "sys/devices/system/cpu/cpu*/thermal_throttle"


def readonly() -> list[str]:
    """The names in PROC_READONLY that this kernel has in /proc."""
    return [name for name in PROC_READONLY if os.path.exists(f"/{_PROC}/{name}")]


def masked() -> list[str]:
    """The files and folders that a session sees nothing of, as far as this kernel has them."""
    return [*filter(os.path.exists, (f"/{name}" for name in _MASKED)), *sorted(glob.glob(f"/{_MASKED_OF_EACH}"))]
