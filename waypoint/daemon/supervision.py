"""The supervisor: keeps the listening socket open and a daemon running that serves it, until the home is stopped.

Clients that connect while there is no daemon wait in the socket's backlog for the next one. The daemon in turn watches
the supervisor (`supervisor_watch.py`), so either may be killed. A daemon that stops on purpose first removes the
socket's name. So the supervisor, even if it is not the daemon's parent, can distinguish this from a crash. See
docs/protocol.md, section 5.

The supervisor must stay small: nothing heavy may be imported here.
"""

import contextlib
import errno
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from types import FrameType

from waypoint.daemon import listening, siblings
from waypoint.daemon.background import detach, log, open_log, own_environment
from waypoint.daemon.siblings import MAX_QUICK_DEATHS, Patience
from waypoint.linux.storage import files, ownership
from waypoint.linux.tasks import lock_holder, pidfd
from waypoint.model.errors import HostLacks
from waypoint.model.paths import (
    SET_UP_BY_ROOT,
    daemon_lock_path,
    log_path,
    runtime_folder,
    start_lock_path,
    supervisor_lock_path,
)

# Seconds for another supervisor to end after it was asked to, because its socket no longer has a name, so that no
# client can reach it.
REPLACE_S = 30.0
# Seconds that a daemon gets to stop before it is killed.
STOP_S = 20.0


def main(argv: list[str], environ: dict[str, str]) -> None:
    """Run a supervisor in the background. The calling process exits as soon as it has forked.

    Writes to --ready-fd: `ready PID`, with the supervisor's pid, once a process listens on the socket, even if that is
    another supervisor's; `refused JSON`, with an error as in an answer of the API, if the home must not be used; or
    `error WORDS`.
    """
    home, options = siblings.parse_options(argv)
    ready_fd, listen_fd, daemon_fd, mounts_fd = fds = [
        siblings.take_fd(options, name) for name in ("ready-fd", "listen-fd", "daemon-fd", "mounts-fd")
    ]
    detach(keep={fd for fd in fds if fd >= 0})
    try:
        _enter_mounts(mounts_fd)
        if listen_fd < 0:
            ownership.check_home(home)
        with _start_lock_held(home, environ.get("XDG_RUNTIME_DIR", "")):
            open_log(home)  # only now, so that no log is made in a home that is just being removed
            lock_fd = _lock(home)
            if lock_fd < 0:
                _report(ready_fd, f"ready {lock_holder.signed_by(supervisor_lock_path(home))}")
                return
            if listen_fd < 0 and listening.is_served(home):
                # A daemon whose supervisor has just died serves the socket; that daemon is about to start a supervisor.
                _report(ready_fd, "ready 0")
                return
            lock_holder.sign(lock_fd)
            if listen_fd < 0:
                _end_lost_daemon(home)
                if listening.is_without_root(home):
                    _enter_own_namespace(home)
            listener = socket.socket(fileno=listen_fd) if listen_fd >= 0 else listening.listen(home)
            _report(ready_fd, f"ready {os.getpid()}")
    except HostLacks as refused:
        _report(ready_fd, f"refused {json.dumps(refused.to_json())}")
        return
    except (OSError, ValueError) as error:
        log(f"cannot start: {error}")
        _report(ready_fd, f"error {error}")
        return
    script = options.get("daemon", siblings.DAEMON_SCRIPT)
    Supervisor(home, listener, script, own_environment(environ)).run(daemon_fd)


def _enter_mounts(mounts_fd: int) -> None:
    """Enter the mount namespace `mounts_fd`, unless that is -1, and close the descriptor.

    A daemon starts a supervisor in its own mount namespace. Later daemons would begin with a copy of that daemon's
    mounts, and the mounts would last as long as the supervisor.
    """
    if mounts_fd >= 0:
        from waypoint.linux.tasks import namespaces  # imports ctypes: only for a supervisor that replaces another one

        namespaces.setns(mounts_fd, namespaces.CLONE_NEWNS)
        os.close(mounts_fd)


def _enter_own_namespace(home: str) -> None:
    """Enter the user namespace in which everything of a home without root runs. Raises HostLacks."""
    from waypoint.linux.tasks import own_namespace, process_groups  # imports ctypes: not for a supervisor of root

    folder = f"{runtime_folder(home)}/{process_groups.FOLDER}"
    try:
        own_namespace.enter(process_groups.members(folder))
    except OSError as error:
        said = f"this machine gives an ordinary user no user namespace: {error.strerror}"
        raise HostLacks("start", f"the daemon of {home}", said, SET_UP_BY_ROOT, code="no-user-namespaces") from error


