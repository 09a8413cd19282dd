"""On a full disk, the shell of a session still takes commands, so that a user can free space."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.session.stage import HOOKS, Ran, Stage
from waypoint.capture.left_status import read_status
from waypoint.session.live.run import StatusPlace
from waypoint.terminal.hooks.asking import KEY
from waypoint.terminal.hooks.run_folder import RunFolder, Spare

pytestmark = [pytest.mark.soak(part="disks"), pytest.mark.privileged]


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder on a separate file system that has free inodes, but no free space."""
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(folder)], check=True)
    try:
        (folder / "fill").write_bytes(bytes(8192))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def run_folder(full: Path, tmp_path: Path) -> Iterator[RunFolder]:
    spare = tmp_path / "shm"
    spare.mkdir()
    fd = os.open(full, os.O_RDONLY)
    yield RunFolder(fd, Spare(str(spare), lambda: os.open(spare, os.O_RDONLY)))
    os.close(fd)


def test_a_request_is_written_to_the_spare_folder_if_the_disk_is_full(
    run_folder: RunFolder, full: Path, tmp_path: Path
) -> None:
    text = b"x" * 100_000
    run_folder.write("req", text)
    assert (full / "req").read_bytes() == text
    assert (full / "req").resolve().parent == tmp_path / "shm"
    assert (full / "req").stat().st_mode & 0o777 == 0o600


def test_a_request_in_the_spare_folder_can_be_replaced_and_removed(
    run_folder: RunFolder, full: Path, tmp_path: Path
) -> None:
    run_folder.write("req", b"first")
    run_folder.write("req", b"second")
    assert (full / "req").read_bytes() == b"second"
    (full / "fill").unlink()
    run_folder.write("req", b"third")
    assert not (full / "req").is_symlink()
    run_folder.remove("req")
    assert not (full / "req").exists()
    assert list((tmp_path / "shm").iterdir()) == []


def test_links_of_others_are_not_followed_in_writing_a_request(
    run_folder: RunFolder, full: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (full / "req").symlink_to(precious)
    (tmp_path / "shm/.waypoint-req").symlink_to(precious)
    run_folder.write("req", b"mine")
    assert (full / "req").read_bytes() == b"mine"
    run_folder.remove("req")
    assert precious.read_text() == "kept"


@pytest.fixture
def nameless(tmp_path: Path) -> Iterator[Path]:
    """The run folder of a stage, on a file system that has just a few inodes more than the shell needs."""
    folder = tmp_path / "run"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=10,mode=700", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_command_runs_without_a_free_inode(nameless: Path, stage: Stage) -> None:
    stage.spare = Spare("/dev/shm", lambda: os.open("/dev/shm", os.O_RDONLY))
    before = set(os.listdir("/dev/shm"))
    await stage.open()
    assert (await stage.exec("true")).exit == 0
    with contextlib.suppress(OSError):
        for number in range(10):
            (nameless / f"fill{number}").touch()
    with pytest.raises(OSError, match="No space left"):
        os.symlink("x", nameless / "y")
    assert await stage.exec("echo one\necho two") == Ran(0, b"one\ntwo\n", "command", ended=False, said="")
    await stage.daemon.line.wait_idle()
    assert set(os.listdir("/dev/shm")) <= before


async def test_a_request_file_of_another_user_is_ignored(nameless: Path, bash: Stage) -> None:
    forged = Path("/dev/shm/.waypoint-req")
    await bash.open()
    forged.write_text("stat 0 0\n")
    try:
        os.chown(forged, 65534, 65534)
        assert not await _answers(bash)
        os.chown(forged, 0, 0)
        assert await _answers(bash)  # shows that the hooks would have found the request
    finally:
        forged.unlink()


async def _answers(stage: Stage) -> bool:
    """Return whether the hooks find a request when their key is pressed."""
    before = stage.daemon.terminal.ring.end
    await stage.type(KEY)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await stage.wait_printed(b"\x1b]7717;T;0;0;", before)
            return True
    return False


@pytest.mark.parametrize("script", ["first.sh", "init.sh", "wrapper.sh", "run.sh", "child.sh"])
def test_an_exit_status_is_written_on_a_full_disk(full: Path, script: str) -> None:
    first = [str(full / "exit")] if script in ("run.sh", "child.sh") else []
    done = subprocess.run(
        ["sh", f"{HOOKS}/{script}", *first, "sh", "-c", "exit 7"],
        env={"PATH": os.environ["PATH"], "WAYPOINT_RUN": str(full)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, b"")
    folder = os.open(full, os.O_PATH)
    assert read_status(folder, "exit") == 7
    os.close(folder)


def test_an_exit_status_is_kept_without_a_free_inode(nameless: Path) -> None:
    with contextlib.suppress(OSError):
        for number in range(10):
            (nameless / f"fill{number}").touch()
    aside = Path("/dev/shm/.waypoint-run.0123")
    try:
        done = subprocess.run(
            ["sh", f"{HOOKS}/child.sh", str(nameless / "run.0123"), "sh", "-c", "exit 7"],
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stderr, aside.read_text()) == (7, b"", "7\n")
        folder = os.open(nameless, os.O_PATH)
        place = StatusPlace(
            folder, str(nameless), lambda: True, Spare("/dev/shm", lambda: os.open("/dev/shm", os.O_PATH))
        )
        assert place.take("run.0123") == 7
        assert not aside.exists()
        os.close(folder)
    finally:
        aside.unlink(missing_ok=True)


async def test_a_command_that_ends_the_shell_does_not_end_the_session(full: Path, bash: Stage) -> None:
    bash.spare = Spare("/dev/shm", lambda: os.open("/dev/shm", os.O_RDONLY))
    before = set(os.listdir("/dev/shm"))
    (full / "fill").unlink()
    bash.run = full
    await bash.open("trap 'echo bye' EXIT")
    await bash.exec("mine=1; f() { echo f; }; cd /usr")
    (full / "fill").touch()
    with contextlib.suppress(OSError), (full / "fill").open("wb", buffering=0) as fill:
        while fill.write(bytes(512)):
            pass
    await bash.exec("true")
    ran = await bash.exec("cd /nowhere || exit 3")
    assert (ran.exit, ran.ended, bash.new_shell, bash.state_lost) == (3, False, True, False)
    assert b"bye" not in ran.output
    ran = await bash.exec('echo "$mine $PWD $(jobs -p | wc -l)"; f')
    assert ran.output == b"1 /usr 0\nf\n"
    await bash.daemon.line.wait_idle()
    assert set(os.listdir("/dev/shm")) <= before
