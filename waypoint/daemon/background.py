"""Background processes: detaching a process from its caller (terminal, folder, open files), and opening its log.

Part of the supervisor, which must stay small: nothing heavy may be imported here.
"""

import contextlib
import os
import signal
import time

from waypoint.model.paths import log_path, older_log_path

MAX_LOG_BYTES = 4 << 20
# The daemon keeps only these variables of its caller's environment: Waypoint's own, and those for text and times.
# Others may be secrets.
_KEPT_VARIABLES = ("WAYPOINT_", "LC_")
_KEPT_NAMES = ("LANG", "TZ")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def detach(keep: set[int]) -> None:
    """Fork: the child continues as an orphan in a new session (setsid(2)), in `/`; the calling process exits with 0.

    Of the child's descriptors only `keep` stay open; 0, 1 and 2 become /dev/null.
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
    """The environment for a daemon that was started from the environment `caller`."""
    kept = {name: caller[name] for name in caller if name.startswith(_KEPT_VARIABLES) or name in _KEPT_NAMES}
    return {"PATH": SYSTEM_PATH, **kept}


def open_log(home: str) -> None:
    """Redirect descriptors 1 and 2 to the home's log (mode 0600). A log larger than MAX_LOG_BYTES is renamed first. If
    the log cannot be opened, 1 and 2 are not changed.

    Supervisor and daemon write to the same file. After one of them has renamed the file, the other still writes to the
    renamed file until it calls `open_log`, too.
    """
    path = log_path(home)
    with contextlib.suppress(OSError):  # a full or read-only disk must not keep the daemon from running
        fd = _open(path)
        if os.fstat(fd).st_size > MAX_LOG_BYTES:
            os.rename(path, older_log_path(home))
            os.close(fd)
            fd = _open(path)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def _open(path: str) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, 0o600)  # the file may have existed with another mode
    return fd


def is_log_full() -> bool:
    """Whether the log behind descriptor 2 is larger than MAX_LOG_BYTES, so that `open_log` must be called. False if
    descriptor 2 is a terminal.
    """
    with contextlib.suppress(OSError):
        return os.fstat(2).st_size > MAX_LOG_BYTES
    return False


def log(words: str) -> None:
    """Write `words` as a line of the supervisor to the log, in the form of the daemon's lines. Never fails."""
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} supervisor[{os.getpid()}] {words}\n"
    with contextlib.suppress(OSError):  # a full disk must not keep the supervisor from running
        os.write(2, line.encode(errors="replace"))
