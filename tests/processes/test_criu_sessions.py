"""Dump and restore of sessions with CRIU, without a daemon."""

import os
import socket
import time
from pathlib import Path

import pytest

from tests.processes.stages import Session, Stage, criu_path, on_stage, type_line, wait_for_program
from tests.waiting import DEADLINE_S, wait_until
from waypoint.launch.criu_process import furnish
from waypoint.linux.net.netns import work_in
from waypoint.linux.tasks import cgroups
from waypoint.processes.criu.options import Notice, RestoreOptions
from waypoint.processes.criu.rpc import Criu

pytestmark = [pytest.mark.privileged, pytest.mark.requires("cgroup2", "overlay", "timens", "userns")]


def restore(stage: Stage, session: Session, images: int, name: str, notices: list[Notice] | None = None) -> Session:
    """Restore the dump `images` of the frozen `session` as a fork."""
    place = stage.place(session)
    furnish_it = furnish(session.spec)

    def hear(notice: Notice) -> None:
        furnish_it(notice)
        if notices is not None:
            notices.append(notice)

    (stage.folder / name).mkdir()
    work = os.open(stage.folder / name, os.O_RDONLY)
    options = RestoreOptions(
        images_fd=images,
        work_fd=work,
        root=place.root,
        externals=place.externals,
        empty_network=True,
        on_notice=hear,
    )
    restored = Criu(criu_path(), stage.spawn_into(place)).restore(options)
    os.close(work)
    return stage.adopt(restored.pid, place)


def read_answer(session: Session, line: str) -> str:
    """Return what the shell prints for `line`, without the echo."""
    type_line(session, f"{line}; echo 'end''mark'")
    seen = b""
    while b"endmark" not in seen:
        seen += os.read(session.master, 4096)
    return seen.decode().partition("\n")[2].partition("endmark")[0].replace("\r", "").strip()


@pytest.mark.requires("criu")
def test_forks_have_the_variables_files_and_ports_of_the_dump_and_diverge(tmp_path: Path) -> None:
    def work(stage: Stage) -> list[str]:
        session = stage.start()
        read_answer(session, "COLOUR=blue; echo one > /tmp/file; cd /tmp")
        port = stage.listen(session)
        images = stage.dump(session)
        notices: list[Notice] = []
        forks = [restore(stage, session, images, f"w{n}", notices) for n in range(2)]
        cgroups.thaw(session.cgroup)
        said = [read_answer(fork, "echo $COLOUR $PWD; cat file") for fork in forks]
        read_answer(forks[0], "echo two > file")
        said += [read_answer(other, "cat /tmp/file") for other in (session, *forks)]
        for fork in forks:
            stage.connect(fork, port)
        stages = [(notice.stage, notice.pid) for notice in notices]
        assert ("setup-namespaces", forks[0].pid) in stages
        return said

    assert on_stage(tmp_path, work) == ["blue /tmp\none", "blue /tmp\none", "one", "two", "one"]


@pytest.mark.requires("criu")
def test_a_restored_session_does_not_have_the_keys_of_the_restoring_process(tmp_path: Path) -> None:
    """Images do not contain session keyrings. A restored task inherits the keyring of CRIU."""
    read_key = """python3 -c 'import ctypes; print(ctypes.CDLL(None).syscall(250, 10, -3, b"user", b"hostkey", 0))'"""

    def work(stage: Stage) -> list[str]:
        import ctypes

        libc = ctypes.CDLL(None)
        assert libc.syscall(250, 1, None) > 0
        assert libc.syscall(248, b"user", b"hostkey", b"secret", 6, -3) > 0
        session = stage.start()
        read_answer(session, "true")
        images = stage.dump(session)
        fork = restore(stage, session, images, "work")
        cgroups.thaw(session.cgroup)
        return [read_answer(one, read_key) for one in (session, fork)]

    assert on_stage(tmp_path, work) == ["-1", "-1"]


@pytest.mark.requires("criu")
def test_a_session_keeps_its_limits_and_read_only_mounts_through_a_restore(tmp_path: Path) -> None:
    look = (
        "grep CapBnd /proc/self/status; cut -d' ' -f5,6 /proc/self/mountinfo | sort;"
        " (echo x > /proc/sys/kernel/core_pattern) 2>&1 | grep -o Read-only; echo x > /dev/null && echo null"
    )

    def work(stage: Stage) -> tuple[str, str]:
        session = stage.start()
        before = read_answer(session, look)
        images = stage.dump(session)
        fork = restore(stage, session, images, "work")
        return before, read_answer(fork, look)

    before, after = on_stage(tmp_path, work)
    assert before == after
    assert "CapBnd:\t00000000a00425fb" in before  # Docker's default set without mknod
    assert "/dev ro" in before
    assert "/proc/sys ro" in before
    assert "Read-only\nnull" in before


@pytest.mark.requires("criu")
def test_the_monotonic_clock_continues_from_the_moment_of_the_dump(tmp_path: Path) -> None:
    clock = """python3 -c 'import time; print(time.monotonic())'"""

    def work(stage: Stage) -> tuple[float, float, float]:
        session = stage.start()
        before = float(read_answer(session, clock))
        images = stage.dump(session)
        frozen_at = time.monotonic()
        wait_until(lambda: time.monotonic() > frozen_at + 1.0, "a second has passed", brief=True)
        fork = restore(stage, session, images, "work")
        return before, float(read_answer(fork, clock)), time.monotonic()

    before, after, on_host = on_stage(tmp_path, work)
    assert before < after < on_host - 0.9


@pytest.mark.requires("criu")
def test_a_listener_is_reachable_only_in_its_own_network(tmp_path: Path) -> None:
    def work(stage: Stage) -> int:
        session = stage.start()
        port = stage.listen(session)
        stage.connect(session, port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        names: list[tuple[int, str]] = work_in(session.pid, socket.if_nameindex)
        assert [name for _, name in names] == ["lo"]
        return port

    assert on_stage(tmp_path, work) > 0


@pytest.mark.requires("criu")
def test_a_process_that_entered_a_session_is_a_child_of_its_pid_1_and_is_dumped(tmp_path: Path) -> None:
    def work(stage: Stage) -> tuple[str, list[str]]:
        session = stage.start()
        ours, theirs = work_in(session.pid, socket.socketpair)
        look = "read -r own name state parent rest < /proc/self/stat; echo $own $parent"
        pid = stage.enter(session, ["/bin/sh", "-c", look], theirs.fileno())
        theirs.close()
        own, parent = ours.recv(100).decode().split()
        assert int(own) < pid  # `own` is the pid inside the session, `pid` the host's
        ours.close()
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the process has ended, and was reaped")
        stage.listen(session)
        wait_for_program(session, "sleep")
        images = stage.dump(session)
        names = sorted(name for name in os.listdir(images) if name.startswith("core-"))
        return parent, names

    parent, names = on_stage(tmp_path, work)
    assert parent == "1"
    assert len(names) == 4, names  # init, the shell, the holder of the socket and its sleep
