"""Speed of a live session (start, commands, output, typing echo), and the cost of an idle daemon."""

import contextlib
import hashlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.acceptance.outside import ECHO, PUBLIC, open_outside
from tests.bench.frame import (
    Figure,
    Sizes,
    above_floor_at_most,
    at_least,
    at_most,
    both,
    ms_of_command,
    share_of_floor_at_least,
)
from tests.bench.start import BARE_PYTHON, FLOOR_NAME
from tests.homes import Home, open_home
from tests.places import make_temp_root
from waypoint.client.sdk import Client, Session
from waypoint.daemon.siblings import QUICK_DEATH_S

MB = 1_000_000
USER = "nobody"  # has no rc files, which would be measured too
IDLE_SESSIONS = 20
IDLE_S = 10.0


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-outside-", dir=make_temp_root()) as folder,
        open_outside(Path(folder)) as outside,
        open_home("bench") as home,
    ):
        outside.moved(home).must("ps")  # starts the daemon in a network namespace with a simulated internet
        client = Client(home.path)
        session = client.start("bench", user=USER, env={"TERM": "xterm"})
        session.exec("true")
        yield [
            *_starts(home, client),
            _run(session),
            *_outputs(home, session, sizes),
            _typing(session),
            *_crowd(home, client, sizes),
        ]


def _starts(home: Home, client: Client) -> list[Figure]:
    def as_commands() -> float:
        start = ["shell", "-d", "new", "--user", USER]
        return ms_of_command(home.argv(*start), home.env) + ms_of_command(
            home.argv("exec", "-b", "new", "--", "true"), home.env
        )

    def through_the_api() -> float:
        return _ms(lambda: client.start("new", user=USER, env={"TERM": "xterm"}).exec("true"))

    def start_and_reach() -> None:
        reach = f"exec 3<>/dev/tcp/{PUBLIC}/{ECHO} && read -r line <&3"
        assert client.start("new", user=USER, env={"TERM": "xterm"}).exec(reach).exit == 0

    def start_without_network() -> float:
        clear()
        taken = _ms(lambda: client.start("new", user=USER, env={"TERM": "xterm"}, net="none").exec("true"))
        clear()
        return taken

    def clear() -> None:
        if any(facts.branch == "new" for facts in client.sessions()):
            client.session("new").stop(discard=True)

    aim = at_most(120, "ms")
    floor_name = "2 x python -I -S"
    return [
        Figure(
            "shell -d, exec answered", "ms", as_commands, lambda: 2 * ms_of_command(BARE_PYTHON), floor_name, aim, clear
        ),
        Figure(
            "the same through the API", "ms", through_the_api, _bash_prompt_ms, "bash -i to its prompt", None, clear
        ),
        Figure(
            "start until the outside is reached",
            "ms",
            lambda: _ms(start_and_reach),
            start_without_network,
            "--net none, exec true",
            above_floor_at_most(20, "ms"),
            clear,
        ),
    ]


def exec_figures(home: Home, session: Session) -> list[Figure]:
    """The time of a command that does nothing. The area `forks` has these."""
    argv = home.argv("exec", "-b", session.branch, "--", "true")
    return [
        Figure(
            "exec -- true, API",
            "ms",
            lambda: _ms(lambda: session.exec("true")),
            _bash_round_trip(),
            "bash, bare pty",
            at_most(3, "ms"),
        ),
        Figure(
            "exec -- true, command",
            "ms",
            lambda: ms_of_command(argv, home.env),
            lambda: ms_of_command(BARE_PYTHON),
            FLOOR_NAME,
            at_most(14, "ms"),
        ),
    ]


def _run(session: Session) -> Figure:
    return Figure(
        "run -- true, API",
        "ms",
        lambda: _ms(lambda: session.run("true")),
        lambda: ms_of_command(["true"]),
        "fork + exec",
    )


