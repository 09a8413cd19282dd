"""Errors about the machine: a missing program, a full or failed disk, another version. Each test really breaks the
machine, repairs it as the message advises, and checks that nothing is lost.
"""

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.advice import follow, next_of
from tests.chaos import victims
from tests.cli.test_next_steps import nothing_lost
from tests.cli.test_next_steps import stocked as stocked
from tests.corner import corner as corner
from tests.homes import MIB, SMALL_POOL, Completed, Home, open_home
from tests.places import ROOT
from tests.session.full_disks import small_disk as small_disk
from tests.waiting import wait_until
from waypoint.linux.storage import mounts

pytestmark = [
    pytest.mark.soak(part="advice"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs"),
]

EXT4_IOC_SHUTDOWN = 0x8004587D  # linux/ext4.h
LOG_FLUSHED = (1).to_bytes(4, "little")
NODES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")


# --- programs and devices


@pytest.fixture
def unmade(corner: Path) -> Iterator[Home]:
    """A home that has not been set up, in its own mount namespace."""
    (corner / "h").mkdir(mode=0o700)
    (corner / "h/config.json").write_text(json.dumps({"pool": SMALL_POOL}))
    home = Home(corner / "h")
    try:
        yield home
    finally:
        home.must("setup", "--remove", "--yes")


def hide(path: str) -> None:
    """Hide the program at `path`."""
    subprocess.run(["mount", "--bind", "/dev/null", path], check=True)


def hide_loop_devices(corner: Path) -> None:
    """Replace /dev with one that has no loop devices."""
    made = corner / "dev"
    made.mkdir()
    mounts.mount("tmpfs", made, "tmpfs", 0, "mode=755")
    for name in NODES:
        if os.path.isdir(f"/dev/{name}"):
            (made / name).mkdir()
            subprocess.run(["mount", "--rbind", f"/dev/{name}", made / name], check=True)
        else:
            subprocess.run(["cp", "-a", f"/dev/{name}", made / name], check=True)
    subprocess.run(["mount", "--move", made, "/dev"], check=True)


def show(path: str) -> None:
    subprocess.run(["umount", "-R", "-l", path], check=True)


def test_setup_warns_about_a_home_without_btrfs_until_btrfs_progs_is_installed(
    unmade: Home,
) -> None:
    mkfs, remedy = shutil.which("mkfs.btrfs"), "install the package btrfs-progs"
    assert mkfs
    hide(mkfs)
    said = unmade.must("setup").stderr
    assert "every checkpoint copies the changed files" in said
    assert remedy in remedies(unmade)
    unmade.must("daemon", "stop")  # the program is still hidden in the daemon's copy of the mounts
    show(mkfs)
    assert remedy not in remedies(unmade)
    assert unmade.must("daemon", "status", "--json").json()["pool"] == "copy"
    seen, _, anew = next_of(said).partition("; then start again: ")
    assert seen.startswith("see the row 'btrfs pool' of 'waypoint ")
    _, *words = shlex.split(anew)
    assert words == ["--home", str(unmade.path), "setup", "--remove"]
    unmade.must(*words, "--yes")
    assert "every checkpoint copies" not in unmade.must("setup").stderr
    assert unmade.must("daemon", "status", "--json").json()["pool"] == "btrfs"


def remedies(home: Home) -> list[str]:
    return [row["remedy"] for row in home.cli("doctor", "--json").json()]


def test_a_home_needs_loop_devices_and_works_again_with_them(unmade: Home) -> None:
    unmade.must("setup")
    unmade.must("shell", "main", "-d")
    unmade.must("exec", "--", "echo kept >/srv/kept")
    unmade.must("stop", "--files", "main")
    unmade.must("daemon", "stop")
    hide_loop_devices(unmade.path.parent)
    refused = unmade.cli("ps")
    assert (refused.code, next_of(refused.stderr)) == (3, "load the kernel module loop, or use a home on btrfs")
    show("/dev")
    unmade.must("shell", "main", "-d")
    assert unmade.must("exec", "--", "cat /srv/kept").stdout == "kept\n"


def test_doctor_reports_a_criu_that_does_not_work(stocked: Home, tmp_path: Path) -> None:
    broken = tmp_path / "criu"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    env = {"WAYPOINT_CRIU": str(broken)}
    with nothing_lost(stocked):
        stocked.must("daemon", "stop")
        done = stocked.cli("checkpoint", "with-processes", "--tier", "live", env=env)
        assert (done.code, next_of(done.stderr)) == (5, "see 'waypoint doctor'")
        found = follow(stocked, "waypoint doctor")
        assert found.code == 3
        assert "WAYPOINT_CRIU" in found.stdout
        assert stocked.cli("setup", env=env).code == 3
        assert follow(stocked, "unset WAYPOINT_CRIU; waypoint daemon stop").code == 0
        assert "live" in stocked.must("checkpoint", "with-processes", "--tier", "live").stdout


# --- disks


def test_a_home_on_a_disk_without_room_is_set_up_when_there_is_room(corner: Path) -> None:
    image, folder = corner / "disk.img", corner / "disk"
    folder.mkdir()
    image.touch()
    os.truncate(image, 1200 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    home, fill = Home(folder / "h"), folder / "fill"
    home.path.mkdir(mode=0o700)
    (home.path / "config.json").write_text(json.dumps({"pool": SMALL_POOL}))
    with fill.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 600 * MIB)
    refused = home.cli("setup")
    assert (refused.code, next_of(refused.stderr)) == (125, "free some space on that file system")
    fill.unlink()
    mine = home.path / "pool/mine"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("precious")
    refused = home.cli("setup")
    assert (refused.code, next_of(refused.stderr)) == (4, "move the folder's content away")
    mine.rename(folder / "mine")
    home.must("setup")
    home.must("shell", "main", "-d")
    assert (folder / "mine").read_text() == "precious"
    home.must("setup", "--remove", "--yes")
    subprocess.run(["umount", str(folder)], check=True)


def abort(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,abort", str(folder.parents[1])], check=True)


def fail(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, LOG_FLUSHED)
    os.close(fd)


def plug_in_again(home: Home) -> None:
    """Simulate a reboot: kill everything, and mount the file system again."""
    with subprocess.Popen(["true"]) as nothing:
        victims.reboot(home, nothing)
    folder = str(home.path.parents[1])
    source = subprocess.run(["findmnt", "-no", "SOURCE", folder], capture_output=True, text=True, check=True).stdout
    image = subprocess.run(
        ["losetup", "-nO", "BACK-FILE", source.strip()], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(["umount", folder], check=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)


@pytest.mark.parametrize(
    ("break_", "said"),
    [(abort, "the file system is read-only"), (fail, "the disk has failed")],
    ids=["read-only", "failed"],
)
def test_captures_survive_a_failed_disk(
    small_disk: Home, tmp_path: Path, break_: Callable[[Path], None], said: str
) -> None:
    small_disk.must("shell", "main", "-d")
    small_disk.must("exec", "--", "here=1; echo precious > /srv/file")
    small_disk.must("checkpoint", "noted")
    wait_until(lambda: not os.listdir(small_disk.path / "hot/.memory"), "the capture is on the disk")
    os.sync()
    break_(small_disk.path)
    done = small_disk.cli("checkpoint", "lost")
    plug_in_again(small_disk)
    assert done.code == 125
    assert said in next_of(done.stderr)
    home = small_disk
    if break_ is fail:
        home = Home(tmp_path / "copied")
        subprocess.run(["cp", "-a", "--sparse=always", str(small_disk.path), str(home.path)], check=True)
        home.must("setup")
    home.must("restore", "noted")
    assert home.must("exec", "--", "echo $here; cat /srv/file").stdout == "1\nprecious\n"
    if home is not small_disk:
        home.must("setup", "--remove", "--yes")


# --- versions, and a damaged installation


Changes = dict[str, dict[str, str]]
Version = Callable[..., Completed]


@pytest.fixture
def other_version(tmp_path: Path) -> Callable[[Changes], Version]:
    """Return a function that copies Waypoint, replaces the given words in its files, and returns the copy's command."""

    def make(changes: Changes) -> Version:
        for name in ("waypoint", "shellwrap", "criu_profiles"):
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name, pairs in changes.items():
            for words, others in pairs.items():
                text = (tmp_path / name).read_text()
                assert words in text
                (tmp_path / name).write_text(text.replace(words, others))

        def run(home: Home, *words: str) -> Completed:
            argv = [word.replace(str(ROOT / "waypoint"), str(tmp_path / "waypoint")) for word in home.argv(*words)]
            done = subprocess.run(argv, env=home.env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return Completed(done.stdout, done.stderr, done.returncode)

        return run

    return make


NEWER = {
    "names.db": {
        "waypoint/records/format.py": {"\nFORMAT =": "\nMIGRATIONS[max(MIGRATIONS) + 1] = lambda db: None\nFORMAT ="}
    },
    "config.json": {
        "waypoint/setup/config.py": {"\nFORMAT = 1\n": "\nFORMAT = 2\n", "FORMAT) != FORMAT": "FORMAT) > FORMAT"}
    },
}
REFUSED = {"names.db": {"ps": 10}, "config.json": {"ps": 125, "setup": 125}}


@pytest.mark.parametrize("file", NEWER)
def test_a_home_of_a_newer_version_is_used_with_that_version(
    other_version: Callable[[Changes], Version], file: str
) -> None:
    newer = other_version(NEWER[file])
    with open_home("newer") as home:
        home.must("shell", "main", "-d")
        home.must("exec", "--", "here=1")
        home.must("daemon", "stop")
        newer(home, "setup")
        newer(home, "checkpoint", "by-newer")
        newer(home, "daemon", "stop")
        for verb, code in REFUSED[file].items():
            done = home.cli(verb)
            assert (done.code, "version of Waypoint" in next_of(done.stderr)) == (code, True), done
        home.cli("daemon", "stop")
        assert newer(home, "exec", "--", "echo $here").stdout == "1\n"
        assert "by-newer" in newer(home, "log", "--all").stdout
        newer(home, "setup", "--remove", "--yes")


def test_a_daemon_of_another_version_is_stopped(stocked: Home, other_version: Callable[[Changes], Version]) -> None:
    other = other_version({"waypoint/daemon/http/routes.py": {'wrap="session"': 'wrap="sitting"'}})
    with nothing_lost(stocked):
        stocked.must("daemon", "stop")
        other(stocked, "ps")
        done = stocked.cli("shell", "main", "-d")
        assert done.code == 125
        assert "it sent an answer without its session" in done.stderr
        assert follow(stocked, next_of(done.stderr).partition(": ")[2].partition(",")[0]).code == 0
        stocked.must("shell", "main", "-d")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A second installation of Waypoint."""
    for name in ("waypoint", "shellwrap", "criu_profiles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def from_copy(copied: Path, home: Home, *words: str) -> Completed:
    command = [sys.executable, str(copied / "waypoint/cli/main.py"), *words]
    done = subprocess.run(
        command, env={**home.env, "PYTHONPATH": str(copied)}, capture_output=True, text=True, check=False
    )
    return Completed(done.stdout, done.stderr, done.returncode)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("raise ValueError('broken')", "ended with status 1"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", "was killed by signal 9"),
    ],
)
def test_a_failed_setup_can_be_run_again(copied: Path, home: Home, broken: str, said: str) -> None:
    program = copied / "waypoint/setup/work.py"
    whole = program.read_text()
    program.write_text(f"{broken}\n{whole}")
    refused = from_copy(copied, home, "setup", "--check")
    assert (refused.code, said in refused.stderr) == (125, True)
    assert ("ValueError: broken" in refused.stderr) == ("ValueError" in broken)
    program.write_text(whole)
    assert from_copy(copied, home, "setup", "--check").code == 0


def test_a_bug_is_reported_with_a_reference_to_its_traceback(copied: Path, home: Home) -> None:
    home.must("shell", "main", "-d")
    home.must("exec", "--", "kept=yes")
    home.must("daemon", "stop")
    program = copied / "waypoint/service/usage.py"
    whole = program.read_text()
    program.write_text(
        whole.replace("    wanted = None if query", "    assert not query, 'broken'\n    wanted = None if query")
    )
    refused = from_copy(copied, home, "du")
    assert refused.code == 125
    step = next_of(refused.stderr)
    assert step == "this is a bug of Waypoint; please report it with its traceback: waypoint daemon logs"
    told = home.must("daemon", "logs").stdout
    assert "bug while serving GET /v1/usage" in told
    assert "AssertionError: broken" in told
    home.must("daemon", "stop")
    program.write_text(whole)
    assert from_copy(copied, home, "du").code == 0
    assert from_copy(copied, home, "exec", "--", "echo $kept").stdout == "yes\n"
    home.must("daemon", "stop")
