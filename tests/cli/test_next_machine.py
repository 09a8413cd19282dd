"""What is advised about the machine (disks, mounts, CRIU, another version of Waypoint) is done as it is printed: it
helps, and nothing is worse afterwards.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos import victims
from tests.cli.test_next_steps import check_shells, follow, is_of, next_of, state
from tests.cli.test_next_steps import stocked as stocked
from tests.corner import corner as corner
from tests.homes import Completed, Home, open_home
from tests.places import ROOT
from tests.session.full_disks import small_disk as small_disk
from tests.waiting import wait_until
from waypoint.store.format import FORMAT

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

EXT4_IOC_SHUTDOWN = 0x8004587D  # linux/ext4.h
LOG_FLUSHED = (1).to_bytes(4, "little")
CHOOSE = "set WAYPOINT_CRIU to a CRIU that works here, or unset it; then `waypoint daemon stop`"
OWN = "set WAYPOINT_CRIU to a CRIU of at least version 4.2 that you have installed"


@contextlib.contextmanager
def nothing_lost(home: Home) -> Iterator[None]:
    """Captures, names and the shells of `main` and `other` are what they were when the `with` began."""
    before = state(home)
    yield
    after = state(home)
    assert before["captures"] <= after["captures"]
    assert before["names"] <= after["names"]
    assert before["sessions"].items() <= after["sessions"].items()
    check_shells(home)


def advised(done: Completed, code: int, advice: str) -> str:
    """The next step that the command has printed."""
    assert done.code == code, done.stderr
    printed = next_of(done.stderr)
    assert is_of(printed, advice), printed
    return printed


# --- CRIU


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """The environment in which CRIU is this script."""

    def make(text: str) -> dict[str, str]:
        path = tmp_path / "criu"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return {"WAYPOINT_CRIU": str(path)}

    return make


def test_a_setup_that_was_killed_is_run_again(stocked: Home, script: Callable[[str], dict[str, str]]) -> None:
    with nothing_lost(stocked):
        done = stocked.cli("setup", env=script("kill -9 $PPID"))
        advised(done, 125, "run it again; if it ends so again, please report its messages above")
        assert "was killed by signal 9" in done.stderr
        stocked.must("setup")


def test_doctor_tells_what_to_do_about_a_criu_that_does_not_work(
    stocked: Home, script: Callable[[str], dict[str, str]]
) -> None:
    broken = script("exit 1")
    with nothing_lost(stocked):
        stocked.must("daemon", "stop")
        done = stocked.cli("checkpoint", "with-processes", "--tier", "live", env=broken)
        advised(done, 5, "see 'waypoint doctor'")
        found = follow(stocked, "waypoint doctor")
        assert found.code == 3
        assert CHOOSE in found.stdout.replace("\r\n", "\n")
        advised(stocked.cli("setup", env=broken), 3, CHOOSE)
        assert follow(stocked, "unset WAYPOINT_CRIU; waypoint daemon stop").code == 0
        assert "live" in stocked.must("checkpoint", "with-processes", "--tier", "live").stdout


def test_a_criu_that_is_there_again_is_used_at_once(stocked: Home, tmp_path: Path) -> None:
    link = tmp_path / "criu"
    link.symlink_to(os.environ["WAYPOINT_CRIU"])
    with nothing_lost(stocked):
        stocked.must("daemon", "stop")
        stocked.must("checkpoint", "first", "--tier", "live", env={"WAYPOINT_CRIU": str(link)})
        link.unlink()
        advised(stocked.cli("checkpoint", "second", "--tier", "live"), 5, "see 'waypoint doctor'")
        link.symlink_to(os.environ["WAYPOINT_CRIU"])
        stocked.must("checkpoint", "second", "--tier", "live")
        stocked.must("daemon", "stop")


def where(home: Home, hidden: tuple[str, ...], *words: str) -> Completed:
    """A command on a machine that has no WAYPOINT_CRIU and none of the programs `hidden`."""
    paths = [path for name in hidden if (path := shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin"))]
    hide = "".join(f"mount --bind /dev/null {path}; " for path in paths)
    env = {name: value for name, value in home.env.items() if name != "WAYPOINT_CRIU"}
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{hide}exec "$@"', "sh", *home.argv(*words)],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return Completed(done.stdout, done.stderr, done.returncode)


def test_without_apt_one_sets_the_criu_that_one_has(stocked: Home) -> None:
    with nothing_lost(stocked):
        printed = advised(where(stocked, ("criu", "apt-get"), "setup"), 3, OWN)
        assert printed == OWN
        stocked.must("setup", env={"WAYPOINT_CRIU": os.environ["WAYPOINT_CRIU"]})


@pytest.mark.requires("network")
def test_setup_installs_a_criu_where_there_is_none(stocked: Home) -> None:
    with nothing_lost(stocked):
        advised(where(stocked, ("criu",), "setup", "--check"), 3, "run `waypoint setup`, which installs a private one")
        done = where(stocked, ("criu",), "setup")
        assert done.code == 0, done.stderr
        assert where(stocked, ("criu",), "setup", "--check").code == 0
        assert (stocked.path / "criu/bin/criu").exists()


# --- the disk, and what lies on it


def test_where_overlayfs_cannot_keep_its_marks_the_home_goes_elsewhere(stocked: Home, corner: Path) -> None:
    subprocess.run(["mount", "-t", "ramfs", "ramfs", str(corner)], check=True)
    home = Home(corner / "h")
    try:
        done = home.cli("setup")
        advised(done, 3, "put the home on ext4, XFS or btrfs")
        assert "the file system refuses what overlayfs needs" in done.stderr
    finally:
        home.cli("setup", "--remove", "--yes")
    with nothing_lost(stocked), open_home("elsewhere") as elsewhere:
        elsewhere.must("shell", "main", "-d")


def test_a_home_that_may_not_be_removed_is_removed_when_it_may(tmp_path: Path) -> None:
    with open_home("held") as home:
        home.must("shell", "main", "-d")
        reserve = home.path / "reserve"
        subprocess.run(["chattr", "+i", str(reserve)], check=True)
        try:
            done = home.cli("setup", "--remove", "--yes")
        finally:
            subprocess.run(["chattr", "-i", str(reserve)], check=True)
        advised(done, 125, "mend that, and run it again")
        assert re.search(rf"cannot remove {re.escape(str(reserve))}/\d: Operation not permitted", done.stderr)
        home.must("setup", "--remove", "--yes")
        assert not home.path.exists()


def test_what_is_in_the_way_of_names_db_is_seen_with_ls(stocked: Home) -> None:
    log = stocked.path / "names.db-wal"
    with nothing_lost(stocked):
        stocked.must("daemon", "stop")
        wait_until(lambda: not victims.pids(stocked, "supervisor"), "the supervisor has ended")
        kept = log.rename(stocked.path.parent / "wal") if log.exists() else None
        log.mkdir()
        printed = advised(stocked.cli("ps"), 125, "see the kernel's log (dmesg) and 'ls -la {}'")
        seen = follow(stocked, printed.split("'")[-2])
        assert seen.code == 0
        assert any(line.startswith("d") and line.rstrip().endswith("names.db-wal") for line in seen.stdout.splitlines())
        log.rmdir()
        if kept:
            kept.rename(log)
        wait_until(lambda: stocked.cli("ps").code == 0, "the home is served")


def abort(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,abort", str(folder.parents[1])], check=True)


def fail(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, LOG_FLUSHED)
    os.close(fd)


def plug_in_again(home: Home) -> None:
    """As after a reboot: nothing runs, and the file system is mounted afresh."""
    with subprocess.Popen(["true"]) as nothing:
        victims.reboot(home, nothing)
    folder = str(home.path.parents[1])
    source = subprocess.run(["findmnt", "-no", "SOURCE", folder], capture_output=True, text=True, check=True).stdout
    image = subprocess.run(
        ["losetup", "-nO", "BACK-FILE", source.strip()], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(["umount", folder], check=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)


READ_ONLY = "see the kernel's log (dmesg): the file system is read-only; make it writable"
FAILED = "see the kernel's log (dmesg): the disk has failed; copy the home to another disk before anything else"


@pytest.mark.parametrize(("break_", "advice"), [(abort, READ_ONLY), (fail, FAILED)], ids=["read-only", "failed"])
def test_after_a_disk_has_failed_what_was_kept_is_kept(
    small_disk: Home, tmp_path: Path, break_: Callable[[Path], None], advice: str
) -> None:
    small_disk.must("shell", "main", "-d")
    small_disk.must("exec", "--", "here=1; echo precious > /srv/file")
    small_disk.must("checkpoint", "noted")
    os.sync()
    break_(small_disk.path)
    done = small_disk.cli("checkpoint", "lost")
    plug_in_again(small_disk)
    advised(done, 125, advice)
    home = small_disk
    if break_ is fail:
        home = Home(tmp_path / "copied")
        subprocess.run(["cp", "-a", "--sparse=always", str(small_disk.path), str(home.path)], check=True)
        home.must("setup")
    home.must("restore", "noted")
    assert home.must("exec", "--", "echo $here; cat /srv/file").stdout == "1\nprecious\n"
    if home is not small_disk:
        home.must("setup", "--remove", "--yes")


@pytest.mark.requires("btrfs")
def test_a_mount_in_a_tree_is_undone_and_the_tree_is_removed(corner: Path) -> None:
    image, disk = corner / "disk.img", corner / "disk"
    disk.mkdir()
    image.touch()
    os.truncate(image, 2 << 30)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=True)
    subprocess.run(["mount", "--make-shared", str(disk)], check=True)  # so that the daemon sees what is mounted later
    with open_home("mounted", within=disk) as home:
        home.must("shell", "main", "-d")
        home.must("exec", "--", "here=1; mkdir /srv/held")
        home.must("checkpoint", "noted")
        home.must("checkpoint", "removed", "--tier", "files")
        tree = home.must("show", "removed", "--json").json()["capture"]
        home.must("checkpoint", "later")
        home.must("rm", "removed")
        held = home.path / "pool" / tree / "m0/upper/srv/held"
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(held)], check=True)
        done = home.cli("gc", "--keep-operations", "0s")
        assert done.code == 1
        assert done.stdout.startswith("removed 0 captures;")
        printed = done.stderr.rpartition("; next: ")[2].strip()
        assert printed == f"umount {held}, and start the gc again"
        assert follow(home, printed.partition(",")[0]).code == 0
        home.must("gc", "--keep-operations", "0s")
        assert not held.exists()
        home.must("restore", "noted")
        assert home.must("exec", "--", "echo $here").stdout == "1\n"


@contextlib.contextmanager
def mounted_later(place: Path) -> Iterator[None]:
    """A file system that sessions which run already do not have."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_where_the_mounts_are_others_all_is_restored(stocked: Home, tmp_path: Path) -> None:
    with nothing_lost(stocked):
        stocked.must("shell", "former", "-d", "--user", "root")
        stocked.must("daemon", "stop")
        with mounted_later(tmp_path):
            stocked.must("shell", "later", "-d", "--user", "root")
            stocked.must("exec", "-b", "later", "--", f"echo kept > {tmp_path}/file")
            stocked.must("checkpoint", "with-mount", "-b", "later")
            done = stocked.cli("restore", "with-mount", "-b", "former", "--only", "files")
            advised(done, 5, "restore all of it")
            assert follow(stocked, "waypoint restore with-mount -b former").code == 0
            assert stocked.must("exec", "-b", "former", "--", f"cat {tmp_path}/file").stdout == "kept\n"
            stocked.must("stop", "former", "later", "--discard")


