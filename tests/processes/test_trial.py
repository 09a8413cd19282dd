"""The doctor's trial, end to end: real sessions, real dumps, and nothing left."""

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.processes.stages import criu_path, in_own_process, on_stage, type_line, wait_for_program, wait_until
from waypoint.daemon.trials import trial, try_everything
from waypoint.linux import cgroups, mounts, namespaces
from waypoint.linux.netns import work_in
from waypoint.processes.criu_options import DumpOptions, Notice, RestoreOptions
from waypoint.processes.criu_rpc import Criu
from waypoint.processes.freeze import freeze_for_dump
from waypoint.processes.trial import CRIU, DUMP_SOCKET, DUMP_TERMINAL, MEMORY_TRACKING, RESTORE, Subject, passed
from waypoint.session.trial.ground import Ground
from waypoint.session.trial.throwaway import Throwaway

SESSION_WORDS = ("cgroup2", "overlay", "timens", "userns")

pytestmark = [pytest.mark.privileged, pytest.mark.requires(*SESSION_WORDS)]


def trial_groups() -> list[str]:
    return [path.name for path in Path(cgroups.find_hierarchies().unified).glob("waypoint-trial-*")]


@pytest.mark.requires("criu")
def test_a_criu_that_works_passes_and_nothing_is_left(tmp_path: Path) -> None:
    rows = trial(criu_path(), tmp_path)
    assert passed(rows), rows
    assert {CRIU, DUMP_TERMINAL, DUMP_SOCKET, RESTORE, MEMORY_TRACKING} <= {row.name for row in rows}
    assert list(tmp_path.iterdir()) == []
    assert trial_groups() == []


def test_a_program_that_is_no_criu_fails_in_its_own_words_and_the_rest_is_not_tried(tmp_path: Path) -> None:
    fake = tmp_path / "criu"
    fake.write_text("#!/bin/sh\necho not a criu >&2\nexit 1\n")
    fake.chmod(0o755)
    rows = trial(fake, tmp_path)
    assert not passed(rows)
    assert (rows[0].name, rows[0].state, rows[0].why) == (CRIU, "missing", "not a criu")
    assert all(row.why.startswith("not tried") for row in rows[1:])
    assert all(row.remedy for row in rows)


@pytest.mark.requires("criu")
def test_a_criu_that_only_says_looks_good_does_not_pass(tmp_path: Path) -> None:
    """One that answers every question and whose dumps fail, as 4.1.1's do on Linux 6.16."""
    liar = tmp_path / "criu"
    liar.write_text(f"""#!{os.path.realpath("/bin/sh")}
case "$*" in check*) echo Looks good.; exit 0;; esac
ulimit -f 0
exec {criu_path()} "$@"
""")
    liar.chmod(0o755)
    assert subprocess.run([liar, "check"], capture_output=True, text=True, check=True).stdout == "Looks good.\n"
    rows = {row.name: row for row in trial(liar, tmp_path)}
    assert rows[CRIU].state == "ok"
    assert rows[DUMP_TERMINAL].state == "missing"
    assert not passed(list(rows.values()))


@pytest.mark.requires("criu", "btrfs")
def test_the_doctor_tries_everything(tmp_path: Path) -> None:
    rows = {row.name: row for row in try_everything(tmp_path, str(criu_path()))}
    required = [row for row in rows.values() if row.required_for != "optional"]
    assert [row for row in required if row.state != "ok"] == []
    assert {"user namespaces", "time namespaces", "overlayfs", "cgroup2 freezer", "btrfs pool"} <= set(rows)
    assert all(row.why and row.remedy for row in rows.values() if row.state != "ok")
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_says_that_there_is_no_criu(tmp_path: Path) -> None:
    rows = {row.name: row for row in try_everything(tmp_path, str(tmp_path / "nothing"))}
    assert rows["overlayfs"].state == "ok"
    assert rows[CRIU].state == rows[RESTORE].state == "missing"
    assert "waypoint setup" in rows[CRIU].remedy


def test_what_a_killed_trial_left_is_removed_by_the_next(tmp_path: Path) -> None:
    def die() -> None:
        try:
            namespaces.unshare(namespaces.CLONE_NEWNS)
            mounts.make_private("/")
            Throwaway(Ground(tmp_path).__enter__()).start()
        finally:
            os.kill(os.getpid(), 9)

    child = os.fork()
    if child == 0:
        die()
    os.waitpid(child, 0)
    assert len(trial_groups()) == 1
    assert len(list(tmp_path.iterdir())) == 1

    def next_one() -> None:
        with Ground(tmp_path):
            assert len(trial_groups()) == 1
            assert len(list(tmp_path.iterdir())) == 1

    in_own_process(next_one)
    assert trial_groups() == []
    assert list(tmp_path.iterdir()) == []


def dump(stage: Throwaway, subject: Subject) -> int:
    (stage.folder / "images").mkdir()
    fd = os.open(stage.folder / "images", os.O_RDONLY)
    freeze_for_dump(subject.cgroup)
    options = DumpOptions(
        tree_pid=subject.pid, images_fd=fd, work_fd=fd, freeze_cgroup=subject.cgroup, externals=subject.externals
    )
    Criu(criu_path(), stage.spawn_beside(subject)).dump(options)
    return fd


def restore(stage: Throwaway, subject: Subject, images: int, name: str, notices: list[Notice] | None = None) -> Subject:
    """A fork of the frozen `subject`."""
    place = stage.place(subject)
    (stage.folder / name).mkdir()
    work = os.open(stage.folder / name, os.O_RDONLY)
    options = RestoreOptions(
        images_fd=images,
        work_fd=work,
        root=place.root,
        externals=place.externals,
        on_notice=notices.append if notices is not None else None,
    )
    restored = Criu(criu_path(), stage.spawn_into(place)).restore(options)
    os.close(work)
    return stage.adopt(restored.pid, place)


