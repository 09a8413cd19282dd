"""What this machine is: kernel and processor (uname(2), proc_cpuinfo(5))."""

import functools
import os
from typing import NamedTuple

_FEATURE_LINES = ("flags", "Features")  # as x86 and arm say it


class Cpu(NamedTuple):
    """The first processor's model, and its features, sorted."""

    model: str
    features: list[str]


@functools.cache
def cpu() -> Cpu:
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
    return os.uname().release


def architecture() -> str:
    return os.uname().machine


def available_memory_bytes() -> int:
    """What can be used without swapping, as the kernel guesses (MemAvailable)."""
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise OSError(0, "no MemAvailable", "/proc/meminfo")
