"""Facts about this machine: kernel, processor and memory (uname(2), proc_cpuinfo(5), proc_meminfo(5))."""

import functools
import os
import re
from typing import NamedTuple

_FEATURE_LINES = ("flags", "Features")  # on x86 and on arm


class Cpu(NamedTuple):
    """Model name and sorted feature names of the first processor in /proc/cpuinfo."""

    model: str
    features: list[str]


@functools.cache
def cpu() -> Cpu:
    """The processor, read once. Facts that /proc/cpuinfo does not contain are empty."""
    model, features = "", ""
    with open("/proc/cpuinfo", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                model = value.strip()
            elif name.strip() in _FEATURE_LINES:
                features = value
            elif not line.strip() and features:
                break
    return Cpu(model, sorted(features.split()))


def kernel_release() -> str:
    """The kernel's release, such as `6.8.0-45-generic`."""
    return os.uname().release


def kernel_version() -> tuple[int, ...]:
    """The numbers at the beginning of the kernel's release, such as (6, 8, 0)."""
    found = re.match(r"\d+(\.\d+)*", kernel_release())
    return tuple(map(int, found[0].split("."))) if found else ()


def architecture() -> str:
    """The machine's hardware name, such as `x86_64`."""
    return os.uname().machine


def available_memory_bytes() -> int:
    """The kernel's estimate of the memory that programs can still use without swapping (MemAvailable)."""
    return _memory_bytes("MemAvailable")


@functools.cache
def total_memory_bytes() -> int:
    """The machine's memory, without the part that the kernel reserves at boot; read once."""
    return _memory_bytes("MemTotal")


def has_huge_pages() -> bool:
    """Whether the kernel may give programs transparent huge pages."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
            return "[never]" not in file.read()
    except FileNotFoundError:
        return False


def most_processes() -> int:
    """How many processes and threads the machine can have (proc(5): pid_max, threads-max)."""
    found = []
    for name in ("pid_max", "threads-max"):
        with open(f"/proc/sys/kernel/{name}") as file:
            found.append(int(file.read()))
    return min(found)


def free_swap_bytes() -> int:
    return _memory_bytes("SwapFree")


def count_processes() -> int:
    """How many processes and threads exist."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[2])


def _memory_bytes(name: str) -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    raise OSError(0, f"no {name}", "/proc/meminfo")
