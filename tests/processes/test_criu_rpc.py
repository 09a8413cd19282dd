"""Requests to fake CRIUs and to the real one, for single processes. For sessions see test_criu_sessions.py."""

import errno
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes.stages import criu_path, in_own_process
from tests.processes_now import name_of, runs
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.calls import kernel_features
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import namespaces
from waypoint.linux.tasks.states import task_state
from waypoint.model.errors import Failed, HostLacks
from waypoint.processes.criu.causes import CriuAccident, CriuFailed
from waypoint.processes.criu.options import DumpOptions, Features, Notice, RestoreOptions
from waypoint.processes.criu.rpc import Criu, Dump
from waypoint.processes.criu.worker import CriuCommand, Process, spawn_here

needs_criu = [pytest.mark.privileged, pytest.mark.requires("criu")]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A `sleep` that CRIU can dump: it leads a session of its own, and has only /dev/null open."""
    quiet = subprocess.DEVNULL
    command = ["sleep", "1000"]
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, cwd="/", start_new_session=True) as process:
        wait_until(lambda: name_of(process.pid) == "sleep", "sleep runs")
        yield process
        process.kill()


def end(pid: int) -> None:
    """Kill a restored process, which is not a child of this process, and wait for its end."""
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([process], [], [])
    os.close(process)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


class Started(list[Process]):
    """Starts CRIU on this machine as usual, and keeps the started processes."""

    def __call__(self, command: CriuCommand) -> Process:
        self.append(spawn_here(command))
        return self[-1]


# --- without CRIU


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostLacks, match="No such file") as caught:
        Criu(tmp_path / "criu").version()
    assert caught.value.on == str(tmp_path / "criu")


def test_a_file_that_is_not_executable_is_named(tmp_path: Path) -> None:
    (tmp_path / "criu").write_text("no program")
    with pytest.raises(HostLacks, match="Permission denied"):
        Criu(tmp_path / "criu").version()


def test_the_message_of_a_broken_program_is_quoted(tmp_path: Path) -> None:
    broken = script(tmp_path / "criu", "echo 'libnet.so.9: cannot open shared object file' >&2; exit 127")
    with pytest.raises(HostLacks, match=r"libnet\.so\.9: cannot open shared object file"):
        Criu(broken).version()


def test_a_killed_program_or_one_without_memory_is_not_reported_as_a_lack_of_the_host(tmp_path: Path) -> None:
    killed = script(tmp_path / "killed", "echo 'one moment' >&2; kill -9 $$")
    with pytest.raises(Failed, match="one moment; CRIU was killed"):
        Criu(killed).version()
    starved = script(tmp_path / "starved", 'echo "Error (criu/util.c:1): Can\'t fork: Cannot allocate memory"; exit 1')
    with pytest.raises(Failed, match="Cannot allocate memory"):
        Criu(starved).version()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE])
def test_an_exhausted_limit_is_not_reported_as_a_lack_of_the_host(tmp_path: Path, folder: int, number: int) -> None:
    def refuse(command: CriuCommand) -> Process:
        raise OSError(number, os.strerror(number))

    criu = Criu(tmp_path / "criu", refuse)
    with pytest.raises(Failed, match=os.strerror(number)):
        criu.version()
    with pytest.raises(Failed, match=os.strerror(number)):
        criu.dump(DumpOptions(tree_pid=1, images_fd=folder, work_fd=folder))


def test_a_program_that_dies_in_a_dump_is_quoted(tmp_path: Path, folder: int) -> None:
    broken = script(tmp_path / "criu", "echo 'something awful' >&2; kill -9 $$")
    with pytest.raises(CriuFailed) as caught:
        Criu(broken).dump(DumpOptions(tree_pid=1, images_fd=folder, work_fd=folder))
    assert "something awful" in caught.value.diagnosis.words


def test_the_end_of_the_program_is_noticed_while_its_child_holds_the_socket(tmp_path: Path, folder: int) -> None:
    """A failed restore leaves such children: its unfinished tasks."""
    broken = script(tmp_path / "criu", f"sleep 1000 & echo $! >{tmp_path}/pid; exit 1")
    with pytest.raises(CriuFailed) as caught:
        Criu(broken).dump(DumpOptions(tree_pid=1, images_fd=folder, work_fd=folder))
    assert "without a message" in caught.value.diagnosis.words
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_silent_idle_program_is_killed_after_the_deadline(tmp_path: Path, folder: int) -> None:
    started = Started()
    silent = script(tmp_path / "criu", "exec sleep 1000")
    with pytest.raises(CriuAccident, match="sent nothing"):
        Criu(silent, started).dump(DumpOptions(tree_pid=1, images_fd=folder, work_fd=folder, deadline_s=0.1))
    assert started[0].wait() == -signal.SIGKILL


@pytest.mark.parametrize("works", ["while [ -e on ]; do :; done", "sh -c 'while [ -e on ]; do :; done'; true"])
def test_a_silent_busy_program_gets_more_time(tmp_path: Path, folder: int, works: str) -> None:
    (tmp_path / "on").touch()
    busy = script(tmp_path / "criu", f"cd {tmp_path}; {works}; echo 'it was let end' >&2; exit 1")
    end = threading.Timer(1.2, (tmp_path / "on").unlink)
    end.start()
    with pytest.raises(CriuAccident) as caught:
        Criu(busy).dump(DumpOptions(tree_pid=1, images_fd=folder, work_fd=folder, deadline_s=0.5))
    assert "it was let end" in caught.value.diagnosis.words
    end.join()


def test_a_program_that_stays_silent_and_busy_is_killed(tmp_path: Path, folder: int) -> None:
    busy = script(tmp_path / "criu", "while :; do :; done")
    with pytest.raises(CriuAccident, match="sent nothing"):
        Criu(busy).dump(DumpOptions(tree_pid=1, images_fd=folder, work_fd=folder, deadline_s=0.05))


def test_no_descriptor_stays_open_after_a_failure(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for path in (tmp_path / "none", script(tmp_path / "criu", "exit 1")):
        with pytest.raises(HostLacks):
            Criu(path).version()
    assert os.listdir("/proc/self/fd") == before


def test_a_dump_whose_request_is_too_large_leaves_nothing(tmp_path: Path, folder: int) -> None:
    started = Started()
    silent = script(tmp_path / "criu", "exec sleep 1000")
    externals = tuple(f"mnt[/{number:0>100}]:x" for number in range(10_000))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="too long"):
        Criu(silent, started).dump(DumpOptions(tree_pid=1, images_fd=folder, work_fd=folder, externals=externals))
    assert started[0].wait() == -signal.SIGKILL
    assert os.listdir("/proc/self/fd") == before


def test_the_program_is_killed_if_descriptors_run_out_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started()

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    silent = script(tmp_path / "criu", "exec sleep 1000")
    before = os.listdir("/proc/self/fd")
    for module, call, count in ((os, "pidfd_open", 1), (socket, "socketpair", 0)):
        started.clear()
        with monkeypatch.context() as patched:
            patched.setattr(module, call, refuse)
            with pytest.raises(OSError, match="Too many open files"):
                Criu(silent, started).version()
        assert [process.wait() for process in started] == [-signal.SIGKILL] * count
        assert os.listdir("/proc/self/fd") == before


# --- with the real CRIU


@pytest.mark.requires("criu")
class TestWithCriu:
    pytestmark = needs_criu

    def test_version_and_features_are_those_of_the_program_and_kernel(self) -> None:
        criu = Criu(criu_path())
        assert criu.version() >= (4, 2, 0)
        of_kernel = Features(
            memory_tracking=kernel_features.tracks_memory(), lazy_pages=kernel_features.follows_faults()
        )
        assert criu.features() == of_kernel

    def test_the_configuration_file_of_the_machine_is_ignored(self, tmp_path: Path) -> None:
        def work() -> tuple[int, int, int]:
            namespaces.unshare(namespaces.CLONE_NEWNS)
            mounts.make_private("/")
            mounts.mount("tmpfs", "/etc", "tmpfs")
            Path("/etc/criu").mkdir()
            Path("/etc/criu/default.conf").write_text("no-such-option 5\n")
            return Criu(criu_path()).version()

        assert in_own_process(work) >= (4, 2, 0)

    def test_a_dumped_process_continues_and_an_ended_one_is_restored(
        self, tmp_path: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        criu = Criu(criu_path())
        with ExitStack() as stack:
            images, work = (_open_new(stack, tmp_path / name) for name in ("images", "work"))
            stats = criu.dump(DumpOptions(tree_pid=sleeper.pid, images_fd=images, work_fd=images))
            assert stats.frozen_us > 0
            assert sleeper.poll() is None
            sleeper.kill()
            sleeper.wait()
            restored = criu.restore(RestoreOptions(images_fd=images, work_fd=work))
            assert restored.pid == sleeper.pid
            assert name_of(restored.pid) == "sleep"
            end(restored.pid)

    def test_the_steps_of_dump_and_restore_are_notified_in_order(
        self, tmp_path: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        criu = Criu(criu_path())
        seen: list[Notice] = []
        with ExitStack() as stack:
            images, work = (_open_new(stack, tmp_path / name) for name in ("images", "work"))
            with criu.dumping(DumpOptions(tree_pid=sleeper.pid, images_fd=images, work_fd=images)) as dump:
                dump.wait_ready()
                assert "inventory.img" not in os.listdir(images)
                dump.go()
                dump.wait_written()
                dump.let_go()
            assert "inventory.img" in os.listdir(images)
            sleeper.kill()
            sleeper.wait()
            options = RestoreOptions(images_fd=images, work_fd=work, on_notice=seen.append)
            restored = criu.restore(options)
        end(restored.pid)
        assert [notice.stage for notice in seen] == ["pre-restore", "post-restore", "pre-resume", "post-resume"]
        assert seen[1].pid == restored.pid

    @pytest.mark.parametrize("stage", ["pre-restore", "post-restore", "pre-resume", "post-resume"])
    def test_the_exception_of_a_callback_is_raised_and_no_task_is_left(
        self, stage: str, tmp_path: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        criu = Criu(criu_path())

        def refuse(notice: Notice) -> None:
            if notice.stage == stage:
                raise KeyError(notice.stage)

        with ExitStack() as stack:
            images, work = (_open_new(stack, tmp_path / name) for name in ("images", "work"))
            criu.dump(DumpOptions(tree_pid=sleeper.pid, images_fd=images, work_fd=images))
            sleeper.kill()
            sleeper.wait()
            with pytest.raises(KeyError, match=stage):
                criu.restore(RestoreOptions(images_fd=images, work_fd=work, on_notice=refuse))
        wait_until(
            lambda: not (runs(sleeper.pid) and name_of(sleeper.pid) == "sleep"),
            "the restored task has ended",
            PATIENCE_S,
        )

    def test_the_death_of_criu_is_reported_even_if_the_callback_fails_too(
        self, tmp_path: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        started = Started()

        def lose_it(notice: Notice) -> None:
            started[-1].kill()
            started[-1].wait()
            raise ProcessLookupError(errno.ESRCH, "setns: No such process")

        criu = Criu(criu_path(), started)
        with ExitStack() as stack:
            images, work = (_open_new(stack, tmp_path / name) for name in ("images", "work"))
            criu.dump(DumpOptions(tree_pid=sleeper.pid, images_fd=images, work_fd=images))
            sleeper.kill()
            sleeper.wait()
            with pytest.raises(CriuFailed) as caught:
                criu.restore(RestoreOptions(images_fd=images, work_fd=work, on_notice=lose_it))
        assert caught.value.diagnosis.name == "died"

    @pytest.mark.parametrize("step", ["wait_ready", "go", "wait_written"])
    def test_a_dump_that_is_abandoned_after_a_step_leaves_the_process_running(
        self, step: str, tmp_path: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        with ExitStack() as stack:
            images = _open_new(stack, tmp_path / "images")
            options = DumpOptions(tree_pid=sleeper.pid, images_fd=images, work_fd=images)
            with pytest.raises(KeyError, match=step):
                _leave_after(step, Criu(criu_path()).dumping(options))
        assert sleeper.poll() is None
        wait_until(lambda: task_state(sleeper.pid).state == "S", "the process sleeps again, and is not stopped")

    @pytest.mark.requires("own-criu")
    def test_images_that_do_not_fit_on_the_disk_are_an_error_and_the_process_runs(
        self, tmp_path: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        def work() -> str:
            namespaces.unshare(namespaces.CLONE_NEWNS)
            mounts.make_private("/")
            mounts.mount("tmpfs", tmp_path, "tmpfs", 0, "size=64k")
            with ExitStack() as stack:
                images = _open_new(stack, tmp_path / "images")
                options = DumpOptions(tree_pid=sleeper.pid, images_fd=images, work_fd=images)
                with pytest.raises(CriuAccident) as caught:
                    _dump_and_see_it_run(Criu(criu_path()).dumping(options), sleeper.pid)
            return caught.value.diagnosis.name

        assert in_own_process(work) == "disk-full"
        assert sleeper.poll() is None

    def test_a_dump_of_a_missing_process_is_an_error_with_a_log(self, tmp_path: Path, folder: int) -> None:
        with pytest.raises(CriuFailed) as caught:
            Criu(criu_path()).dump(DumpOptions(tree_pid=4_000_000, images_fd=folder, work_fd=folder))
        assert caught.value.diagnosis.name == "no-process"
        assert caught.value.log == tmp_path / "dump.log"
        assert caught.value.log.is_file()

    def test_a_truncated_image_is_refused(self, tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
        criu = Criu(criu_path())
        with ExitStack() as stack:
            images, work = (_open_new(stack, tmp_path / name) for name in ("images", "work"))
            criu.dump(DumpOptions(tree_pid=sleeper.pid, images_fd=images, work_fd=images))
            sleeper.kill()
            sleeper.wait()
            os.truncate(next((tmp_path / "images").glob("core-*.img")), 40)
            with pytest.raises(CriuFailed) as caught:
                criu.restore(RestoreOptions(images_fd=images, work_fd=work))
        assert caught.value.diagnosis.name == "image-damaged"

    def test_requests_run_in_parallel(self) -> None:
        criu = Criu(criu_path())
        versions: list[tuple[int, int, int]] = []
        threads = [threading.Thread(target=lambda: versions.append(criu.version())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(versions) == 8
        assert len(set(versions)) == 1


def _leave_after(step: str, dumping: Dump) -> None:
    with dumping as dump:
        for name in ("wait_ready", "go", "wait_written"):
            getattr(dump, name)()
            if name == step:
                raise KeyError(step)


def _dump_and_see_it_run(dumping: Dump, pid: int) -> None:
    with dumping as dump:
        dump.wait_ready()
        dump.go()
        dump.wait_written()
        dump.let_go()
        wait_until(lambda: task_state(pid).state == "S", "the process runs again")


def _open_new(stack: ExitStack, path: Path) -> int:
    path.mkdir()
    fd = os.open(path, os.O_RDONLY)
    stack.callback(os.close, fd)
    return fd
