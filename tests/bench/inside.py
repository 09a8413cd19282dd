"""Programs that run inside sessions: they measure pauses, write without end, hold a terminal, serve, make files dirty.

They use bash and Python of the session's base, and nothing of this checkout.
"""

import os
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.homes import Home
from waypoint.client.sdk import Session
from waypoint.linux.tasks import cgroups, procfs
from waypoint.session.live import record
from waypoint.session.live.record import RuntimeRecord

PORT = 8000
_FOLDER = "/var/tmp/bench"  # in a session
_PYTHON = ("python3", "-I", "-S", "-c")

# Written in bash, whose memory adds less to a dump than Python's.
_SPINNER = f"""
mkdir -p {_FOLDER} && mkfifo {_FOLDER}/begin {_FOLDER}/told
trap asked=yes USR1
while : <{_FOLDER}/begin; do
    asked= largest=0
    echo spinning >{_FOLDER}/told
    last=${{EPOCHREALTIME/[.,]/}}
    until [[ $asked ]]; do
        this=${{EPOCHREALTIME/[.,]/}}
        (( this - last > largest )) && largest=$(( this - last ))
        last=$this
    done
    echo "$largest" >{_FOLDER}/told
done
"""

_WRITER = """
block = bytes(1 << 20)
with open("/var/tmp/bench-writer", "wb", buffering=0) as file:
    while True:
        file.seek(0)
        for _ in range({blocks}):
            file.write(block)
"""

_SERVER = """
import os, socket
kept = "{kept}"
held = bytearray({mib} << 20)
for at in range(0, len(held), 1 << 20):
    held[at : at + (1 << 20)] = os.urandom(1 << 20)
with socket.create_server(("127.0.0.1", {port})) as listener:
    while True:
        with listener.accept()[0] as caller, caller.makefile("rw") as lines:
            line = lines.readline()
            lines.write(kept + " " + (str(sum(held[::4096])) + "\\n" if line == "sum\\n" else line))
"""

_HOLDER = """
import os, signal
held = os.{call}()
open("{folder}/held", "w").close()
signal.pause()
"""

_FILLED = """
import mmap, os, signal
held = mmap.mmap(-1, {size}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block = os.urandom(1 << 20)
for start in range(0, {size}, len(block)):
    held[start:start + len(block)] = block
open("{folder}/filled", "w").close()
signal.pause()
"""

_DIRTY = """
import os
block = os.urandom({size})
for number in range({count}):
    folder = "{folder}/files/" + str(number // 100)
    os.makedirs(folder, exist_ok=True)
    with open(folder + "/" + str(number), "wb") as file:
        file.write(block)
"""


class Spinner:
    """A background job that reads the clock without end and reports the largest gap between two readings.

    When it does not measure, it waits in the open of a FIFO.
    """

    def __init__(self, home: Home, session: Session) -> None:
        found = record_of(home, session.branch)
        self._pid = _start(found, session, "bash", "-c", _SPINNER)
        session.exec(f"until [ -p {_FOLDER}/told ]; do :; done")
        self._folder = f"/proc/{found.init_pid}/root{_FOLDER}"

    def gap_ms(self, act: Callable[[], object]) -> float:
        """Return the largest gap during `act`, in an otherwise idle session."""
        os.close(os.open(f"{self._folder}/begin", os.O_WRONLY))
        self._told()
        act()
        os.kill(self._pid, signal.SIGUSR1)
        return int(self._told()) / 1000

    def _told(self) -> str:
        with open(os.open(f"{self._folder}/told", os.O_RDONLY)) as told:
            return told.read()


class Writer:
    """Writes one file over and over at full speed, from `go_on` to `stop`."""

    def __init__(self, home: Home, session: Session, size: int) -> None:
        self._pid = _start(record_of(home, session.branch), session, *_PYTHON, _WRITER.format(blocks=size >> 20))
        self.stop()
        self.rates: list[float] = []
        """MB/s of each interval."""

    def go_on(self) -> None:
        self._before, self._begin = self._written(), time.perf_counter()
        os.kill(self._pid, signal.SIGCONT)

    def stop(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def stop_and_note(self) -> None:
        self.stop()
        self.rates.append((self._written() - self._before) / 1e6 / (time.perf_counter() - self._begin))

    def _written(self) -> int:
        for line in Path(f"/proc/{self._pid}/io").read_text().splitlines():
            if line.startswith("wchar:"):
                return int(line.split()[1])
        raise RuntimeError("the kernel does not count what a process writes")


def hold(home: Home, session: Session, call: str) -> None:
    """Start a program that holds what the function `call` of the module os returns."""
    session.exec(f"mkdir -p {_FOLDER}")
    _start(record_of(home, session.branch), session, *_PYTHON, _HOLDER.format(call=call, folder=_FOLDER))
    session.exec(f"until [ -e {_FOLDER}/held ]; do :; done")


def hold_memory(home: Home, session: Session, size: int) -> int:
    """Start a program that has `size` bytes of random memory. Return the host's pid of it."""
    session.exec(f"mkdir -p {_FOLDER}; rm -f {_FOLDER}/filled")
    pid = _start(record_of(home, session.branch), session, *_PYTHON, _FILLED.format(size=size, folder=_FOLDER))
    session.exec(f"until [ -e {_FOLDER}/filled ]; do sleep 0.02; done")
    return pid


def start_server(home: Home, session: Session, kept: str, mib: int = 0) -> int:
    """Start a server that answers each line on PORT with `kept`, which exists only in its memory, and the line. It
    holds `mib` MiB of random bytes: to the line `sum` it reads one byte of each page and answers with their sum.
    Return the host's pid of it.
    """
    server = _SERVER.format(kept=kept, port=PORT, mib=mib)
    pid = _start(record_of(home, session.branch), session, *_PYTHON, server)
    session.exec(f"until (: </dev/tcp/127.0.0.1/{PORT}) 2>/dev/null; do sleep 0.01; done")
    return pid


def ask_server(session: Session, word: object) -> str:
    """Return the answer of the session's server to `word`, which the session's shell sends."""
    talk = f"fork={word}; exec 9<>/dev/tcp/127.0.0.1/{PORT}; echo $fork >&9; read -r said <&9; exec 9>&-; echo $said"
    return session.exec(talk).output.decode().strip()


def write_files(session: Session, count: int, size: int) -> None:
    """Write new content to the first `count` files of the session."""
    done = session.run(*_PYTHON, _DIRTY.format(count=count, size=size, folder=_FOLDER))
    if done.exit:
        raise RuntimeError(f"cannot write files in the session: {done.stderr.decode(errors='replace')}")


def record_of(home: Home, branch: str) -> RuntimeRecord:
    """Return the daemon's runtime record of the live session on the branch."""
    for path in (home.runtime / "sessions").glob(f"*/{record.RECORD}"):
        found = record.load(path.parent)
        if found is not None and found.row.branch == branch:
            return found
    raise RuntimeError(f"no session on {branch}")


def _start(found: RuntimeRecord, session: Session, *argv: str) -> int:
    """Run a program as a background job. Return the host's pid of it."""
    said = session.exec(f"{shlex.join(argv)} & echo $!").output.decode().split()
    for pid in cgroups.members(found.cgroup):
        if said and procfs.inner_pid(pid) == int(said[-1]):
            return pid
    raise RuntimeError(f"{argv[0]} does not run in the session: {' '.join(said)}")
