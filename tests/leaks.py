"""What a test could leave on the machine, listed before and after it.

A thing belongs to an open home (checked when that home ends), to another worker of this run or of another one (not ours
to judge), or to the test. Processes count if they are our children, forks or programs, in a group of a Waypoint, or the
pasta of a home's router, which is to be in such a group.
"""

import contextlib
import functools
import itertools
import os
import re
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
"""How names begin of what a doctor's trial makes: its home, or its cgroup, where the pid of its process follows."""
SUPERVISOR = "daemon/supervisor.py"
_TELLING = (SUPERVISOR.encode(), TRIAL_PREFIX.encode())
ROUTER = re.compile(r"^\S*pasta\S* .* --pid /tmp/waypoint-[0-9a-f]{16}\.pid ")
"""The command line of the pasta of a home's router: it has the home's id."""
_GOES_ON = re.compile(r"[\w.-]")
SETTLE_S = 20.0
"""How long the kernel may take to detach loop devices, mounts and namespaces after the last process is gone."""


class Thing(NamedTuple):
    """`text` has all that tells whose it is; `key` tells it from others of its kind."""

    kind: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Stock(NamedTuple):
    """What was there. `things`: by kind and key. `parents`: of every process, by its key."""

    things: frozenset[tuple[str, str]]
    parents: dict[str, int]


def take_stock() -> Stock:
    """All things of now; a process counts as there, whosever it is."""
    return Stock(
        frozenset((thing.kind, thing.key) for thing in _things()), {one.key: one.parent for one in processes()}
    )


def wait_new(before: Stock, basetemp: Path) -> list[Thing]:
    """What is there now, was not before and is the test's. Empty as soon as nothing is; else after SETTLE_S."""
    new: list[Thing] = []

    def is_clean() -> bool:
        new[:] = [thing for thing in _things() if (thing.kind, thing.key) not in before.things]
        new.extend(_processes(before.parents))
        excused = itertools.chain(_tokens_of_open_homes(), _tokens_of_others(basetemp))
        while new and (token := next(excused, None)) is not None:
            new[:] = [thing for thing in new if not _names(thing.text, token)]
        return not new

    holds_within(SETTLE_S, is_clean)
    return new


def _names(text: str, token: str) -> bool:
    """Whether `token` is in the text: a path ends there, so that /var/tmp/a does not name what is of /var/tmp/ab."""
    at = text.find(token)
    while at >= 0 and token.startswith("/") and not token.endswith("/") and _GOES_ON.match(text, at + len(token)):
        at = text.find(token, at + 1)
    return at >= 0


def umount(things: list[Thing]) -> None:
    """Take away the mounts among them: when the temporary folder is removed, the removal would reach through them."""
    for thing in things:
        if thing.kind == "mount of self" and thing.text.startswith(TEMP_PREFIX):
            subprocess.run(["umount", "--lazy", thing.text.rpartition(" (")[0]], check=True)


def _things() -> Iterator[Thing]:
    """All but processes."""
    for lister in (_mounts, _loops, _cgroups, _namespaces, _runtime_entries, _memory_entries, _temp_entries):
        yield from lister()


