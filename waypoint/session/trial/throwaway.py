"""A session for the doctor's trials: made by the steps that every session is made by, used for a moment, destroyed.

Implements the stage of waypoint/processes/trial.py, which says what is tried.
"""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from waypoint.linux import cgroups, mounts, namespaces, netns, pidfd
from waypoint.processes.criu_worker import Command, Process, Spawn
from waypoint.processes.trial import Place, Subject
from waypoint.session.launch.birth import Answer
from waypoint.session.launch.enter import enter
from waypoint.session.launch.externals import mount_apart, name_externals
from waypoint.session.launch.program import MASTER_FD
from waypoint.session.launch.spec import EnterSpec, StartSpec
from waypoint.session.launch.start import new_network, start
from waypoint.session.trial.ground import Ground

# No `sh -i`: an interactive dash keeps /dev/tty open, which CRIU refuses ("ctty inheritance detected").
SHELL = ["/bin/sh", "-c", 'while read -r line; do eval "$line"; done']
HOLD = ["/bin/sh", "-c", "while :; do sleep 1000; done"]


class Throwaway:
    """Makes sessions on `ground`, which ends them. Every method raises OSError with call and path, or WaypointError."""

    def __init__(self, ground: Ground) -> None:
        self.folder: Path = ground.folder
        self._ground = ground
        self._specs: dict[str, StartSpec] = {}
        self._masters: list[int] = []

    def close(self) -> None:
        """Close our side of the terminals."""
        for master in self._masters:
            os.close(master)
        self._masters.clear()

    def start(self, argv: list[str] | None = None) -> Subject:
        spec = self._ground.plan(argv or SHELL)
        self._specs[spec.cgroup] = spec
        return self._subject(_pid_of(start(spec)), spec)

    def enter(self, subject: Subject, argv: list[str], stdio: int) -> int:
        """Start one more process in the session, with `stdio` as its stdin, stdout and stderr; its pid."""
        spec = self._specs[subject.cgroup]
        entry = EnterSpec(
            pid=subject.pid,
            cgroup=spec.cgroup,
            identity=spec.identity,
            argv=argv,
            env=spec.env,
            cwd=spec.cwd,
            tty=False,
            rows=spec.rows,
            cols=spec.cols,
        )
        return _pid_of(enter(entry, [stdio] * 3))

    def listen(self, subject: Subject) -> int:
        with netns.work_in(subject.pid, lambda: socket.create_server(("127.0.0.1", 0))) as listener:
            # The socket as all three: a /dev/null of ours would be a file from outside the session.
            self.enter(subject, HOLD, listener.fileno())
            port: int = listener.getsockname()[1]
            return port

    def connect(self, subject: Subject, port: int) -> None:
        netns.work_in(subject.pid, lambda: socket.create_connection(("127.0.0.1", port), timeout=5)).close()

    def place(self, subject: Subject) -> Place:
        spec = self._ground.plan(SHELL, upper_of=self._specs[subject.cgroup])
        self._specs[spec.cgroup] = spec
        externals = name_externals(spec.outside, apart(spec))
        return Place(root=externals.root, externals=externals.restore, cgroup=spec.cgroup)

    def adopt(self, pid: int, place: Place) -> Subject:
        return self._subject(pid, self._specs[place.cgroup])

    def spawn_beside(self, subject: Subject) -> Spawn:
        """CRIU in the session's network namespace: it then neither dumps it nor searches the host's connections."""

        def prepare() -> None:
            self._give_run()
            namespaces.setns(pidfd.open(subject.pid), namespaces.CLONE_NEWNET)

        return lambda command: _spawn(command, prepare)

    def spawn_into(self, place: Place) -> Spawn:
        """CRIU in the fork's cgroup, in a new network namespace, with the fork's mounts in reach."""
        spec = self._specs[place.cgroup]

        def prepare() -> None:
            os.setsid()
            cgroups.enter(spec.cgroup)
            new_network(spec.net)
            self._give_run()
            mount_apart(spec, apart(spec))
            namespaces.join_new_session_keyring()

        return lambda command: _spawn(command, prepare)

    def _give_run(self) -> None:
        namespaces.unshare(namespaces.CLONE_NEWNS)
        mounts.make_slave("/")
        mounts.bind(self._ground.criu_run, "/run")

    def _subject(self, pid: int, spec: StartSpec) -> Subject:
        init = pidfd.open(pid)
        try:
            master = pidfd.getfd(init, MASTER_FD)
        finally:
            os.close(init)
        self._masters.append(master)
        return Subject(pid=pid, master=master, cgroup=spec.cgroup, externals=name_externals(spec.outside, "").dump)


def apart(spec: StartSpec) -> str:
    """The folder for the mounts of a restore."""
    return f"{spec.merged}-apart"


def _pid_of(answer: Answer) -> int:
    launched, handles = answer
    for fd in handles:
        os.close(fd)
    if not launched.pid:
        raise OSError(launched.errno, launched.error, launched.path)
    return launched.pid


def _spawn(command: Command, prepare: Callable[[], None]) -> Process:
    def prepare_or_say() -> None:
        try:
            prepare()
        except BaseException as error:
            os.write(2, f"{error}\n".encode(errors="replace"))
            os._exit(127)

    # preexec_fn is safe here: this process has one thread.
    return subprocess.Popen(
        command.argv(command.socket_fd),
        env=command.env,
        pass_fds=(command.socket_fd, *command.inherited_fds),
        stdin=subprocess.DEVNULL,
        stdout=command.words_fd,
        stderr=command.words_fd,
        preexec_fn=prepare_or_say,
    )