class Supervisor:
    """The supervisor of a home. The process holds the supervisor's lock of that home until it ends."""

    def __init__(self, home: str, listener: socket.socket, script: str, env: dict[str, str]) -> None:
        self._home = home
        self._listener = listener
        self._script = script
        self._env = env
        self._asked_to_stop = False
        self._socket = listening.named_socket(home)
        self._self_fd = pidfd.open(os.getpid())
        self._wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_stop)

    def run(self, daemon_fd: int) -> None:
        """Keep a daemon running until one stops on purpose, this process is asked to end, or daemon after daemon dies
        soon after its start. At the end the socket's name is removed.

        `daemon_fd`: the pidfd of a daemon that runs already, or -1.
        """
        patience = Patience()
        why = self._keep_running(daemon_fd, patience)
        self._log(f"ends: {why}")
        listening.remove_name(self._home, self._socket)

    def _keep_running(self, daemon_fd: int, patience: Patience) -> str:
        while True:
            served_s = float("inf")
            if daemon_fd >= 0:
                self._watch(daemon_fd)
            else:
                served_s = self._run_one()
            daemon_fd = -1
            if self._asked_to_stop or self._socket is None or listening.named_socket(self._home) != self._socket:
                return "stopped"
            delay_s = patience.delay_after(served_s)
            if delay_s is None:
                return f"the daemon died {MAX_QUICK_DEATHS} times, each as soon as it was started"
            if delay_s:
                self._log(f"starting the next daemon in {delay_s:g} s")
                if self._wait_asked(delay_s):
                    return "stopped"

    def _log(self, words: str) -> None:
        if os.path.exists(log_path(self._home)):  # else the home is being removed
            open_log(self._home)  # the daemon may have renamed it
        log(words)

    def _run_one(self) -> float:
        """Start a daemon and wait for its end. Returns the seconds from its start to its end; 0.0 for a daemon that has
        never served its home, however long its start took.
        """
        serving, serving_write = os.pipe()
        os.set_blocking(serving, False)
        fds = {"listen_fd": self._listener.fileno(), "supervisor_fd": self._self_fd, "serving_fd": serving_write}
        started = time.monotonic()
        try:
            pid = siblings.spawn_daemon(self._script, self._home, env=self._env, **fds)
        except OSError as error:
            self._log(f"cannot start a daemon: {error}")
            return 0.0
        else:
            self._log(f"daemon {pid} started")
            self._watch(pidfd.open(pid))
            return time.monotonic() - started if _has_byte(serving) else 0.0
        finally:
            os.close(serving)
            os.close(serving_write)

    def _watch(self, daemon_fd: int) -> None:
        """Wait for the daemon's end. If this process is asked to stop, ask the daemon to, and kill it after STOP_S."""
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
        self._log(f"the daemon ended: {'exit status unknown, not a child' if status is None else status}")

    def _wait_asked(self, timeout_s: float) -> bool:
        """Wait until this process is asked to stop; False if that has not happened within `timeout_s`."""
        watch = select.poll()
        watch.register(self._wake, select.POLLIN)
        watch.poll(timeout_s * 1000)
        return self._asked_to_stop

    def _note_stop(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_stop = True


def _has_byte(pipe: int) -> bool:
    """Whether a byte was written to the pipe, whose reading end is non-blocking. Its writing end may still be open."""
    with contextlib.suppress(BlockingIOError):
        return bool(os.read(pipe, 1))
    return False


@contextlib.contextmanager
def _start_lock_held(home: str, runtime: str) -> Iterator[None]:
    """Hold the home's start lock for the `with`: supervisors start one at a time. `runtime`: the value of
    XDG_RUNTIME_DIR.
    """
    lock_fd = -1
    while lock_fd < 0:
        if not os.path.isdir(home):
            raise FileNotFoundError(errno.ENOENT, "there is no such home", home)
        listening.make_runtime_folder(home, runtime)
        # While this process waits for the lock, the folder may be removed as that of a home that did not exist.
        with contextlib.suppress(FileNotFoundError):
            lock_fd = files.lock(start_lock_path(home), wait=True)
    try:
        lock_holder.sign(lock_fd)
        yield
    finally:
        os.close(lock_fd)


def _lock(home: str) -> int:
    """Take the supervisor's lock and return its descriptor; -1 if another supervisor holds it and its socket is served.

    Another supervisor whose socket has no name is stopping, or cannot be reached any more: it is asked to end. Raises
    TimeoutError if it still holds the lock after REPLACE_S.
    """
    path = supervisor_lock_path(home)
    with contextlib.suppress(BlockingIOError):
        return files.lock(path, wait=False)
    if listening.is_served(home):
        return -1
    return lock_holder.take_over(path, patience_s=REPLACE_S)


def _end_lost_daemon(home: str) -> None:
    """Stop a daemon that still serves the home though its runtime folder was removed, with the socket and the
    supervisor's lock in it, and wait for the daemon's end. Sessions continue: before it ends, the daemon writes their
    runtime records again. The supervisor of that daemon ends, too, because its socket no longer has a name.

    Raises TimeoutError if the daemon has not ended after STOP_S.
    """
    path = daemon_lock_path(home)
    try:
        lock_fd = files.lock(path, wait=False)
    except BlockingIOError:
        log(
            "the running daemon's runtime folder was removed: stopping this daemon; the next one makes the folder again"
        )
        lock_fd = lock_holder.take_over(path, patience_s=STOP_S)
    os.close(lock_fd)


def _report(ready_fd: int, words: str) -> None:
    if ready_fd >= 0:
        with contextlib.suppress(BrokenPipeError):  # the reader, the process that started this one, has gone
            os.write(ready_fd, f"{words}\n".encode(errors="replace"))
        os.close(ready_fd)
