"""The check that tests leave nothing behind sees what a test can leave behind, and only that."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import leaks
from tests.homes import RUN_VARIABLE
from tests.places import RUNTIME, iter_homes
from tests.processes_now import processes
from tests.waiting import wait_until

pytestmark = pytest.mark.alone("looks once, where the usual check waits until what others make is named as theirs")


@pytest.fixture(autouse=True)
def _do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "SETTLE_S", 0.0)


@pytest.fixture
def before() -> leaks.Stock:
    return leaks.take_stock()


@pytest.fixture
def basetemp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp()


def kinds(before: leaks.Stock, basetemp: Path) -> set[str]:
    return {thing.kind for thing in leaks.wait_new(before, basetemp)}


def test_nothing_new_is_nothing(before: leaks.Stock, basetemp: Path) -> None:
    assert leaks.wait_new(before, basetemp) == []


def test_a_process_that_goes_on_is_seen(before: leaks.Stock, basetemp: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert "process" in kinds(before, basetemp)
        process.kill()


def test_a_process_that_nobody_waited_for_is_seen(before: leaks.Stock, basetemp: Path) -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert "process" in kinds(before, basetemp)
    os.waitpid(pid, 0)


def test_an_orphan_in_a_session_of_its_own_is_seen(before: leaks.Stock, basetemp: Path) -> None:
    shell = subprocess.run(
        ["setsid", "--fork", "sh", "-c", "echo $$; exec sleep 60 >&- 2>&-"], capture_output=True, text=True, check=True
    )
    pid = int(shell.stdout)
    try:
        assert "process" in kinds(before, basetemp)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_process_of_someone_else_is_not_ours(before: leaks.Stock, basetemp: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
    shell = subprocess.run(
        ["setsid", "--fork", "sh", "-c", "echo $$; exec sleep 60 >&- 2>&-"],
        env=clean,
        capture_output=True,
        text=True,
        check=True,
    )
    try:
        assert leaks.wait_new(before, basetemp) == []
    finally:
        os.kill(int(shell.stdout), signal.SIGKILL)


def test_a_name_that_begins_another_is_not_that_one() -> None:
    assert leaks._names("loop1 on /var/tmp/ab/image; /var/tmp/a/h", "/var/tmp/a")
    assert not leaks._names("loop1 on /var/tmp/ab/image", "/var/tmp/a")
    assert leaks._names("folder: /var/tmp/a", "/var/tmp/a")
    assert leaks._names("a-77-b", "-77-")


def test_a_process_that_becomes_another_program_is_looked_at_anew() -> None:
    """Of the same name, too: the supervisor of a home begins as a fork of the command that starts it."""
    with subprocess.Popen(["sh", "-c", "read line; exec sh -c 'read line'"], stdin=subprocess.PIPE) as shell:
        assert shell.stdin is not None
        wait_until(lambda: program_of(shell.pid).startswith(f"{shell.pid} (sh "), "it is a shell")
        first = program_of(shell.pid)
        assert program_of(shell.pid) == first
        shell.stdin.write(b"\n")
        shell.stdin.flush()
        wait_until(lambda: program_of(shell.pid) != first, "it is another one")
        assert program_of(shell.pid).startswith(f"{shell.pid} (sh ")


def program_of(pid: int) -> str:
    return next(one.program for one in processes() if one.pid == pid)


@pytest.mark.privileged
def test_a_mount_is_seen_and_taken_away(before: leaks.Stock, basetemp: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", str(tmp_path)], check=True)
    new = leaks.wait_new(before, basetemp)
    leaks.umount(new)
    assert [thing.kind for thing in new] == ["mount of self"]
    assert leaks.wait_new(before, basetemp) == []


@pytest.mark.privileged
def test_a_loop_device_is_seen(before: leaks.Stock, basetemp: Path, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(1 << 20))
    device = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True, check=True).stdout
    try:
        assert kinds(before, basetemp) == {"loop device"}
    finally:
        subprocess.run(["losetup", "--detach", device.strip()], check=True)


@pytest.mark.privileged
@pytest.mark.requires("cgroup2")
def test_a_group_is_seen(before: leaks.Stock, basetemp: Path) -> None:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    root = next(line.split()[4] for line in lines if " - cgroup2 " in line)
    group = Path(root) / f"waypoint-left-{os.getpid()}"
    group.mkdir()
    try:
        assert kinds(before, basetemp) == {"cgroup"}
    finally:
        group.rmdir()


@pytest.mark.privileged
def test_a_network_namespace_with_a_name_is_seen(before: leaks.Stock, basetemp: Path) -> None:
    # Not by `ip netns add`, which mounts the folder itself the first time and leaves that.
    name = Path("/run/netns") / f"left-{os.getpid()}"
    name.parent.mkdir(exist_ok=True)
    name.touch()
    subprocess.run(["unshare", f"--net={name}", "true"], check=True)
    try:
        assert kinds(before, basetemp) == {"named network namespace", "mount of self"}
    finally:
        subprocess.run(["umount", name], check=True)
        name.unlink()


@pytest.mark.privileged
def test_a_runtime_folder_is_seen(before: leaks.Stock, basetemp: Path) -> None:
    folder = RUNTIME / f"left-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        assert kinds(before, basetemp) == {"runtime folder"}
    finally:
        folder.rmdir()


def test_a_namespace_that_we_hold_open_is_seen(before: leaks.Stock, basetemp: Path) -> None:
    with subprocess.Popen(["unshare", "--user", "sleep", "60"]) as process:
        path = Path(f"/proc/{process.pid}/ns/user")
        ours = Path("/proc/self/ns/user").readlink()
        wait_until(lambda: path.readlink() != ours, "it has its own namespace", brief=True)
        held = os.open(path, os.O_RDONLY)
        process.kill()
    try:
        assert kinds(before, basetemp) == {"open namespace"}
    finally:
        os.close(held)


def test_homes_are_not_looked_for_behind_links(tmp_path: Path) -> None:
    home = tmp_path / "kept" / "h"
    home.mkdir(parents=True)
    (home / "config.json").touch()
    (home / "names.db").touch()
    looked_in = tmp_path / "looked in"
    looked_in.mkdir()
    (looked_in / "magic").symlink_to(home)
    (looked_in / "nowhere").symlink_to("/proc/self/fd/none/of/that")
    assert list(iter_homes(looked_in)) == []
    assert list(iter_homes(tmp_path)) == [home]
    (home / "names.db").unlink()  # it is none: `dev clean` would end it as one
