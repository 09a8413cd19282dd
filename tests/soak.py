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
    "advice": Part("each step that a message advises is carried out", 5, 2),
    "chaos": Part("random kills and many clients at once, with a printed seed", 2),
    "criu": Part("CRIU is killed, hangs, dies or reads a damaged image", 3),
    "disks": Part("full disks, read-only pools, pools that grow and shrink", 8),
    "faults": Part("a process of Waypoint is killed at each step of each operation", 8, 2),
    "floods": Part("sessions and clients that send more than they should, fuzzing", 3),
    "load": Part("large files, long chains, many branches, leaks of memory", 3),
    "matrix": Part("all shells, users, kinds of ids and file systems of which the gate tries one", 6, 4),
    "outages": Part("how long an outage lasts after each process of Waypoint, or each pair of them, was killed", 3),
    "setup": Part("setup on unusual machines, installation of packages and of CRIU (needs the registries)", 9, 2),
    "timing": Part("assertions on time, and cases that need the machine for themselves", 3),
    "workloads": Part("databases, coding agents and many other programs in every copy (needs the registries)", 3),
}