@pytest.mark.requires("btrfs")
def test_where_the_state_of_the_shell_is_damaged_all_is_restored(stocked: Home) -> None:
    with nothing_lost(stocked):
        stocked.must("shell", "damaged", "-d")
        stocked.must("exec", "-b", "damaged", "--", "kept=yes")
        stocked.must("checkpoint", "of-damaged", "-b", "damaged")
        stocked.must("exec", "-b", "damaged", "--", "unset kept")
        tree = stocked.path / "pool" / stocked.must("show", "of-damaged", "--json").json()["capture"]
        daemon = victims.only_pid(stocked, "daemon")
        writable, state_file = f"btrfs property set -f {tree} ro", f"{tree}/m0/upper/run/waypoint/state"
        script = f"{writable} false; truncate -s 100 {state_file}; {writable} true"
        subprocess.run(["nsenter", "-t", str(daemon), "-m", "sh", "-ec", script], check=True)
        advised(stocked.cli("restore", "of-damaged", "-b", "damaged", "--only", "shell"), 10, "restore all of it")
        assert follow(stocked, "waypoint restore of-damaged -b damaged").code == 0
        assert stocked.must("exec", "-b", "damaged", "--", "echo $kept").stdout == "yes\n"
        stocked.must("stop", "damaged", "--discard")


