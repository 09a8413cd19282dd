"""How supervisor and daemon start each other (docs/protocol.md, section 5), and how long each waits before it starts
the other again.

Part of the supervisor, which must stay small: nothing heavy may be imported here.
"""

import fcntl
import os
import signal
import sys

QUICK_DEATH_S = 1.0  # a process that lived for less has died quickly
FIRST_DELAY_S = 0.1  # wait after the second quick death in a row; doubled after each further one
MAX_DELAY_S = 5.0
MAX_QUICK_DEATHS = 10  # after so many quick deaths in a row, no process is started any more

_HERE = os.path.dirname(os.path.abspath(__file__))
SUPERVISOR_SCRIPT = f"{_HERE}/supervisor.py"
DAEMON_SCRIPT = f"{_HERE}/main.py"

# Signals that get their default action in a started process: an ignored one would stay ignored over execve. Python
# itself ignores SIGPIPE.
_DEFAULT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGALRM)


class Patience:
    """Decides how long to wait before a dead process is started again. The wait is zero unless two processes in a row
    have died soon after their start: a single early death may be an accident.
    """

    def __init__(self) -> None:
        self._quick_deaths = 0

    def delay_after(self, lived_s: float) -> float | None:
        """Seconds to wait after a process that lived for `lived_s` seconds; None: start none any more. For a process
        that has failed to start, `lived_s` is 0.
        """
        if lived_s >= QUICK_DEATH_S:
            self._quick_deaths = 0
            return 0.0
        self._quick_deaths += 1
        if self._quick_deaths >= MAX_QUICK_DEATHS:
            return None
        return min(MAX_DELAY_S, FIRST_DELAY_S * (1 << (self._quick_deaths - 2))) if self._quick_deaths > 1 else 0.0


def spawn_daemon(
    script: str, home: str, *, listen_fd: int, supervisor_fd: int, serving_fd: int, env: dict[str, str]
) -> int:
    """Start a daemon that serves the socket `listen_fd` and watches the supervisor with pidfd `supervisor_fd`. Once it
    answers requests, it writes a byte to `serving_fd`.

    Returns the pid of the child, which is the daemon.
    """
    passed = {"--listen-fd": listen_fd, "--supervisor-fd": supervisor_fd, "--serving-fd": serving_fd}
    return _spawn(_command(script, home), passed, env)


def spawn_supervisor(
    home: str, *, daemon: tuple[str, int], listen_fd: int, mounts_fd: int, ready_fd: int, env: dict[str, str]
) -> int:
    """Start a supervisor for a running daemon, in the mount namespace `mounts_fd`. `daemon`: the script to start later
    daemons from, and the daemon's pidfd.

    Returns the pid of a child that ends at once: the supervisor is a fork of it and writes its own pid to `ready_fd`.
    """
    script, daemon_fd = daemon
    passed = {"--listen-fd": listen_fd, "--daemon-fd": daemon_fd, "--mounts-fd": mounts_fd, "--ready-fd": ready_fd}
    return _spawn(_command(SUPERVISOR_SCRIPT, home, "--daemon", script), passed, env)


def _command(*words: str) -> list[str]:
    """The command that runs a script with this process's interpreter."""
    return [sys.executable, "-I", "-S", *words]


def _spawn(command: list[str], passed: dict[str, int], env: dict[str, str]) -> int:
    """Run `command`; it inherits the descriptors in `passed` under their numbers."""
    options = [word for name, fd in passed.items() for word in (name, str(fd))]
    return os.posix_spawn(
        command[0],
        [*command, *options],
        env,
        # dup2 of a descriptor onto itself: clears close-on-exec, in the child only.
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, fd) for fd in passed.values()],
        # A process group and not a session: a session leader that opens a terminal gets it as its controlling terminal.
        setpgroup=0,
        setsigmask=[],
        setsigdef=_DEFAULT_SIGNALS,
    )


def parse_options(argv: list[str]) -> tuple[str, dict[str, str]]:
    """Parse `HOME [--name value]...`: the home's real path, and the values by name."""
    home, *rest = argv
    names, values = rest[::2], rest[1::2]
    if len(names) != len(values) or any(not name.startswith("--") for name in names):
        raise ValueError(f"usage: HOME [--name value]..., not {' '.join(argv)}")
    return os.path.realpath(home), {name[2:]: value for name, value in zip(names, values, strict=True)}


def take_fd(options: dict[str, str], name: str) -> int:
    """The inherited descriptor in option `name`, made close-on-exec and moved above 2; -1 without the option."""
    fd = int(options.get(name, -1))
    if 0 <= fd <= 2:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    if fd >= 0:
        os.set_inheritable(fd, False)  # noqa: FBT003 - its only form
    return fd