def _outputs(home: Home, session: Session, sizes: Sizes) -> list[Figure]:
    size = 64 * MB if sizes.quick else 1 << 30
    random_mb = 20 if sizes.quick else 300
    session.exec(f"head -c {random_mb * MB} /dev/urandom > /tmp/random; base64 /tmp/random | sha256sum > /tmp/sum")
    status = Client(home.path).status()
    yes, base64 = f"yes | head -c {size}", "base64 /tmp/random"

    def random_bytes(command: str) -> float:
        rate, digest = _rate_and_digest(session, command)
        wanted = session.exec("cat /tmp/sum").output.split()[0].decode()
        if digest != wanted:
            raise RuntimeError(f"the output's digest is {digest}, not {wanted}")
        return rate

    aim = both(at_least(150, "MB/s"), share_of_floor_at_least(0.6))
    return [
        Figure(
            "exec output: yes",
            "MB/s",
            lambda: _exact_rate(session, yes, size),
            lambda: _raw_rate(yes),
            "raw pty",
            aim,
            max_runs=5,
        ),
        Figure(
            "exec output: base64 | cat",
            "MB/s",
            lambda: random_bytes(f"{base64} | cat"),
            lambda: _raw_base64(random_mb, " | cat"),
            "raw pty",
            aim,
            max_runs=5,
        ),
        Figure(
            "exec output: base64, by lines",  # on a terminal base64 writes each line separately
            "MB/s",
            lambda: random_bytes(base64),
            lambda: _raw_base64(random_mb),
            "raw pty",
            share_of_floor_at_least(0.6),
            max_runs=5,
        ),
        Figure("daemon's peak memory after it", "MB", lambda: _peak_mb(status.pid), aim=at_most(60, "MB"), max_runs=1),
    ]


def _exact_rate(session: Session, command: str, size: int) -> float:
    count = 0

    def take(data: bytes) -> None:
        nonlocal count
        count += len(data)

    taken_s = _seconds_of(session, command, take)
    if count != size:
        raise RuntimeError(f"{count} bytes came, not {size}")
    return count / MB / taken_s


def _rate_and_digest(session: Session, command: str) -> tuple[float, str]:
    """Return MB/s of a command's output, and the output's SHA-256. The hashing is not part of the time."""
    pieces: list[bytes] = []
    taken_s = _seconds_of(session, command, pieces.append)
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return sum(map(len, pieces)) / MB / taken_s, digest.hexdigest()


def _seconds_of(session: Session, command: str, take: Callable[[bytes], None]) -> float:
    begin = time.perf_counter()
    session.exec(command, on_output=take)
    return time.perf_counter() - begin


def _raw_rate(command: str) -> float:
    """Return MB/s of the command's output on a bare pty without output processing, read by a plain loop."""
    master, slave = os.openpty()
    modes = termios.tcgetattr(slave)
    assert isinstance(modes[1], int)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    begin = time.perf_counter()
    with subprocess.Popen(["/bin/bash", "-c", command], stdin=subprocess.DEVNULL, stdout=slave) as process:
        os.close(slave)
        count = 0
        with contextlib.suppress(OSError):  # EIO: the last slave is closed
            while data := os.read(master, 65536):
                count += len(data)
        taken_s = time.perf_counter() - begin
        process.wait()
    os.close(master)
    return count / MB / taken_s


def _raw_base64(random_mb: int, behind: str = "") -> float:
    source = Path("/var/tmp") / f"waypoint-bench-{os.getpid()}"
    with open(source, "wb") as file:
        for _part in range(random_mb):
            file.write(os.urandom(MB))
    try:
        return _raw_rate(f"base64 {source}{behind}")
    finally:
        source.unlink()


def _typing(session: Session) -> Figure:
    """The time from a key on an attached terminal to its echo, through the real command."""
    attached = _Person(session)
    plain = _PlainBash()
    return Figure(
        "typing: key to echo", "ms", attached.key_ms, plain.key_ms, "bash, bare pty", above_floor_at_most(2, "ms")
    )


