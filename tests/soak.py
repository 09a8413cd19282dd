"""The parts of the soak suite: what each covers, and how long it takes. `./dev soak` lists them.

A case is in a part by its marker: `@pytest.mark.soak(part="disks")`. Every other case is in the gate, `./dev test`.
`dev` uses this file too: the standard library only.
"""

from typing import NamedTuple


class Part(NamedTuple):
    """`minutes`: the usual duration on two processors. `workers`: how many cases run beside each other."""

    about: str
    minutes: int
    workers: int = 1


PARTS = {
    "advice": Part("each step that a message advises is carried out", 2, 2),
    "chaos": Part("random kills and many clients at once, with a printed seed", 1),
    "criu": Part("CRIU is killed, hangs, dies or reads a damaged image", 2),
    "disks": Part("full disks, read-only pools, pools that grow and shrink", 6),
    "faults": Part("a process of Waypoint is killed at each step of each operation", 4, 2),
    "floods": Part("sessions and clients that send more than they should, fuzzing", 4),
    "load": Part("large files, long chains, many branches, leaks of memory", 3),
    "matrix": Part("the shells, users, kinds of ids and drivers that the gate leaves out", 2, 4),
    "outages": Part("how long Waypoint is away after one or two of its processes were killed", 2),
    "setup": Part("setup on unusual machines, installation of packages and of CRIU (needs the registries)", 4, 2),
    "timing": Part("assertions on time, and cases that need the machine for themselves", 2),
    "walls": Part("isolation where the kernel, the mounts, the users or the network are unusual", 2, 2),
    "workloads": Part("checkpoints of databases, coding agents and many programs (needs the registries)", 2),
}
