"""Finds what a test left on the machine, by comparing lists from before and after it.

Resources of open homes (checked when the home ends) and of other workers do not count. A process counts if this worker
forked or started it, or if it is in a cgroup of Waypoint.
"""

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.homes import OPEN
from tests.places import RUNTIME, TEMP_PREFIX, home_id, iter_homes, temp_root
from tests.processes_now import Process, processes, read
from tests.waiting import holds_within
from tests.workers import worker_of

TRIAL_PREFIX = "waypoint-trial-"
"""Prefix of the home and the cgroup of a doctor's trial; the pid of its process follows."""
SETTLE_S = 30.0
"""Time for the kernel to detach loop devices, mounts and namespaces after the last process has ended."""


class Resource(NamedTuple):
    """A mount, process, cgroup or other resource of the machine.

    `kind`: a description of its type. `key`: identifies it among resources of its kind. `text`: describes it, and
    contains the home, path or pid that shows to whom it belongs.
    """

    kind: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Snapshot(NamedTuple):
    """The state of the machine. `resources`: their kinds and keys. `parents`: each process's parent, by its key."""

    resources: frozenset[tuple[str, str]]
    parents: dict[str, int]


def take_snapshot() -> Snapshot:
    """List all resources and processes that exist now, whoever owns them."""
    return Snapshot(
        frozenset((resource.kind, resource.key) for resource in _resources()),
        {one.key: one.parent for one in processes()},
    )


def wait_new(before: Snapshot, basetemp: Path) -> list[Resource]:
    """Return the resources that this test has leaked. Wait up to SETTLE_S until none is left."""
    new: list[Resource] = []

    def is_clean() -> bool:
        new[:] = [resource for resource in _resources() if (resource.kind, resource.key) not in before.resources]
        new.extend(_processes(before.parents))
        excused = itertools.chain(_tokens_of_open_homes(), _tokens_of_others(basetemp))
        while new and (token := next(excused, None)) is not None:
            new[:] = [resource for resource in new if token not in resource.text]
        return not new

    holds_within(SETTLE_S, is_clean)
    return new


def umount(resources: list[Resource]) -> None:
    """Unmount the mounts among `resources`. Otherwise removing the temporary folder would delete files through them."""
    for resource in resources:
        if resource.kind == "mount of self" and resource.text.startswith(TEMP_PREFIX):
            subprocess.run(["umount", "--lazy", resource.text.rpartition(" (")[0]], check=True)


def _resources() -> Iterator[Resource]:
    """List all resources except processes."""
    for lister in (_mounts, _loops, _cgroups, _namespaces, _runtime_entries, _temp_entries):
        yield from lister()


