"""The trial of one CRIU on this kernel.

A program, started by waypoint/setup/trials.py on a throw-away home. It opens this home as the daemon opens a real one,
and uses it as clients do: start, checkpoint, run, fork, attach. `criu check` is no substitute: it reports "Looks good"
even where no process with a socket can be dumped.

The program removes nothing: its caller ends all processes and removes the home, even if the program was killed.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from subprocess import DEVNULL, Popen

from waypoint.linux.calls import kernel_features, programs
from waypoint.linux.net import netns
from waypoint.linux.storage import mounts
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import cgroups, namespaces
from waypoint.model.errors import Failed, WaypointError
from waypoint.model.ids import random_hex
from waypoint.model.paths import home_id
from waypoint.model.requests import (
    AttachRequest,
    CheckpointRequest,
    ForkRequest,
    RunRequest,
    StartRequest,
)
from waypoint.model.session_facts import Capability
from waypoint.model.streams import Frame
from waypoint.processes.criu.options import DumpOptions
from waypoint.processes.criu.rpc import Criu
from waypoint.service import captures, sessions
from waypoint.service.home import Home
from waypoint.service.shapes import Peer
from waypoint.setup import rows
from waypoint.setup.trials import write_rows

# In seconds: how long a CRIU may be silent, how long the attempt for one row may take, and how long a terminal or a
# port may take to answer.
SILENCE_S = 25.0
ATTEMPT_S = 30.0
ANSWER_S = 10.0

# A shell that reads no start-up files. Not `sh -i`: an interactive dash keeps /dev/tty open, which CRIU refuses
# ("ctty inheritance detected").
SHELL = ["/bin/sh", "-c", 'while read -r line; do eval "$line"; done']
# A Python program that listens on a port in the background, prints the port, and greets each client.
LISTENER = """
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
if os.fork() == 0:
    os.setsid()
    nothing = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    while True:
        with listener.accept()[0] as caller:
            caller.sendall(b"here")
"""
GREETING = b"here"

SUBJECT, FORK = "tried", "fork"  # the branches


def main(argv: list[str]) -> None:
    """Run the program. `argv`: the paths of the throw-away home and of the CRIU. Ends the process, since one of its
    threads may still wait for a CRIU that hangs.
    """
    home, criu = map(Path, argv)
    namespaces.set_death_signal(signal.SIGKILL)
    # This process and its children belong to a cgroup of the home: ending the home's cgroups ends them all.
    group = f"{cgroups.find_hierarchies().unified}/waypoint/{home_id(str(home))}/trial"
    cgroups.create(group)
    cgroups.enter(group)
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.make_private("/")
    for point in reversed(mounts.list_mount_points_in(home.parent)):  # copied from the daemon that asked for the trial
        mounts.umount(point, mounts.MNT_DETACH)
    _keep_death_signal()
    write_rows(home, asyncio.run(try_criu(criu, home)))
    sys.stdout.flush()
    os._exit(0)


def _keep_death_signal() -> None:
    """Set the death signal in a thread that does nothing else: a thread that acts as another user for a moment, as
    the start of a session does, loses the setting (prctl(2)).
    """
    is_held = threading.Event()

    def hold() -> None:
        namespaces.set_death_signal(signal.SIGKILL)
        is_held.set()
        threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    is_held.wait()


async def try_criu(program: Path, folder: Path) -> list[Capability]:
    """Try the CRIU at `program` in the throw-away home `folder`. Returns one row for each capability. If one fails,
    those that build on it are reported as not tried.
    """
    criu = Criu(program)
    try:
        version = ".".join(map(str, criu.version()))
    except WaypointError as error:
        not_tried = rows.missing_criu(f"not tried: {rows.CRIU} failed")
        return [rows.fails(rows.CRIU, error.said), *not_tried[1:]]
    features = asyncio.create_task(asyncio.to_thread(_try_features, criu))
    plain = asyncio.create_task(_attempt(rows.DUMP, asyncio.to_thread(_dump_plain, criu, folder)))
    sessions = await _try_sessions(_Sessions(folder, program))
    return [rows.works(rows.CRIU, f"version {version}, {program}"), await plain, *sessions, *await features]


async def _try_sessions(tried: "_Sessions") -> list[Capability]:
    found: list[Capability] = []
    for name, work in (
        (rows.DUMP_TERMINAL, tried.dump_terminal),
        (rows.DUMP_SOCKET, tried.dump_socket),
        (rows.RESTORE, tried.restore),
    ):
        failed = next((row for row in found if row.state != "ok"), None)
        found.append(rows.fails(name, f"not tried: {failed.name} failed") if failed else await _attempt(name, work()))
    return found


class _Sessions:
    """The sessions of one throw-away home. Each public method tries one capability; they are called in their order."""

    def __init__(self, folder: Path, criu: Path) -> None:
        self._folder = folder
        self._criu = criu
        self._peer = Peer(os.getpid(), os.geteuid(), os.getegid())
        self._port = 0

    async def dump_terminal(self) -> None:
        self._home = await Home.open(str(self._folder), criu=str(self._criu))
        found, _is_new = await sessions.start(
            self._home, StartRequest(branch=SUBJECT, net="none", command=SHELL), self._peer
        )
        self._pid = found.pid or 0
        await self._expect_answer(SUBJECT)
        await self._checkpoint("terminal")

    async def dump_socket(self) -> None:
        said = _Client()
        python = os.path.realpath(sys.executable)
        request = RunRequest(argv=[python, "-I", "-S", "-c", LISTENER])
        run = await sessions.run(self._home, SUBJECT, request, self._peer)
        ended = await run(said, said)
        if ended["exit"] != 0:
            words = str(ended["said"]) or said.seen.decode(errors="replace").strip()[-200:]
            raise Failed("start", "a process that listens", f"no process could listen: {words}", "")
        self._port = int(said.seen)
        await self._expect_greeting(SUBJECT, self._pid)
        await self._checkpoint("socket")

    async def restore(self) -> None:
        """Restore as a fork. The fork and the original session must both answer."""
        (fork,) = (await captures.fork(self._home, ForkRequest(name="socket", branches=[FORK]))).forks
        for branch, pid in ((FORK, fork.pid), (SUBJECT, self._pid)):
            await self._expect_answer(branch)
            await self._expect_greeting(branch, pid)

    async def _checkpoint(self, name: str) -> None:
        await captures.checkpoint(self._home, SUBJECT, CheckpointRequest(name=name, tier="live"))

    async def _expect_answer(self, branch: str) -> None:
        """Have the branch's shell compute something. Raises Failed if the result does not come in ANSWER_S seconds."""
        nonce = random_hex(4)
        client = _Client(typed=f"echo {nonce}-$((6*7))\n".encode(), until=f"{nonce}-42".encode())
        attached = await sessions.attach(self._home, branch, AttachRequest(), self._peer)
        said = f"the terminal of {branch} has ended"
        try:
            async with asyncio.timeout(ANSWER_S):
                await attached(client, client)
        except TimeoutError:
            said = f"the terminal of {branch} does not answer within {ANSWER_S:.0f} s"
        if not client.has_seen:
            raise Failed("use", "a terminal", said, "")

    async def _expect_greeting(self, branch: str, pid: int) -> None:
        """Connect to the listener in the branch's session, and check its greeting. `pid`: of the session's pid 1."""

        def connect() -> bytes:
            caller = netns.work_in(pid, lambda: socket.create_connection(("127.0.0.1", self._port), timeout=ANSWER_S))
            with caller:
                return caller.recv(len(GREETING))

        try:
            greeting = await asyncio.to_thread(connect)
        except OSError as error:
            raise Failed("reach", "a listener", f"the port of {branch} does not answer: {error}", "") from error
        if greeting != GREETING:
            raise Failed("reach", "a listener", f"the port of {branch} answers {greeting!r}", "")


