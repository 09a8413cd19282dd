"""A process that belongs to nobody: no terminal, no folder, no file of its caller; and the log it writes.

Part of the supervisor, which must stay small: nothing heavy may be imported here.
"""

import contextlib
import os
import signal
import time

from waypoint.model.paths import log_path

MAX_LOG_BYTES = 4 << 20
# Set by Waypoint's own people and parts, or needed to write text; anything else may be a secret of the caller's.
_KEPT_VARIABLES = ("WAYPOINT_", "LC_")
_KEPT_NAMES = ("LANG", "TZ")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def detach(keep: set[int]) -> None:
    """Go on as an orphan in a session of its own; the calling process ends with 0. Closes all descriptors but `keep`.

    0, 1 and 2 become /dev/null.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, ended children would vanish without their status
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = max(low, fd + 1)
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def own_environment(caller: dict[str, str]) -> dict[str, str]:
    """What a daemon may know of the environment that it was started from."""
    kept = {name: caller[name] for name in caller if name.startswith(_KEPT_VARIABLES) or name in _KEPT_NAMES}
    return {"PATH": SYSTEM_PATH, **kept}


def open_log(home: str) -> None:
    """Make 1 and 2 the home's log, moved aside before if it has grown large. Without one, they stay what they are."""
    path = log_path(home)
    with contextlib.suppress(OSError):  # a full or read-only disk must not keep the daemon from running
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.fstat(fd).st_size > MAX_LOG_BYTES:
            os.rename(path, f"{path}.1")
            os.close(fd)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def log(words: str) -> None:
    """A line in the form that the daemon's own lines have."""
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} supervisor[{os.getpid()}] {words}\n"
    with contextlib.suppress(OSError):  # as above
        os.write(2, line.encode(errors="replace"))