def test_a_session_whose_shell_lost_its_hooks_comes_back_with_its_programs(stocked: Home) -> None:
    with nothing_lost(stocked):
        stocked.must("shell", "unhooked", "-d", "--shell", "bash")
        stocked.must(
            "exec",
            "-b",
            "unhooked",
            "--",
            "sleep 1006 & for map in emacs vi-insert; do bind -m $map -r '\\e[7717~'; done",
        )
        stocked.must("checkpoint", "of-unhooked", "-b", "unhooked", "--tier", "live")
        stocked.must("run", "-b", "unhooked", "--", "pkill", "-f", "sleep 1006")
        stocked.must("restore", "of-unhooked", "-b", "unhooked")
        assert stocked.must("run", "-b", "unhooked", "--", "pgrep", "-f", "sleep 1006").stdout
        stocked.must("stop", "unhooked", "--discard")


# --- versions


Changes = dict[str, dict[str, str]]
Version = Callable[..., Completed]


@pytest.fixture
def other_version(tmp_path: Path) -> Callable[[Changes], Version]:
    """`other_version({file: {words: other words}})`: the command of a Waypoint in which these words are other ones."""

    def make(changes: Changes) -> Version:
        for name in ("waypoint", "shellwrap", "criu_profiles"):
            shutil.copytree(ROOT / name, tmp_path / name)  # compiled as it is: times and sizes are kept
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


_LAST = f"{FORMAT - 1}: _to_{FORMAT}}}"
NEWER = {
    "names.db": {"waypoint/store/format.py": {_LAST: f"{_LAST[:-1]}, {FORMAT}: lambda db: None}}"}},
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
            advised(home.cli(verb), code, "use the version of Waypoint that made it")
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
        printed = advised(done, 125, "if it is of another version: waypoint daemon stop, and try again")
        assert "it sent an answer without its session" in done.stderr
        assert follow(stocked, printed.partition(": ")[2].partition(",")[0]).code == 0
        stocked.must("shell", "main", "-d")
