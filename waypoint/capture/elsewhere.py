"""What of a capture cannot come back on another machine than the one where it was taken, by what is on record of both.

CRIU itself decides in the end: it may refuse what is not told here, and bring back some of what is.
"""

import os
import re
from collections.abc import Iterator

import msgspec

from waypoint.linux.calls import machine
from waypoint.linux.storage import beneath
from waypoint.linux.tasks import procfs
from waypoint.model.errors import CannotCapture
from waypoint.model.late_pattern import late_pattern
from waypoint.model.records import Capture, Machine

_RELEASE = "etc/os-release"
_MOST = 4096
_SHOWN = 5
_USED = late_pattern(
    r"(3dnow|abm|adx|aes|amx|apx|avx|bmi|cldemote|clflushopt|clwb|clzero|cmov|cx16|cx8|f16c|fma|fsgsbase|fxsr"
    r"|gfni|hle|lahf_lm|mmx|movbe|movdir|mwaitx|ospke|pclmul|pku|popcnt|ptwrite|rdpid|rdrand|rdseed|rdtscp|rtm"
    r"|serialize|sha|sm[34]|sse|ssse3|tbm|vaes|vpclmul|waitpkg|xop|xsave(c|opt)?$)"
)
"""On x86, the features by which programs choose their instructions. The other names in /proc/cpuinfo are the kernel's
own, and change with it. Elsewhere, all are such features.
"""


def describe_machine(base: str) -> Machine:
    """The facts of this machine that decide where the images of processes can be restored. `base`: of the session."""
    cpu = machine.cpu()
    return Machine(
        kernel=machine.kernel_release(),
        architecture=machine.architecture(),
        cpu=cpu.model,
        cpu_features=cpu.features,
        boot_id=procfs.boot_id(),
        system=_system(base),
    )


def is_of_here(capture: Capture) -> bool:
    """Whether the capture was taken on a machine that is like this one in all that decides about its processes."""
    here, there = describe_machine(capture.setting.base), capture.machine
    return there is not None and msgspec.structs.replace(there, boot_id=here.boot_id) == here


def check_here(capture: Capture) -> None:
    """Raise CannotCapture if the processes of the capture are of another machine, and this one's processor does not
    have the instructions that they may be using.
    """
    there = capture.machine
    if capture.layers.processes is None or there is None or there.boot_id == procfs.boot_id():
        return
    said, is_x86 = "", there.architecture == "x86_64"
    missing = sorted({*there.cpu_features} - {*machine.cpu().features})
    missing = [one for one in missing if not is_x86 or _USED.match(one)]
    if there.architecture != machine.architecture():
        said = f"they are of a machine of {there.architecture}, and this one is of {machine.architecture()}"
    elif missing:
        said = f"they may be using what this processor ({machine.cpu().model}) lacks: {_some(missing)}"
    if said:
        raise CannotCapture(
            "restore the processes of", capture.id[:12], said, "bring them back where they were captured"
        )


def _some(features: list[str]) -> str:
    more = f" and {len(features) - _SHOWN} more" if len(features) > _SHOWN else ""
    return f"{' '.join(features[:_SHOWN])}{more}"


def lacking_here(capture: Capture, criu: str) -> list[str]:
    """In words, what of the capture cannot come back here, or may not. `criu`: the version of CRIU that is used here;
    "": none is. Looks at files.
    """
    setting = capture.setting
    if not os.path.isdir(setting.base):
        return [f"its base {setting.base} is not here: nothing of it can be started"]
    here = describe_machine(setting.base)
    binds = [f"{one.source}, which is bound into it, is not here" for one in setting.binds]
    gone = [said for said, one in zip(binds, setting.binds, strict=True) if not os.path.exists(one.source)]
    return [*gone, *_of_processes(capture, here, criu)]


def _of_processes(capture: Capture, here: Machine, criu: str) -> Iterator[str]:
    processes, there = capture.layers.processes, capture.machine
    if processes is None or there is None:
        return
    if not criu:
        yield "its processes need CRIU, and none works here: its programs are started again at best"
    elif _number(processes.criu) > _number(criu):
        yield f"its processes were captured by CRIU {processes.criu}, and CRIU {criu} of here may not know all of that"
    if there.architecture != here.architecture:
        yield f"its processes are of a machine of {there.architecture}, and this one is of {here.architecture}"
        return
    missing = sorted({*there.cpu_features} - {*here.cpu_features})
    if missing:
        yield f"its processes may use what this processor lacks: {_some(missing)}"
    if _number(there.kernel) > _number(here.kernel):
        yield f"its processes are of Linux {there.kernel}, and Linux {here.kernel} of here may lack what they use"
    if there.system and there.system != here.system:
        other = here.system or "another system"
        said = f"its base was {there.system}, and is {other} here"
        yield f"{said}: processes that have files of it open need these, from the image or from here"


def _number(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d{1,6}", version)[:2])


def _system(base: str) -> str:
    """What the system below `base` is called; "" if it does not say, or not in text for people."""
    content = beneath.read_in_root(base, _RELEASE, _MOST) or b""
    for line in content.decode(errors="replace").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME" and value.isprintable():
            return value.strip("\"'")
    return ""