def read_answer(subject: Subject, line: str) -> str:
    """What the shell prints for `line`, without the echo."""
    type_line(subject, f"{line}; echo 'end''mark'")
    seen = b""
    while b"endmark" not in seen:
        seen += os.read(subject.master, 4096)
    return seen.decode().partition("\n")[2].partition("endmark")[0].replace("\r", "").strip()


@pytest.mark.requires("criu")
def test_forks_have_the_variables_the_files_and_the_ports_of_the_moment_and_go_apart(tmp_path: Path) -> None:
    def work(stage: Throwaway) -> list[str]:
        subject = stage.start()
        read_answer(subject, "COLOUR=blue; echo one > /tmp/file; cd /tmp")
        port = stage.listen(subject)
        images = dump(stage, subject)
        notices: list[Notice] = []
        forks = [restore(stage, subject, images, f"w{n}", notices) for n in range(2)]
        cgroups.thaw(subject.cgroup)
        said = [read_answer(fork, "echo $COLOUR $PWD; cat file") for fork in forks]
        read_answer(forks[0], "echo two > file")
        said += [read_answer(other, "cat /tmp/file") for other in (subject, *forks)]
        for fork in forks:
            stage.connect(fork, port)
        stages = [(notice.stage, notice.pid) for notice in notices]
        assert ("setup-namespaces", forks[0].pid) in stages
        return said

    assert on_stage(tmp_path, work) == ["blue /tmp\none", "blue /tmp\none", "one", "two", "one"]


@pytest.mark.requires("criu")
def test_a_restored_session_does_not_have_the_keys_of_whoever_restores_it(tmp_path: Path) -> None:
    """Session keyrings are in no image: restored tasks have CRIU's."""
    read_key = """python3 -c 'import ctypes; print(ctypes.CDLL(None).syscall(250, 10, -3, b"user", b"hostkey", 0))'"""

    def work(stage: Throwaway) -> list[str]:
        import ctypes

        libc = ctypes.CDLL(None)
        assert libc.syscall(250, 1, None) > 0
        assert libc.syscall(248, b"user", b"hostkey", b"secret", 6, -3) > 0
        subject = stage.start()
        read_answer(subject, "true")
        images = dump(stage, subject)
        fork = restore(stage, subject, images, "work")
        cgroups.thaw(subject.cgroup)
        return [read_answer(one, read_key) for one in (subject, fork)]

    assert on_stage(tmp_path, work) == ["-1", "-1"]


@pytest.mark.requires("criu")
def test_a_session_keeps_its_limits_and_read_only_mounts_through_a_restore(tmp_path: Path) -> None:
    look = (
        "grep CapBnd /proc/self/status; cut -d' ' -f5,6 /proc/self/mountinfo | sort;"
        " (echo x > /proc/sys/kernel/core_pattern) 2>&1 | grep -o Read-only; echo x > /dev/null && echo null"
    )

    def work(stage: Throwaway) -> tuple[str, str]:
        subject = stage.start()
        before = read_answer(subject, look)
        images = dump(stage, subject)
        fork = restore(stage, subject, images, "work")
        return before, read_answer(fork, look)

    before, after = on_stage(tmp_path, work)
    assert before == after
    assert "CapBnd:\t00000000a00425fb" in before  # Docker's, without mknod
    assert "/dev ro" in before
    assert "/proc/sys ro" in before
    assert "Read-only\nnull" in before


@pytest.mark.requires("criu")
def test_the_monotonic_clock_goes_on_from_the_moment_of_the_dump(tmp_path: Path) -> None:
    clock = """python3 -c 'import time; print(time.monotonic())'"""

    def work(stage: Throwaway) -> tuple[float, float, float]:
        subject = stage.start()
        before = float(read_answer(subject, clock))
        images = dump(stage, subject)
        frozen_at = time.monotonic()
        wait_until(lambda: time.monotonic() > frozen_at + 1.0, "a second to pass")
        fork = restore(stage, subject, images, "work")
        return before, float(read_answer(fork, clock)), time.monotonic()

    before, after, on_host = on_stage(tmp_path, work)
    assert before < after < on_host - 0.9


@pytest.mark.requires("criu")
def test_a_listener_is_reached_in_its_own_network_only(tmp_path: Path) -> None:
    def work(stage: Throwaway) -> int:
        subject = stage.start()
        port = stage.listen(subject)
        stage.connect(subject, port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        names: list[tuple[int, str]] = work_in(subject.pid, socket.if_nameindex)
        assert [name for _, name in names] == ["lo"]
        return port

    assert on_stage(tmp_path, work) > 0


@pytest.mark.requires("criu")
def test_a_process_that_entered_a_session_belongs_to_its_pid_1_and_is_in_the_image(tmp_path: Path) -> None:
    def work(stage: Throwaway) -> tuple[str, list[str]]:
        subject = stage.start()
        ours, theirs = work_in(subject.pid, socket.socketpair)
        look = "read -r own name state parent rest < /proc/self/stat; echo $own $parent"
        pid = stage.enter(subject, ["/bin/sh", "-c", look], theirs.fileno())
        theirs.close()
        own, parent = ours.recv(100).decode().split()
        assert int(own) < pid  # the one is seen from inside, the other from outside
        ours.close()
        stage.listen(subject)
        wait_for_program(subject, "sleep")
        images = dump(stage, subject)
        names = sorted(name for name in os.listdir(images) if name.startswith("core-"))
        return parent, names

    parent, names = on_stage(tmp_path, work)
    assert parent == "1"
    assert len(names) == 4, names  # init, the shell, the holder of the socket and its sleep
