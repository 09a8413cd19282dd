"""How the supervisor starts the daemon, the daemon a supervisor, and how patient either is with the other.

Part of the supervisor, which must stay small: nothing heavy may be imported here. docs/protocol.md, section 5.
"""

import fcntl
import os
import signal
import sys

QUICK_DEATH_S = 1.0
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0
MAX_QUICK_DEATHS = 10

_HERE = os.path.dirname(os.path.abspath(__file__))
SUPERVISOR_SCRIPT = f"{_HERE}/supervisor.py"
DAEMON_SCRIPT = f"{_HERE}/main.py"

# What a process inherits as ignored stays ignored over exec; SIGPIPE is Python's own doing.
_DEFAULT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGALRM)


class Patience:
    """How long to wait before starting again something that died: not at all, unless it dies as soon as it starts."""

    def __init__(self) -> None:
        self._quick_deaths = 0

    def delay_after(self, lived_s: float) -> float | None:
        """Seconds to wait now that it has died after `lived_s`; None: give up."""
        if lived_s >= QUICK_DEATH_S:
            self._quick_deaths = 0
            return 0.0
        self._quick_deaths += 1
        if self._quick_deaths >= MAX_QUICK_DEATHS:
            return None
        return min(MAX_DELAY_S, FIRST_DELAY_S * (1 << (self._quick_deaths - 1)))


def spawn_daemon(script: str, home: str, *, listen_fd: int, supervisor_fd: int, env: dict[str, str]) -> int:
    """Start a daemon that serves the listening socket and watches its supervisor by pidfd. Returns the child's pid."""
    passed = {"--listen-fd": listen_fd, "--supervisor-fd": supervisor_fd}
    return _spawn([script, home], passed, env)


def spawn_supervisor(home: str, *, daemon: tuple[str, int], listen_fd: int, ready_fd: int, env: dict[str, str]) -> int:
    """Start a supervisor for a daemon that runs: `daemon` is its script, for the next one, and its pidfd.

    Returns the pid of the child, which ends at once: the supervisor is a fork of it and tells its pid on `ready_fd`.
    """
    script, daemon_fd = daemon
    passed = {"--listen-fd": listen_fd, "--daemon-fd": daemon_fd, "--ready-fd": ready_fd}
    return _spawn([SUPERVISOR_SCRIPT, home, "--daemon", script], passed, env)


def _spawn(command: list[str], passed: dict[str, int], env: dict[str, str]) -> int:
    """Run `command` with our own interpreter; it inherits the descriptors in `passed`, under their numbers."""
    options = [word for name, fd in passed.items() for word in (name, str(fd))]
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", *command, *options],
        env,
        # A duplicate onto itself: all it does is to clear close-on-exec, in the child only.
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, fd) for fd in passed.values()],
        # Not a session of its own: a session leader that opens a terminal would take it as its controlling one.
        setpgroup=0,
        setsigmask=[],
        setsigdef=_DEFAULT_SIGNALS,
    )


def parse_options(argv: list[str]) -> tuple[str, dict[str, str]]:
    """The home and the options of `HOME [--name value]...`. Raises ValueError."""
    home, *rest = argv
    names, values = rest[::2], rest[1::2]
    if len(names) != len(values) or any(not name.startswith("--") for name in names):
        raise ValueError(f"usage: HOME [--name value]..., not {' '.join(argv)}")
    return os.path.realpath(home), {name[2:]: value for name, value in zip(names, values, strict=True)}


def take_fd(options: dict[str, str], name: str) -> int:
    """An inherited descriptor, from now on close-on-exec and beyond the standard ones; -1 if it was not given."""
    fd = int(options.get(name, -1))
    if 0 <= fd <= 2:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    if fd >= 0:
        os.set_inheritable(fd, False)  # noqa: FBT003 - its only form
    return fd