class _Client:
    """A client: the inlet and the outlet of a stream. It types `typed`, and leaves when it has seen `until`."""

    def __init__(self, typed: bytes = b"", until: bytes = b"") -> None:
        self._typed = typed
        self._until = until
        self._left = asyncio.Event()
        self.seen = b""

    @property
    def has_seen(self) -> bool:
        return self._left.is_set()

    async def receive(self) -> Frame | None:
        if self._typed:
            typed, self._typed = self._typed, b""
            return Frame("i", typed)
        await self._left.wait()
        return None

    async def output(self, data: bytes | memoryview) -> None:
        self.seen += data
        if self._until and self._until in self.seen:
            self._left.set()

    async def errors(self, data: bytes | memoryview) -> None:
        await self.output(data)

    async def note(self, facts: dict[str, object]) -> None:
        """Ignore the facts."""


_LEADS_HERE = frozenset({"no-criu", "criu-unusable", "criu-died", "criu-silent", "criu-other"})
"""The codes of errors whose next step is to run the doctor, which a row of the doctor leaves out."""


async def _attempt(name: str, work: Awaitable[object]) -> Capability:
    """Await `work`, and return its row. Work that takes longer than ATTEMPT_S counts as failed; it is not cancelled."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait([task], timeout=ATTEMPT_S)
    if not done:
        return rows.fails(name, f"the trial did not end within {ATTEMPT_S:.0f} s")
    try:
        task.result()
    except WaypointError as error:
        return rows.fails(name, error.said, "" if error.code in _LEADS_HERE else error.next_step)
    except OSError as error:
        return rows.fails(name, f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    return rows.works(name)


def _dump_plain(criu: Criu, folder: Path) -> None:
    """Dump one process without a terminal or a socket, in the caller's namespaces."""
    images = folder / "plain"
    images.mkdir(mode=0o700)
    argv = [programs.find("sleep") or "sleep", "1000"]
    with Popen(argv, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, cwd="/", start_new_session=True) as process:
        try:
            with open_folder(images) as fd:
                criu.dump(DumpOptions(tree_pid=process.pid, images_fd=fd, work_fd=fd, deadline_s=SILENCE_S))
        finally:
            process.kill()


def _try_features(criu: Criu) -> list[Capability]:
    try:
        features = criu.features()
    except WaypointError as error:
        names = (rows.LAZY_PAGES, rows.MEMORY_TRACKING)
        return [rows.optional(name, error.said, error.next_step or rows.REMEDY) for name in names]
    no_lazy = "the kernel has no userfaultfd that follows forks"
    no_tracking = "the kernel was built without CONFIG_MEM_SOFT_DIRTY"
    return [
        _feature(rows.LAZY_PAGES, features.lazy_pages, kernel_features.follows_faults, no_lazy),
        _feature(rows.MEMORY_TRACKING, features.memory_tracking, kernel_features.tracks_memory, no_tracking),
    ]


def _feature(name: str, works: bool, kernel_has: Callable[[], bool], no_kernel: str) -> Capability:  # noqa: FBT001
    """The row of a feature. `works`: CRIU can use it. If not, `kernel_has` says whether the kernel has it."""
    if works:
        return rows.optional(name, "")
    if kernel_has():
        return rows.optional(
            name, "this CRIU cannot use it, though the kernel has it", "set WAYPOINT_CRIU to another CRIU"
        )
    return rows.optional(name, no_kernel, "use a kernel that has this feature")
