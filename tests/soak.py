"""The parts of the soak suite. `./dev soak` lists them.

The marker `@pytest.mark.soak(part="disks")` puts a case into a part; all other cases are in the gate, `./dev test`.
`dev` imports this file, so it uses the standard library only.
"""

from typing import NamedTuple


class Part(NamedTuple):
    """`minutes`: usual duration on two processors. `workers`: how many processes run its files. `stock`: run the gate's
    cases of these files with Debian's CRIU, which has not Waypoint's patches, instead of marked cases.
    """

    about: str
    minutes: int
    workers: int = 1
    stock: tuple[str, ...] = ()


STOCK = (
    "tests/acceptance/test_captured_live.py",
    "tests/acceptance/test_diverge.py",
    "tests/acceptance/test_in_flight.py",
    "tests/acceptance/test_restored_terminals.py",
    "tests/acceptance/test_survives.py",
    "tests/acceptance/test_survives_programs.py",
    "tests/cli/test_fork.py",
    "tests/processes/test_criu_rpc.py",
    "tests/processes/test_criu_sessions.py",
    "tests/processes/test_trial.py",
)
PARTS = {
    "agents": Part("MCP with other clients (needs npm)", 1),
    "advice": Part("each step that a message advises is carried out", 2, 2),
    "agents-day": Part("500 turns of an agent with 2 GB of packages: what is kept on the disk, and no silence", 30),
    "chaos": Part("random kills and many clients at once, with a printed seed", 1),
    "criu": Part("CRIU is killed, hangs, dies or reads a damaged image", 2),
    "differences": Part("objects of the kernel in copies: each is kept, or its loss is reported", 1),
    "disks": Part("full disks, read-only pools, pools that grow and shrink", 6),
    "faults": Part("a process of Waypoint is killed, or its disk fails, at each step of each operation", 7, 2),
    "floods": Part("sessions and clients that send more than they should, fuzzing", 4),
    "load": Part("large files, long chains, many branches, busy sessions, leaks of memory", 5),
    "matrix": Part("the shells, users, kinds of ids and drivers that the gate leaves out", 2, 4),
    "outages": Part("how soon Waypoint answers again after one or two of its processes were killed", 2),
    "setup": Part("setup on unusual machines, building and installing CRIU (needs the registries)", 8, 2),
    "stock": Part("forks and restores of the gate with Debian's CRIU, without Waypoint's patches", 1, 2, STOCK),
    "timing": Part("limits on durations, and cases that need the machine for themselves", 2),
    "walls": Part("isolation where the kernel, the mounts, the users or the network are unusual", 2, 2),
    "workloads": Part("checkpoints of databases, coding agents and many programs (needs the registries)", 2),
}