class _PlainBash:
    """An interactive bash on a bare pty."""

    def __init__(self) -> None:
        pid, self.fd = os.forkpty()
        if pid == 0:
            os.execv("/bin/bash", ["bash", "--norc", "-i"])
        self._pid = pid
        self.wait_for(b"$" if os.getuid() else b"#")

    def wait_for(self, mark: bytes) -> bytes:
        seen = b""
        while mark not in seen:
            if not select.select([self.fd], [], [], 30)[0]:
                raise RuntimeError(f"the terminal shows {seen[-200:]!r}, not {mark!r}")
            seen += os.read(self.fd, 65536)
        return seen

    def key_ms(self) -> float:
        begin = time.perf_counter()
        os.write(self.fd, b"x")
        self.wait_for(b"x")
        taken = 1000 * (time.perf_counter() - begin)
        os.write(self.fd, b"\x7f")
        self.wait_for(b"\b")
        return taken

    def round_trip_ms(self) -> float:
        begin = time.perf_counter()
        os.write(self.fd, b"echo a''b\n")
        self.wait_for(b"ab\r\n")
        return 1000 * (time.perf_counter() - begin)


class _Person(_PlainBash):
    """`waypoint attach` on a pty."""

    def __init__(self, session: Session) -> None:
        pid, self.fd = os.forkpty()
        if pid == 0:
            main = str(Path(__file__).parents[2] / "waypoint/cli/main.py")
            env = {**os.environ, "WAYPOINT_HOME": session._client.home, "TERM": "xterm"}
            os.execve(sys.executable, [sys.executable, "-I", "-S", main, "attach", session.branch], env)
        self._pid = pid
        self.wait_for(b"$")


def _bash_round_trip() -> Callable[[], float]:
    return _PlainBash().round_trip_ms


def _bash_prompt_ms() -> float:
    begin = time.perf_counter()
    shell = _PlainBash()
    taken = 1000 * (time.perf_counter() - begin)
    os.kill(shell._pid, signal.SIGKILL)
    os.waitpid(shell._pid, 0)
    os.close(shell.fd)
    return taken


def _crowd(home: Home, client: Client, sizes: Sizes) -> list[Figure]:
    count = 3 if sizes.quick else IDLE_SESSIONS
    made: list[str] = []

    def make() -> None:
        while len(made) < count:
            branch = f"idle{len(made)}"
            client.start(branch, user=USER, env={"TERM": "xterm"}).exec("true")
            made.append(branch)

    def make_and_outlive_quick_death() -> None:
        make()
        time.sleep(QUICK_DEATH_S)  # the successor of a daemon that dies young starts with a delay

    def adoption() -> float:
        pid = client.status().pid
        begin = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        found = client.status()
        taken = 1000 * (time.perf_counter() - begin)
        if found.sessions < count or found.pid == pid:
            raise RuntimeError(f"{found.sessions} of {count} sessions were adopted")
        return taken

    return [
        Figure(
            f"adoption of {count} sessions",
            "ms",
            adoption,
            lambda: ms_of_command(BARE_PYTHON),
            FLOOR_NAME,
            at_most(500, "ms"),
            make_and_outlive_quick_death,
        ),
        *_idle(client, count, make),
    ]


def _idle(client: Client, count: int, make: Callable[[], None]) -> list[Figure]:
    return [
        Figure(
            f"daemon's wake-ups in 10 s, {count} idle",
            "",
            lambda: _wake_ups(client),
            aim=at_most(0, ""),
            before=make,
            max_runs=1,
        ),
        Figure(
            f"daemon's memory, {count} idle",
            "MB",
            lambda: _rss_mb(client.status().pid),
            aim=at_most(60 + count, "MB"),
            before=make,
            max_runs=1,
        ),
    ]


def _wake_ups(client: Client) -> float:
    """Return the number of system calls of an idle daemon, counted by strace."""
    pid = client.status().pid
    time.sleep(2)  # until the work of the last request is done
    argv = ["timeout", str(IDLE_S), "strace", "-f", "-q", "-p", str(pid)]
    seen = subprocess.run(argv, capture_output=True, check=False).stderr.decode(errors="replace")
    calls = [line for line in seen.splitlines() if "(" in line and "unfinished" not in line and "strace:" not in line]
    # strace prints the call in which each thread waits when it attaches and detaches.
    return float(len([line for line in calls if "<detached" not in line]))


def _rss_mb(pid: int) -> float:
    return _status_kb(pid, "VmRSS") / 1000


def _peak_mb(pid: int) -> float:
    return _status_kb(pid, "VmHWM") / 1000


def _status_kb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1.024 * float(line.split()[1])
    raise RuntimeError(f"no {name} for process {pid}")


def _ms(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - begin)