def _mounts() -> Iterator[Resource]:
    """List the mounts of this process and of init, which may differ in a container."""
    for who in ("self", "1"):
        with contextlib.suppress(PermissionError):  # init may be hidden from us
            if who == "1" and Path("/proc/1/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink():
                return
            for line in Path(f"/proc/{who}/mountinfo").read_text().splitlines():
                fields = line.split()
                kind, source = fields[fields.index("-") + 1 :][:2]
                text = f"{fields[4]} ({kind} {source}, root {fields[3]})"
                yield Resource(f"mount of {who}", text, text)


def _loops() -> Iterator[Resource]:
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # detached while we looked
            text = f"{backing.parts[3]} on {backing.read_text().strip()}"
            yield Resource("loop device", text, text)


def _cgroups() -> Iterator[Resource]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup" in line:
            for folder in _innermost(line.split()[4]):
                if "/waypoint" in folder:  # groups above them are shared by all homes
                    yield Resource("cgroup", folder, folder)


def _innermost(folder: str) -> Iterator[str]:
    """Yield the cgroups from `folder` downwards that have no groups below, except those of probes."""
    with contextlib.suppress(OSError):  # it was removed while we looked
        if os.stat(folder).st_nlink == 2:  # no folders below: need not read the names of its many files
            yield folder
            return
        for entry in os.scandir(folder):
            if not entry.name.startswith("waypoint-probe-") and entry.is_dir(follow_symlinks=False):
                yield from _innermost(entry.path)


def _processes(known: Mapping[str, int]) -> Iterator[Resource]:
    """List processes of this worker that are new or have a new parent, and zombies that this process must reap."""
    me = os.getpid()
    for process in processes():
        if known.get(process.key) == process.parent:
            continue
        with contextlib.suppress(OSError):  # it ended while we looked
            if process.state == "Z":
                if process.parent == me:
                    text = f"pid {process.pid}, a zombie that nobody waited for"
                    yield Resource("process", process.key, text)
            elif text := _described(process, me):
                yield Resource("process", process.key, text)


def _described(process: Process, me: int) -> str:
    """Describe the process; "" if it is not of this worker. Raises OSError if the process has ended."""
    command = read(f"{process.folder}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    groups = read(f"{process.folder}/cgroup").decode()
    is_orphan = process.parent == 1 and "launch.launcher" in command  # its daemon has ended; its environment is empty
    if process.parent != me and not is_orphan and "/waypoint" not in groups and worker_of(process.folder) != me:
        return ""
    variables = read(f"{process.folder}/environ").split(b"\0")
    home = next((text.decode() for text in variables if text.startswith(b"WAYPOINT_HOME=")), "")
    if is_orphan:  # its stderr is the daemon.log of its home, which may be another worker's
        home = os.readlink(f"{process.folder}/fd/2")
    group = next((line for line in groups.splitlines() if "/waypoint" in line), "")
    network = f"net {os.readlink(f'{process.folder}/ns/net')}"
    return f"pid {process.pid} {command} [{' '.join(filter(None, (home, group, network)))}]"


def _namespaces() -> Iterator[Resource]:
    """List namespaces that exist without a process: named ones (`ip netns`), and those that this process has open."""
    for name in Path("/run/netns").glob("*"):
        yield Resource("named network namespace", str(name), str(name))
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this listing itself
            target = str(descriptor.readlink())
            if ":[" in target and target.partition(":")[0] in {"net", "mnt", "user", "pid", "ipc", "uts", "time"}:
                yield Resource("open namespace", target, f"fd {descriptor.name} on {target}")


def _runtime_entries() -> Iterator[Resource]:
    for entry in RUNTIME.glob("*"):
        yield Resource("runtime folder", str(entry), str(entry))


def _temp_entries() -> Iterator[Resource]:
    for entry in temp_root().glob("*"):
        if not entry.name.startswith("pytest-of-"):
            yield Resource("folder", str(entry), str(entry))


def _tokens_of_open_homes() -> Iterator[str]:
    for home in OPEN:
        yield from _tokens(home.path)


def _tokens_of_others(basetemp: Path) -> Iterator[str]:
    """Yield texts that identify resources of other workers, of demo and bench, and of daemons that a user started."""
    for process in processes():
        with contextlib.suppress(OSError):  # it ended while we looked
            worker = worker_of(process.folder)
            if worker != os.getpid():
                yield from _tokens_of_process(process)
                if worker is not None:
                    yield f"-{worker}-"  # tests put this into the names of what they make
    for root in Path(TEMP_PREFIX).parent.glob(Path(TEMP_PREFIX).name + "*"):
        for entry in root.glob("*"):
            if f"-{os.getpid()}-" not in entry.name and not entry.name.startswith("pytest-of-"):
                yield str(entry)
                with contextlib.suppress(FileNotFoundError):  # it was removed while we looked
                    for home in iter_homes(entry):
                        yield from _tokens(home)
        for entry in (*root.glob("pytest-of-*/pytest-*"), *root.glob("pytest-of-*/pytest-*/w*")):
            if not basetemp.resolve().is_relative_to(entry.resolve()):
                yield f"{entry}/"


def _tokens_of_process(process: Process) -> Iterator[str]:
    """Yield texts that identify the home of a supervisor, and the home and cgroup of a trial."""
    yield f"{TRIAL_PREFIX}{process.pid}-"
    words = os.fsdecode(read(f"{process.folder}/cmdline")).split("\0")
    for before, word in itertools.pairwise(words):
        if before.endswith("daemon/supervisor.py") or Path(word).name.startswith(TRIAL_PREFIX):
            yield from _tokens(Path(word))


def _tokens(home: Path) -> Iterator[str]:
    yield str(home.parent if home.name == "h" else home)
    yield home_id(home)
    for session in (RUNTIME / home_id(home) / "sessions").glob("*"):
        yield session.name
