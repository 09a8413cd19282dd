"""Paths in /proc and /sys that are empty or read-only in a session (in /proc those of Docker), and its own /dev."""

import contextlib
import fcntl
import glob
import itertools
import shlex
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.sessions import inside
from tests.collecting import collecting
from tests.homes import Home, open_home
from waypoint.launch import externals
from waypoint.launch.spec import BindMount, Identity, StartSpec
from waypoint.linux.storage.mounts import MountRecord

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

MASKED = [
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/proc/kpagecount"),
    *("/proc/kpageflags", "/proc/kpagecgroup", "/proc/slabinfo", "/proc/vmallocinfo"),
    *glob.glob("/sys/devices/system/cpu/cpu*/thermal_throttle"),
]
READONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
LOOK = """
import os, stat, sys
for path in sys.argv[1:]:
    if os.path.isdir(path):
        try:
            os.mkdir(path + "/new")
            print(path, "is writable")
        except OSError as error:
            print(path, os.listdir(path), error.errno)
    else:
        with open(path, "rb") as file:
            print(path, stat.S_ISCHR(os.fstat(file.fileno()).st_mode), file.read(1))
"""
EROFS = 30


@pytest.fixture(scope="module", params=["shifted", pytest.param("host", marks=pytest.mark.soak(part="matrix"))])
def place(request: pytest.FixtureRequest) -> Iterator[Home]:
    with open_home("masks", host_ids=request.param == "host") as home:
        home.must("shell", "first", "-d", "--user", "root")
        home.must("fork", "first", "forked")
        home.must("checkpoint", "cp", "-b", "first")
        home.must("restore", "cp", "-b", "restored")
        home.must("restore", "cp", "-b", "files", "--only", "files")
        yield home


FIND_IN_SYS = "find /sys -path /sys/devices/system -prune -o -path /sys/kernel/mm -prune -o ! -type d -print -quit"
TRY_LOCK = "flock -n 0 <{} && echo free || echo held"
PROCESSORS = "/sys/devices/system/cpu/online"


def present(paths: list[str]) -> list[str]:
    found = [path for path in paths if Path(path).exists()]
    assert found
    return found


def test_masked_paths_are_empty_and_kernel_settings_are_read_only(place: Home) -> None:
    masked, readonly = present(MASKED), present(READONLY)
    text = "awk '$5 ~ \"^/proc/\" {print $5, $6}' /proc/self/mountinfo"
    with collecting() as row:
        for branch in ("first", "forked", "restored", "files"):
            with row(branch):
                look = f"python3 -c {shlex.quote(LOOK)} {' '.join(masked)}"
                said = place.must("exec", "-b", branch, "--", look).stdout.splitlines()
                empty = {True: f"[] {EROFS}", False: "True b''"}
                assert said == [f"{path} {empty[Path(path).is_dir()]}" for path in masked]
                lines = place.must("exec", "-b", branch, "--", text).stdout.splitlines()
                flags = dict(line.split(maxsplit=1) for line in lines)
                assert {path: flags[path].split(",")[0] for path in readonly} == dict.fromkeys(readonly, "ro")


def test_the_masked_paths_have_content_on_the_host(place: Home) -> None:
    """This shows that an empty path in a session is due to its mask."""
    for path in present(MASKED):
        if Path(path).is_dir():
            assert path in ("/proc/acpi", "/proc/scsi") or any(Path(path).iterdir())
        elif path != "/proc/keys":
            with open(path, "rb") as file:
                assert file.read(1)


def test_sys_has_processors_and_memory_and_nothing_else_of_the_machine(place: Home) -> None:
    assert subprocess.run(["sh", "-c", FIND_IN_SYS], stdout=subprocess.PIPE, check=True).stdout
    with collecting() as row:
        for branch in ("first", "forked", "restored", "files"):
            with row(branch):
                assert inside(place, branch, FIND_IN_SYS) == ""
                assert inside(place, branch, f"cat {PROCESSORS}") == Path(PROCESSORS).read_text()
                assert inside(place, branch, "ls /sys/kernel/mm")


def test_a_lock_on_a_device_is_a_lock_in_its_session_only(place: Home) -> None:
    inside(place, "first", f"exec 8</dev/null 9<{PROCESSORS}; flock -n 8; flock -n 9")
    assert inside(place, "first", TRY_LOCK.format("/dev/null")) == "held\n"
    assert inside(place, "files", TRY_LOCK.format(PROCESSORS)) == "held\n"
    with collecting() as row:
        for branch in ("forked", "restored", "files"):
            with row(branch):
                assert inside(place, branch, TRY_LOCK.format("/dev/null")) == "free\n"
    with open(PROCESSORS) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    inside(place, "first", "exec 8<&- 9<&-")


@pytest.mark.parametrize("change", ["missing", "another file", "writable", "whole"])
def test_a_session_without_all_its_masks_is_not_started(change: str) -> None:
    number = itertools.count(1)

    def record(point: str, fstype: str, root: str, *options: str, device: int = 7) -> MountRecord:
        return MountRecord(next(number), 0, (0, device), root, point, options, (), fstype, fstype, ())

    table = [
        record("/dev", "tmpfs", "/dev-1", "ro", "nosuid"),
        record("/proc", "proc", "/", "nosuid", "nodev", "noexec", device=8),
        record("/dev/pts", "devpts", "/", "nosuid", "noexec", device=9),
    ]
    if change != "missing":
        source = "zero" if change == "another file" else "null"
        table.append(
            record("/proc/keys", "tmpfs", f"/dev-1/{source}", "rw" if change == "writable" else "ro", "nosuid")
        )
    bind = BindMount(source="/kit/dev-1", target="/dev", readonly=True, device_nodes=True, ours=True)
    identity = Identity(uid=0, gid=0, groups=[])
    lists: dict[str, Any] = {name: [] for name in ("overlays", "memory", "proc_readonly", "argv", "cwd")}
    values: dict[str, Any] = {"cgroup": "", "merged": "", "net": "none", "env": {}, "rows": 0, "cols": 0}
    spec = StartSpec(**lists, **values, binds=[bind], masked=["/proc/keys"], identity=identity)
    expected = contextlib.nullcontext() if change == "whole" else pytest.raises(OSError, match="/proc/keys")
    with expected:
        externals.check_mounts(spec, table)


@pytest.mark.soak(part="walls")
def test_processes_are_not_restored_without_the_paths_masked_in_them() -> None:
    """The path may be missing after a boot without a kernel module. The test adds a missing path to the capture."""
    with open_home("masks-gone") as home:
        home.must("shell", "main", "-d", "--user", "root")
        home.must("exec", "--", "echo kept >/srv/kept")
        home.must("checkpoint", "there", "--tier", "live")
        home.must("stop", "--files", "main")
        home.must("daemon", "stop")
        with contextlib.closing(sqlite3.connect(home.path / "names.db")) as db, db:
            db.execute("""UPDATE captures SET record = replace(record, '"masked":[', '"masked":["/proc/nothing",')""")
        done = home.cli("restore", "there", "--tier", "live")
        assert (done.code, "this machine has no /proc/nothing, which the session hides by a mask" in done.stderr) == (
            5,
            True,
        ), done
        home.must("restore", "there", "--only", "files")
        assert home.must("exec", "--", "cat /srv/kept").stdout == "kept\n"
