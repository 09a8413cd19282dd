"""What this process may do on the machine: as root, or as an ordinary user in a user namespace of their own.

A daemon without root runs in a user namespace that has only its user's id (linux/tasks/own_namespace.py). There it has
all capabilities, but the kernel grants some things only to the machine's root. All code asks this record about them.
"""

import functools
from typing import NamedTuple


class Abilities(NamedTuple):
    """`marks`: the prefix of the extended attributes of overlayfs and of Waypoint. `whole_mounts`: whether a folder
    with mounts below it can be a layer of an overlay. `cgroups`: whether sessions have control groups. `device_nodes`:
    whether device nodes can be made. `owners`: whether files can be given to other users. `groups`: whether processes
    can change their groups. `loop_devices`: whether a file can be mounted as a disk. `host_namespaces`: whether a
    thread that has left the machine's namespaces can return. `dumps`: whether CRIU can save processes. `memory_area`:
    whether captures are written to memory first.
    """

    marks: str
    whole_mounts: bool
    cgroups: bool
    device_nodes: bool
    owners: bool
    groups: bool
    loop_devices: bool
    host_namespaces: bool
    dumps: bool
    memory_area: bool


ROOT = Abilities("trusted.", *[True] * 9)
ORDINARY = Abilities("user.", *[False] * 9)


@functools.cache
def own() -> Abilities:
    """The abilities of this process. The launcher calls this before it forks, so its tasks have the same answer in the
    namespaces of a session.
    """
    return ROOT if has_id(0) else ORDINARY


def has_id(number: int, kind: str = "uid") -> bool:
    """Whether the user namespace of this process has the user id (`kind` "gid": the group id) `number`."""
    with open(f"/proc/self/{kind}_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return any(inside <= number < inside + count for inside, _outside, count in ranges)
