"""A pool whose file system has become read-only can be read. Writes are refused with advice that works."""

import contextlib
import fcntl
import json
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.advice import next_of
from tests.chaos import victims
from tests.homes import MIB, Completed, Home, open_home
from tests.session import ledger
from tests.upper.pool_homes import loops_of, wait_for_no_loop

pytestmark = [
    pytest.mark.soak(part="disks"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs"),
]

ADVICE = re.compile(
    r"copy the files that you need: those of a live session from /proc/PID/root \('waypoint ps' shows the PID\), "
    r"those of a capture from (/proc/\d+/root/\S+)/TREE \('waypoint show NAME' shows the tree\); "
    r"then open the pool again: '(waypoint stop --all)', '(waypoint daemon stop)'; "
    r"if it is still read-only: '(waypoint setup --remove)'"
)
SAID = "its file system has become read-only"
REFUSED = (
    ("checkpoint", "another"),
    ("stop", "main", "--checkpoint", "another"),
    ("restore", "noted"),
    ("restore", "noted", "--only", "files"),
    ("restore", "noted", "--only", "shell"),
    ("fork", "noted", "copy"),
    ("fork", "main", "copy"),
    ("shell", "new", "-d"),
    ("gc", "--keep-operations", "0s"),
    ("setup", "--check"),
    ("exec", "--", "true"),
    ("run", "-b", "main", "--", "true"),
)
LOOP_SET_STATUS64, LOOP_GET_STATUS64 = 0x4C04, 0x4C05
SIZE_LIMIT_AT = 32  # the offset of lo_sizelimit in struct loop_info64
SUPERBLOCK_AT = (64 << 10, 64 << 20)
SUPERBLOCK_BYTES, SUM_BYTES = 4096, 32
READ_ONLY_FEATURES_AT = 0xB4  # compat_ro_flags: a kernel that lacks one of these features must not write
UNKNOWN = 1 << 60


@pytest.fixture
def own() -> Iterator[Home]:
    with open_home("readonly") as home:
        home.must("shell", "main", "-d")
        home.must("exec", "--", "here=1; echo precious > /srv/file")
        home.must("checkpoint", "noted")
        home.must("exec", "--", "echo later > /srv/file")
        yield home


def remount(home: Home, how: str) -> None:
    (daemon,) = victims.pids(home, "daemon")
    enter = ["nsenter", "-t", str(daemon), "-m", "mount", "-o", f"remount,{how}", f"{home.path}/pool"]
    subprocess.run(enter, check=True)


def pool_of(home: Home) -> Path:
    """Return the path of the pool in the daemon's mount namespace."""
    (daemon,) = victims.pids(home, "daemon")
    return Path(f"/proc/{daemon}/root{home.path}/pool")


def limit_device(path: str, size: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    status = bytearray(232)
    fcntl.ioctl(fd, LOOP_GET_STATUS64, status)
    struct.pack_into("=Q", status, SIZE_LIMIT_AT, size)
    fcntl.ioctl(fd, LOOP_SET_STATUS64, status)
    os.close(fd)


def abort(home: Home) -> None:
    """Make a transaction of btrfs fail, as if the disk failed for a moment. The file system becomes read-only."""
    pool = pool_of(home)
    subprocess.run(["sync", "-f", str(pool)], check=True)
    (device,) = loops_of(home.path / "pool.img")
    limit_device(device, MIB)
    with contextlib.suppress(OSError):
        (pool / ".written").touch()
    subprocess.run(["sync", "-f", str(pool)], check=False, stderr=subprocess.DEVNULL)
    limit_device(device, 0)
    assert os.statvfs(pool).f_flag & os.ST_RDONLY


def end_all(home: Home) -> None:
    """Stop all sessions and the daemon, and wait until the pool is unmounted."""
    home.must("stop", "--files", "--all")
    home.must("daemon", "stop")
    wait_for_no_loop(home.path / "pool.img")


def castagnoli(content: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in content:
        found ^= byte
        for _ in range(8):
            found = found >> 1 ^ (0x82F63B78 if found & 1 else 0)
    return found ^ 0xFFFFFFFF


def toggle_feature(image: Path) -> None:
    """Add an unknown feature to the unmounted file system, so that no kernel can write to it; or remove it again."""
    with image.open("r+b") as file:
        for place in SUPERBLOCK_AT:
            block = bytearray(os.pread(file.fileno(), SUPERBLOCK_BYTES, place))
            (features,) = struct.unpack_from("<Q", block, READ_ONLY_FEATURES_AT)
            struct.pack_into("<Q", block, READ_ONLY_FEATURES_AT, features ^ UNKNOWN)
            struct.pack_into("<I", block, 0, castagnoli(bytes(block[SUM_BYTES:])))
            os.pwrite(file.fileno(), block, place)
        os.fsync(file.fileno())


def refused(done: Completed) -> re.Match[str]:
    """Check that a command was refused, and return its advice."""
    assert (done.code, SAID in done.stderr) == (125, True), done.stderr
    found = ADVICE.fullmatch(next_of(done.stderr))
    assert found, done.stderr
    return found


def on_record(home: Home) -> object:
    """Return all captures and operations, without the counts of changes, which are made when somebody asks for them."""
    captures = home.must("log", "--all", "--json").json()
    return [{**one, "changes": None} for one in captures], home.must("op", "log", "--json").json()


def tree_of(home: Home, name: str) -> str:
    return str(home.must("show", name, "--json").json()["layers"]["files"]["tree"])


def check_reading(home: Home) -> None:
    for words in (("log", "--all"), ("op", "log"), ("show", "noted"), ("ps", "--all"), ("du",)):
        home.must(*words)
    done = home.cli("doctor", "--json")
    (row,) = [row for row in json.loads(done.stdout) if row["capability"] == "the pool of this home"]
    assert (done.code, row["state"], row["why"]) == (3, "missing", SAID)
    assert ADVICE.fullmatch(row["remedy"])


def test_writes_on_a_read_only_pool_are_refused_and_the_advice_works(own: Home) -> None:
    abort(own)
    before = on_record(own)
    for words in REFUSED:
        steps = refused(own.cli(*words))
    assert on_record(own) == before
    assert own.must("ps", "--json").json()[0]["state"] == "live"
    for step in steps.groups()[1:3]:
        own.must(*step.split()[1:])
    own.must("shell", "main", "-d")
    assert own.must("exec", "--", "cat /srv/file").stdout == "later\n"
    own.must("restore", "noted")
    assert own.must("exec", "--", "echo $here; cat /srv/file").stdout == "1\nprecious\n"
    own.must("setup", "--check")
    ledger.check(own)


def test_captures_and_sessions_on_a_read_only_pool_can_be_copied(own: Home, tmp_path: Path) -> None:
    remount(own, "ro")
    check_reading(own)
    trees = refused(own.cli("checkpoint", "another"))[1]
    copied = tmp_path / "copied"
    subprocess.run(["cp", "-a", f"{trees}/{tree_of(own, 'noted')}", str(copied)], check=True)
    assert (copied / "m0/upper/srv/file").read_text() == "precious\n"
    pid = own.must("ps", "--json").json()[0]["pid"]
    assert Path(f"/proc/{pid}/root/srv/file").read_text() == "later\n"


@pytest.mark.parametrize(("option", "left"), [("--files", "later\n"), ("--discard", "precious\n")])
def test_a_session_on_a_read_only_pool_can_be_stopped(own: Home, option: str, left: str) -> None:
    abort(own)
    own.must("stop", option, "main")
    assert own.must("ps", "--json").json() == []
    own.must("daemon", "stop")
    own.must("shell", "main", "-d")
    assert own.must("exec", "--", "cat /srv/file").stdout == left
    ledger.check(own)


def test_the_next_daemon_takes_over_a_session_on_a_read_only_pool(own: Home) -> None:
    abort(own)
    (daemon,) = victims.pids(own, "daemon")
    os.kill(daemon, 9)
    assert own.must("ps", "--json").json()[0]["state"] == "live"
    refused(own.cli("checkpoint", "another"))
    end_all(own)
    own.must("restore", "noted")
    assert own.must("exec", "--", "echo $here; cat /srv/file").stdout == "1\nprecious\n"
    ledger.check(own)


def test_a_pool_that_cannot_even_be_read_is_opened_after_the_advised_end_of_its_sessions(own: Home) -> None:
    abort(own)
    (device,) = loops_of(own.path / "pool.img")
    limit_device(device, SUPERBLOCK_AT[0])
    (daemon,) = victims.pids(own, "daemon")
    os.kill(daemon, 9)
    done = own.cli("ps")
    assert (done.code, "sessions still use it" in done.stderr) == (125, True), done.stderr
    step = re.search(r"'(echo 1 > \S+/cgroup\.kill)'", next_of(done.stderr))
    assert step, done.stderr
    subprocess.run(["sh", "-c", step[1]], check=True)
    wait_for_no_loop(own.path / "pool.img")
    own.must("restore", "noted")
    assert own.must("exec", "--", "echo $here; cat /srv/file").stdout == "1\nprecious\n"
    ledger.check(own)


def test_a_pool_that_stays_read_only_can_be_read_and_removed(own: Home, tmp_path: Path) -> None:
    end_all(own)
    toggle_feature(own.path / "pool.img")
    check_reading(own)
    own.must("rm", "noted")
    own.must("undo")
    for words in (("gc",), ("setup", "--check"), ("shell", "main", "-d"), ("restore", "noted")):
        steps = refused(own.cli(*words))
    subprocess.run(["cp", "-a", f"{steps[1]}/{tree_of(own, 'noted')}", str(tmp_path / "copied")], check=True)
    assert (tmp_path / "copied/m0/upper/srv/file").read_text() == "precious\n"
    for step in steps.groups()[1:3]:
        own.must(*step.split()[1:])
    refused(own.cli("restore", "noted"))
    own.must(*steps[4].split()[1:], "--yes")
    assert not own.path.exists()


def test_gc_is_refused_on_a_read_only_pool(own: Home) -> None:
    """A capture that gc cannot remove from the disk must stay on record."""
    own.must("checkpoint", "noted", "--force", "--anew")
    own.must("rm", "noted")
    remount(own, "ro")
    before = on_record(own)
    done = own.cli("gc", "--keep-operations", "0s")
    assert (refused(done)[2], done.stdout) == ("waypoint stop --all", "")
    assert on_record(own) == before
    remount(own, "rw")
    assert "removed 1 capture;" in own.must("gc", "--keep-operations", "0s").stdout
