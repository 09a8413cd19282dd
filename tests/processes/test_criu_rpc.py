"""The conversation with the real CRIU, over single processes; sessions are in test_trial.py."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes.stages import criu_path, in_own_process, name_of, wait_until
from waypoint.linux import mounts, namespaces
from waypoint.model.errors import Failed, HostLacks
from waypoint.processes.criu_causes import CriuFailed
from waypoint.processes.criu_options import DumpOptions, Notice, RestoreOptions
from waypoint.processes.criu_rpc import Criu
from waypoint.processes.criu_worker import Command, Process, spawn_here

needs_criu = [pytest.mark.privileged, pytest.mark.requires("criu")]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that can be dumped: in a session of its own, with nothing open but /dev/null."""
    quiet = subprocess.DEVNULL
    command = ["sleep", "1000"]
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, cwd="/", start_new_session=True) as process:
        wait_until(lambda: name_of(process.pid) == "sleep", "sleep")
        yield process
        process.kill()


def end(pid: int) -> None:
    """A restored process: with `sibling` our child."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# --- without CRIU


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostLacks, match="No such file") as caught:
        Criu(tmp_path / "criu").version()
    assert caught.value.on == str(tmp_path / "criu")


def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "criu").write_text("no program")
    with pytest.raises(HostLacks, match="Permission denied"):
        Criu(tmp_path / "criu").version()


def test_what_a_broken_program_says_is_passed_on(tmp_path: Path) -> None:
    broken = script(tmp_path / "criu", "echo 'libnet.so.9: cannot open shared object file' >&2; exit 127")
    with pytest.raises(HostLacks, match=r"libnet\.so\.9: cannot open shared object file"):
        Criu(broken).version()


def test_a_program_that_dies_in_a_dump_is_reported_with_its_words(tmp_path: Path, folder: int) -> None:
    broken = script(tmp_path / "criu", "echo 'something awful' >&2; kill -9 $$")
    with pytest.raises(CriuFailed, match="something awful"):
        Criu(broken).dump(DumpOptions(tree_pid=1, images_fd=folder, work_fd=folder))


def test_the_end_of_the_program_is_noticed_though_a_child_of_it_holds_the_socket(tmp_path: Path, folder: int) -> None:
    """As after a failed restore, whose half-made tasks live on."""
    broken = script(tmp_path / "criu", f"sleep 1000 & echo $! >{tmp_path}/pid; exit 1")
    with pytest.raises(CriuFailed, match="without a word"):
        Criu(broken).dump(DumpOptions(tree_pid=1, images_fd=folder, work_fd=folder))
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_silent_program_is_ended_after_the_deadline(tmp_path: Path, folder: int) -> None:
    started: list[Process] = []

    def spawn(command: Command) -> Process:
        started.append(spawn_here(command))
        return started[0]

    silent = script(tmp_path / "criu", "exec sleep 1000")
    with pytest.raises(Failed, match="said nothing"):
        Criu(silent, spawn).dump(DumpOptions(tree_pid=1, images_fd=folder, work_fd=folder, deadline_s=0.1))
    assert started[0].wait() == -signal.SIGKILL


def test_nothing_stays_open_after_a_failure(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for path in (tmp_path / "none", script(tmp_path / "criu", "exit 1")):
        with pytest.raises(HostLacks):
            Criu(path).version()
    assert os.listdir("/proc/self/fd") == before


# --- with the real one


@pytest.mark.requires("criu")
class TestWithCriu:
    pytestmark = needs_criu

    def test_it_says_its_version_and_features(self) -> None:
        criu = Criu(criu_path())
        assert criu.version() >= (4, 2, 0)
        assert criu.features().pidfd_store

    def test_a_configuration_of_the_machine_does_not_reach_it(self, tmp_path: Path) -> None:
        def work() -> tuple[int, int, int]:
            namespaces.unshare(namespaces.CLONE_NEWNS)
            mounts.make_private("/")
            mounts.mount("tmpfs", "/etc", "tmpfs")
            Path("/etc/criu").mkdir()
            Path("/etc/criu/default.conf").write_text("no-such-option 5\n")
            return Criu(criu_path()).version()

        assert in_own_process(work) >= (4, 2, 0)

    def test_a_dumped_process_goes_on_and_a_stopped_one_is_brought_back(
        self, tmp_path: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        criu = Criu(criu_path())
        with ExitStack() as stack:
            images, work = (_open_new(stack, tmp_path / name) for name in ("images", "work"))
            result = criu.dump(DumpOptions(tree_pid=sleeper.pid, images_fd=images, work_fd=images))
            assert result.stats.pages_written > 0
            assert result.stats.frozen_us > 0
            assert sleeper.poll() is None
            sleeper.kill()
            sleeper.wait()
            restored = criu.restore(RestoreOptions(images_fd=images, work_fd=work, sibling=True))
            assert restored.pid == sleeper.pid
            assert name_of(restored.pid) == "sleep"
            end(restored.pid)

    def test_stages_are_told_in_their_order(self, tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
        criu = Criu(criu_path())
        seen: list[Notice] = []
        with ExitStack() as stack:
            images, work = (_open_new(stack, tmp_path / name) for name in ("images", "work"))
            criu.dump(DumpOptions(tree_pid=sleeper.pid, images_fd=images, work_fd=images, on_notice=seen.append))
            assert [notice.stage for notice in seen] == ["pre-dump", "query-ext-files", "post-dump"]
            seen.clear()
            sleeper.kill()
            sleeper.wait()
            options = RestoreOptions(images_fd=images, work_fd=work, sibling=True, on_notice=seen.append)
            restored = criu.restore(options)
        end(restored.pid)
        assert [notice.stage for notice in seen] == ["pre-restore", "post-restore", "pre-resume", "post-resume"]
        assert seen[1].pid == restored.pid

    @pytest.mark.parametrize("stage", ["pre-restore", "post-restore", "pre-resume", "post-resume"])
    def test_what_a_callback_raises_is_raised_and_no_task_is_left(
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
        wait_until(lambda: name_of(sleeper.pid) != "sleep" or _is_zombie(sleeper.pid), "the end of the restored task")

    def test_a_callback_that_raises_in_a_dump_leaves_the_process_running(
        self, tmp_path: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        def refuse(notice: Notice) -> None:
            raise KeyError(notice.stage)

        with ExitStack() as stack:
            images = _open_new(stack, tmp_path / "images")
            options = DumpOptions(tree_pid=sleeper.pid, images_fd=images, work_fd=images, on_notice=refuse)
            with pytest.raises(KeyError, match="pre-dump"):
                Criu(criu_path()).dump(options)
        assert sleeper.poll() is None

    def test_a_dump_of_nothing_says_so_and_where_its_log_is(self, tmp_path: Path, folder: int) -> None:
        with pytest.raises(CriuFailed) as caught:
            Criu(criu_path()).dump(DumpOptions(tree_pid=4_000_000, images_fd=folder, work_fd=folder))
        assert caught.value.diagnosis.name == "no-process"
        assert caught.value.log == tmp_path / "dump.log"
        assert caught.value.log.is_file()

    def test_an_image_that_lost_pages_is_refused(self, tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
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

    def test_requests_run_side_by_side(self) -> None:
        criu = Criu(criu_path())
        versions: list[tuple[int, int, int]] = []
        threads = [threading.Thread(target=lambda: versions.append(criu.version())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(versions) == 8
        assert len(set(versions)) == 1


def _open_new(stack: ExitStack, path: Path) -> int:
    path.mkdir()
    fd = os.open(path, os.O_RDONLY)
    stack.callback(os.close, fd)
    return fd


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