def _mounts() -> Iterator[Thing]:
    """Of the machine and of ourselves, which may differ in a container."""
    for who in ("self", "1"):
        with contextlib.suppress(PermissionError):  # init may be hidden from us
            if who == "1" and Path("/proc/1/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink():
                return
            for line in Path(f"/proc/{who}/mountinfo").read_text().splitlines():
                fields = line.split()
                kind, source = fields[fields.index("-") + 1 :][:2]
                text = f"{fields[4]} ({kind} {source}, root {fields[3]})"
                yield Thing(f"mount of {who}", text, text)


def _memory_entries() -> Iterator[Thing]:
    """Images and passphrases; their names have the id of the home."""
    for path in Path("/dev/shm").glob(f"waypoint-{16 * '[0-9a-f]'}*"):
        yield Thing("in memory", str(path), str(path))


def _loops() -> Iterator[Thing]:
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # detached while we looked
            text = f"{backing.parts[3]} on {backing.read_text().strip()}"
            yield Thing("loop device", text, text)


def _cgroups() -> Iterator[Thing]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        waiting = [line.split()[4]] if " - cgroup" in line else []
        while waiting:
            folder = waiting.pop()
            with contextlib.suppress(FileNotFoundError):  # removed while we looked
                # 2: it has none. What is below a path of that length cannot be named, and is not looked for.
                below = _folders_in(folder) if len(folder) < 3800 and os.stat(folder).st_nlink > 2 else []
                if "/waypoint" in folder and not below:  # the ones above are shared by all homes
                    yield Thing("cgroup", folder, folder)
                waiting += [path for path in below if "/waypoint-probe-" not in path]


def _folders_in(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _processes(known: Mapping[str, int]) -> Iterator[Thing]:
    """Those that are ours, without zombies that are somebody else's to reap, and without those that are `known` and
    have the parent that they had.
    """
    me = os.getpid()
    for process in processes():
        if known.get(process.key) == process.parent:
            continue
        with contextlib.suppress(OSError):  # it ended while we looked
            if process.state == "Z":
                if process.parent == me:
                    text = f"pid {process.pid}, a zombie that nobody waited for"
                    yield Thing("process", process.key, text)
            elif text := _described(process, me):
                yield Thing("process", process.key, text)


def _described(process: Process, me: int) -> str:
    """The process in words; "" if it is not ours. Raises OSError if it has ended."""
    command = read(f"{process.folder}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    groups = read(f"{process.folder}/cgroup").decode()
    is_orphan = process.parent == 1 and "launch.launcher" in command  # its daemon left it; it has no environment
    is_others = process.parent != me and not is_orphan and not ROUTER.match(command)
    if is_others and "/waypoint" not in groups and worker_of(process.folder) != me:
        return ""
    variables = read(f"{process.folder}/environ").split(b"\0")
    home = next((text.decode() for text in variables if text.startswith(b"WAYPOINT_HOME=")), "")
    if is_orphan:  # of another worker's home, too: its words go to that home's daemon.log
        home = os.readlink(f"{process.folder}/fd/2")
    group = next((line for line in groups.splitlines() if "/waypoint" in line), "")
    network = f"net {os.readlink(f'{process.folder}/ns/net')}"
    return f"pid {process.pid} {command} [{' '.join(filter(None, (home, group, network)))}]"


def _namespaces() -> Iterator[Thing]:
    """Those that no process need be in: named ones (`ip netns`), and those that we hold open ourselves."""
    for name in _entries(Path("/run/netns")):
        yield Thing("named network namespace", str(name), str(name))
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this listing itself
            target = str(descriptor.readlink())
            if ":[" in target and target.partition(":")[0] in {"net", "mnt", "user", "pid", "ipc", "uts", "time"}:
                yield Thing("open namespace", target, f"fd {descriptor.name} on {target}")


def _runtime_entries() -> Iterator[Thing]:
    for entry in _entries(RUNTIME):
        yield Thing("runtime folder", str(entry), str(entry))


def _temp_entries() -> Iterator[Thing]:
    for entry in _entries(temp_root()):
        if not entry.name.startswith("pytest-of-"):
            yield Thing("folder", str(entry), str(entry))


def _tokens_of_open_homes() -> Iterator[str]:
    for home in OPEN:
        yield from _tokens(home.path)


def _tokens_of_others(basetemp: Path) -> Iterator[str]:
    """What names a thing as another's: homes of other workers, demo, bench and daemons by hand; temporary folders."""
    for process in processes():
        with contextlib.suppress(OSError):  # it ended while we looked
            worker, homes = _whose(process.folder, process.key, process.program)
            if worker != os.getpid():
                yield f"{TRIAL_PREFIX}{process.pid}-"
                for home in homes:
                    yield from _tokens(home)
                if worker is not None:  # so do tests, and their forks, name what they make
                    yield from (f"-{worker}-", f"-{process.pid}-")
    for root in Path(TEMP_PREFIX).parent.glob(Path(TEMP_PREFIX).name + "*"):
        for entry in _entries(root):
            if entry.name.startswith("pytest-of-"):
                yield from _tokens_of_runs(entry, basetemp)
            elif f"-{os.getpid()}-" not in entry.name:
                yield str(entry)
                with contextlib.suppress(FileNotFoundError):  # it was removed while we looked
                    for home in iter_homes(entry):
                        yield from _tokens(home)


def _tokens_of_runs(folder: Path, basetemp: Path) -> Iterator[str]:
    """Of the temporary folders that pytest has made in `folder`, those of workers too."""
    for run in _entries(folder):
        for entry in (run, *(one for one in _entries(run) if one.name.startswith("w"))):
            if run.name.startswith("pytest-") and not basetemp.resolve().is_relative_to(entry.resolve()):
                yield f"{entry}/"


@functools.lru_cache(maxsize=4096)
def _whose(folder: str, _key: str, _program: str) -> tuple[int | None, tuple[Path, ...]]:
    """Of which worker the process is, and the homes that it is about, as the supervisor of one and the program of a
    trial are. Kept as long as it runs the same program: there are hundreds of processes around each test.
    """
    command = read(f"{folder}/cmdline")
    homes: list[Path] = []
    if any(part in command for part in _TELLING):
        words = os.fsdecode(command).split("\0")
        for before, word in itertools.pairwise(words):
            if before.endswith(SUPERVISOR) or Path(word).name.startswith(TRIAL_PREFIX):
                homes.append(Path(word))
    return worker_of(folder), tuple(homes)


def _tokens(home: Path) -> Iterator[str]:
    yield str(home.parent if home.name == "h" else home)
    yield home_id(home)
    for session in _entries(RUNTIME / home_id(home) / "sessions"):
        yield session.name


def _entries(folder: Path) -> list[Path]:
    """What is in the folder; nothing if there is none, or if another worker removes it just now."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return list(folder.iterdir())
    return []
