"""The supervisor: keeps the listening socket, and a daemon that serves it, until the home is stopped.

Clients that connect while there is no daemon wait in the socket's backlog for the next one. The daemon watches the
supervisor the same way (`guard.py`), so that either may be killed. A daemon that stops on purpose removes the socket's
name first: this is what tells its end from its death, also to a supervisor that is not its parent.

It must stay small: nothing heavy may be imported here. docs/protocol.md, section 5.
"""

import contextlib
import errno
import os
import select
import signal
import socket
import time

from waypoint.daemon import listening, siblings
from waypoint.daemon.background import detach, log, open_log, own_environment
from waypoint.daemon.siblings import MAX_QUICK_DEATHS, Patience
from waypoint.linux import files, pidfd
from waypoint.model.paths import socket_path, start_lock_path, supervisor_lock_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# A supervisor whose socket has lost its name is of no use to anyone: it is asked to end, and gets this long for it.
REPLACE_S = 30
# How long a daemon may take to stop before it is killed.
STOP_S = 20.0


def main(argv: list[str], environ: dict[str, str]) -> None:
    """Run a supervisor in the background; the calling process ends when it has forked.

    Says on --ready-fd `ready PID` once the socket is listening, whoever listens, or `error WORDS`.
    """
    home, options = siblings.parse_options(argv)
    ready_fd, listen_fd, daemon_fd = (
        siblings.take_fd(options, name) for name in ("ready-fd", "listen-fd", "daemon-fd")
    )
    detach(keep={fd for fd in (ready_fd, listen_fd, daemon_fd) if fd >= 0})
    open_log(home)
    try:
        with _one_after_the_other(home):
            lock_fd = _lock(home)
            if lock_fd < 0:
                _report(ready_fd, f"ready {_holder(home)}")
                return
            if listen_fd < 0 and listening.is_served(home):
                # By a daemon whose supervisor has just died. It is about to start another itself.
                _report(ready_fd, "ready 0")
                return
            os.pwrite(lock_fd, f"{os.getpid()}\n".ljust(16).encode(), 0)
            listener = socket.socket(fileno=listen_fd) if listen_fd >= 0 else listening.listen(home)
            _report(ready_fd, f"ready {os.getpid()}")
    except (OSError, ValueError) as error:
        log(f"cannot start: {error}")
        _report(ready_fd, f"error {error}")
        return
    script = options.get("daemon", siblings.DAEMON_SCRIPT)
    Supervisor(home, listener, script, own_environment(environ)).run(daemon_fd)


class Supervisor:
    """The one of its home, whose lock it holds until the process ends."""

    def __init__(self, home: str, listener: socket.socket, script: str, env: dict[str, str]) -> None:
        self._home = home
        self._listener = listener
        self._script = script
        self._env = env
        self._asked_to_stop = False
        self._self_fd = pidfd.open(os.getpid())
        self._wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_stop)

    def run(self, daemon_fd: int) -> None:
        """Keep a daemon running until one stops on purpose, we are told to end, or all die at once.

        `daemon_fd`: the pidfd of one that runs already, or -1. At the end the socket has no name.
        """
        patience = Patience()
        why = self._keep_running(daemon_fd, patience)
        log(f"ends: {why}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_path(self._home))

    def _keep_running(self, daemon_fd: int, patience: Patience) -> str:
        started = float("-inf")
        while True:
            if daemon_fd >= 0:
                self._watch(daemon_fd)
            else:
                started = time.monotonic()
                self._run_one()
            daemon_fd = -1
            if self._asked_to_stop or not os.path.exists(socket_path(self._home)):
                return "stopped"
            delay_s = patience.delay_after(time.monotonic() - started)
            if delay_s is None:
                return f"the daemon died {MAX_QUICK_DEATHS} times, each as soon as it was started"
            if delay_s and self._wait_asked(delay_s):
                return "stopped"

    def _run_one(self) -> None:
        """Start a daemon and wait for its end."""
        open_log(self._home)
        fds = {"listen_fd": self._listener.fileno(), "supervisor_fd": self._self_fd}
        try:
            pid = siblings.spawn_daemon(self._script, self._home, env=self._env, **fds)
        except OSError as error:
            log(f"cannot start a daemon: {error}")
            return
        log(f"daemon {pid} started")
        daemon_fd = pidfd.open(pid)
        self._watch(daemon_fd)

    def _watch(self, daemon_fd: int) -> None:
        """Wait for the end of the daemon; pass on our own."""
        watch = select.poll()
        watch.register(daemon_fd, select.POLLIN)
        watch.register(self._wake, select.POLLIN)
        watch.poll()
        if self._asked_to_stop:
            with contextlib.suppress(ProcessLookupError):
                pidfd.send_signal(daemon_fd, signal.SIGTERM)
                if not pidfd.wait_ended(daemon_fd, STOP_S):
                    pidfd.send_signal(daemon_fd, signal.SIGKILL)
        pidfd.wait_ended(daemon_fd, STOP_S)
        status = pidfd.reap(daemon_fd)
        os.close(daemon_fd)
        log(f"the daemon ended: {'not our child' if status is None else status}")

    def _wait_asked(self, timeout_s: float) -> bool:
        """Wait until we are asked to stop; False if we were not, in `timeout_s`."""
        watch = select.poll()
        watch.register(self._wake, select.POLLIN)
        watch.poll(timeout_s * 1000)
        return self._asked_to_stop

    def _note_stop(self, number: int, frame: "FrameType | None") -> None:
        self._asked_to_stop = True


@contextlib.contextmanager
def _one_after_the_other(home: str) -> "Iterator[None]":
    if not os.path.isdir(home):
        raise FileNotFoundError(errno.ENOENT, "there is no such home", home)
    listening.make_runtime_folder(home)
    with files.locked(start_lock_path(home)):
        yield


def _lock(home: str) -> int:
    """The supervisor's lock, or -1 if another supervisor holds it and its socket is there.

    One whose socket has no name is stopping, or has lost it for good: it is told to stop and waited for, REPLACE_S.
    """
    path = supervisor_lock_path(home)
    with contextlib.suppress(BlockingIOError):
        return files.lock(path, wait=False)
    if listening.is_served(home):
        return -1
    with contextlib.suppress(ProcessLookupError):
        holder_fd = pidfd.open(_holder(home))
        # Still held after the pid was opened, so this is the holder and not who came after it.
        with contextlib.suppress(BlockingIOError):
            return files.lock(path, wait=False)
        pidfd.send_signal(holder_fd, signal.SIGTERM)
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(REPLACE_S)
    try:
        return files.lock(path, wait=True)
    finally:
        signal.alarm(0)


def _give_up(number: int, frame: "FrameType | None") -> None:
    raise TimeoutError(f"another supervisor holds the lock, but not the socket, and has not ended in {REPLACE_S} s")


def _holder(home: str) -> int:
    """The pid in the lock's file: that of the supervisor, if the lock is held. 0 if it has none."""
    with open(supervisor_lock_path(home), "rb") as file:
        return int(file.read() or b"0")


def _report(ready_fd: int, words: str) -> None:
    if ready_fd >= 0:
        with contextlib.suppress(BrokenPipeError):  # who started us has not waited
            os.write(ready_fd, f"{words}\n".encode(errors="replace"))
        os.close(ready_fd)
