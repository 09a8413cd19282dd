"""Programs in a session reach each of its limits, and no other session is affected.

Most tests run in a started, a forked and a restored session of root and in a session of an ordinary user. A session
with a larger limit shows that the refusal is due to the limit.
"""

import json
import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import begin, facts
from tests.answers import texts
from tests.collecting import collecting
from tests.homes import SMALL_POOL, Home, open_home
from tests.processes_now import name_of
from tests.session.hoarders import FILES, FORKS, NESTING, SPINS, TERMINALS, WRITES
from tests.waiting import DEADLINE_S, PATIENCE_S, wait_until
from waypoint.client import Client
from waypoint.launch.ground.limits import USUAL_PIDS, of_all
from waypoint.launch.program import RESOURCE_LIMITS
from waypoint.linux.tasks import cgroups

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "cgroup2")]

MIB = 1 << 20
WAYS = ("started", "forked", "restored", "users")
SMALL = ("--pids", "96", "--cpus", "0.5", "--disk", "48M", "--memory", "64M")
LARGE = ("--pids", "400", "--disk", "400M", "--memory", "1G")

EAGAIN, ENOSPC, EDQUOT = 11, 28, 122


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """A home with sessions of small limits, one for each of WAYS, and one of large limits: `large`."""
    with open_home("limits") as made:
        begin(made, "large", *LARGE)
        begin(made, "started", *SMALL)
        made.must("shell", "users", "-d", "--user", "nobody", *SMALL)
        if made.cli("checkpoint", "small", "-b", "started", "--tier", "live").code == 0:
            made.must("fork", "small", "forked", "restored")
            made.must("checkpoint", "own", "-b", "restored")
            made.must("restore", "own", "-b", "restored")
        yield made


def inside(home: Home, branch: str, program: str, *words: str) -> str:
    """Return the output of a Python program in the session."""
    command = shlex.join(["python3", "-c", program, *words])
    return home.must("exec", "-b", branch, "--", command).stdout.strip()


def numbers(home: Home, branch: str, program: str, *words: str) -> tuple[int, int]:
    count, failed = inside(home, branch, program, *words).split()
    return int(count), int(failed)


@pytest.mark.parametrize("branch", WAYS)
@pytest.mark.requires("criu", "controller-pids")
def test_processes_are_refused_at_the_limit(home: Home, branch: str) -> None:
    count, failed = numbers(home, branch, FORKS, "200")
    assert (80 < count < 96, failed) == (True, EAGAIN)
    assert numbers(home, "large", FORKS, "200") == (200, 0)


@pytest.mark.soak(part="floods")
@pytest.mark.requires("criu", "controller-pids")
def test_a_session_with_all_its_allowed_processes_can_be_forked(home: Home) -> None:
    """CRIU restores in the session's cgroup, where its own processes count."""
    begin(home, "crowded", "--pids", "64")
    group = group_of(home, "crowded")
    home.must("exec", "-b", "crowded", "--", "true")
    wait_until(lambda: len(cgroups.members(group)) == 2, "the shell has begun")
    count = 61  # all but one, with the shell and pid 1
    home.must("exec", "-b", "crowded", "--", f"for n in {{1..{count}}}; do sleep 1000 & done 2>/dev/null")
    wait_until(lambda: sleepers(home, "crowded") == count, "all programs have begun")
    home.must("checkpoint", "crowd", "-b", "crowded", "--tier", "live")
    home.must("fork", "crowd", "crowd-2")
    assert sleepers(home, "crowd-2") == count
    home.cli("exec", "-b", "crowd-2", "--timeout", "3", "--", "for n in $(seq 9); do sleep 1000 & done 2>/dev/null")
    assert sleepers(home, "crowd-2") < 64
    home.must("stop", "crowded", "crowd-2", "--discard")


def group_of(home: Home, branch: str) -> str:
    (group,) = Path(cgroups.find_hierarchies().unified).glob(f"**/{facts(home, branch)['id']}")
    return str(group)


def sleepers(home: Home, branch: str) -> int:
    return sum(name_of(pid) == "sleep" for pid in cgroups.members(group_of(home, branch)))


@pytest.mark.parametrize("branch", WAYS)
@pytest.mark.requires("criu", "btrfs", "simple-quotas")
def test_writing_is_refused_at_the_limit_until_something_is_removed(home: Home, branch: str) -> None:
    count, failed = numbers(home, branch, WRITES, "100", "/var/tmp/data")
    assert (20 < count <= 48, failed) == (True, EDQUOT)
    home.must("exec", "-b", branch, "--", "rm /var/tmp/data")
    home.must("checkpoint", f"full-{branch}", "-b", "large")  # a checkpoint of another session
    assert numbers(home, branch, WRITES, "10", "/var/tmp/less") == (10, 0)
    assert numbers(home, "large", WRITES, "100", "/var/tmp/data") == (100, 0)
    home.must("exec", "-b", branch, "--", "rm /var/tmp/less; sync")
    home.must("exec", "-b", "large", "--", "rm /var/tmp/data")


@pytest.mark.requires("btrfs", "simple-quotas")
def test_a_program_can_reserve_what_df_shows_although_the_pool_is_smaller(home: Home) -> None:
    begin(home, "roomy", "--disk", "30G")
    more = home.must("du", "--json").json()["pool_bytes"] + 100 * MIB
    disk = os.statvfs(home.path)
    spare = disk.f_bavail * disk.f_frsize - SMALL_POOL["floor_bytes"]
    shown = int(home.must("exec", "-b", "roomy", "--", "df --output=avail -B1 /srv | tail -1").stdout)
    assert shown > min(spare, 30 << 30) - SMALL_POOL["step_bytes"] > more
    home.must("exec", "-b", "roomy", "--", f"fallocate -l {more} /srv/data")
    home.must("stop", "roomy", "--discard")


@pytest.mark.requires("btrfs", "simple-quotas")
def test_a_session_whose_disk_limit_is_used_up_can_be_captured_and_stopped(home: Home) -> None:
    begin(home, "used-up", "--disk", "32M")
    assert numbers(home, "used-up", WRITES, "100", "/srv/data")[1] == EDQUOT
    home.must("checkpoint", "used", "-b", "used-up")
    home.must("stop", "--files", "used-up")
    begin(home, "used-up")
    assert home.must("exec", "-b", "used-up", "--", "stat -c %s /srv/data").stdout.strip() != "0"
    home.must("stop", "used-up", "--discard")


@pytest.mark.soak(part="timing")
@pytest.mark.parametrize("branch", WAYS)
@pytest.mark.requires("criu", "controller-cpu")
def test_processor_time_is_limited(home: Home, branch: str) -> None:
    used = float(inside(home, branch, SPINS))
    assert used <= 2 * 0.5 * 1.25  # 1.25: one more quota period at either end
    assert quota_of(home, branch) == 50_000
    assert quota_of(home, "large") is None


def quota_of(home: Home, branch: str) -> int | None:
    """Return the microseconds of processor time that the session may use in each 100 ms; None: no limit."""
    root = cgroups.find_hierarchies().legacy.get("cpu")
    groups = list(Path(root or cgroups.find_hierarchies().unified).glob(f"**/{facts(home, branch)['id']}"))
    if root and not groups:  # version 1 has a group only for requested limits
        return None
    (group,) = groups
    text = (group / ("cpu.cfs_quota_us" if root else "cpu.max")).read_text().split()[0]
    return None if text in ("-1", "max") else int(text)


@pytest.mark.parametrize("branch", WAYS)
@pytest.mark.requires("criu")
def test_terminals_are_refused_at_the_limit_and_available_to_others(home: Home, branch: str) -> None:
    program = f"{TERMINALS}\nsys.stdout.flush()\nimport signal\nsignal.pause()"
    with home.background("run", "-b", branch, "--", "python3", "-c", program, "300") as holder:
        assert holder.stdout is not None
        count, failed = map(int, holder.stdout.readline().split())
        assert (50 < count < 64, failed) == (True, ENOSPC)
        assert numbers(home, "large", TERMINALS, "48") == (48, 0)
        subprocess.run(["script", "-qec", "true", "/dev/null"], check=True, stdin=subprocess.DEVNULL)
    home.must("run", "-b", branch, "--", "pkill", "-9", "-x", "python3")


@pytest.mark.parametrize("branch", WAYS)
@pytest.mark.requires("criu")
def test_shared_memory_is_limited_to_half_of_the_memory(home: Home, branch: str) -> None:
    count, failed = numbers(home, branch, WRITES, "100", "/dev/shm/data")
    assert (count, failed) == (32, ENOSPC)
    assert numbers(home, "large", WRITES, "100", "/dev/shm/data") == (100, 0)
    for name in (branch, "large"):
        home.must("exec", "-b", name, "--", "rm /dev/shm/data")


def test_shared_memory_has_a_limit_of_files(home: Home) -> None:
    count, failed = numbers(home, "large", FILES, "70000")
    assert (65_000 < count < 65_536, failed) == (True, ENOSPC)


@pytest.mark.parametrize("branch", WAYS)
@pytest.mark.requires("criu", "controller-memory")
def test_memory_is_refused_at_the_limit(home: Home, branch: str) -> None:
    program = "import sys; held = b'x' * (int(sys.argv[1]) << 20); print(len(held))"
    command = shlex.join(["python3", "-c", program, "200"])
    assert home.cli("exec", "-b", branch, "--", command).code == 137
    assert inside(home, "large", program, "200") == str(200 * MIB)


@pytest.mark.soak(part="timing")
@pytest.mark.requires("controller-pids")
def test_during_a_fork_bomb_another_session_answers_and_the_bomb_can_be_stopped(home: Home) -> None:
    begin(home, "bomb", "--pids", "1000")
    home.must("run", "-b", "bomb", "--", "sh", "-c", "nohup bash -c 'b() { b | b & }; b; wait' >/dev/null 2>&1 &")
    group = group_of(home, "bomb")
    wait_until(lambda: len(cgroups.members(group)) > 900, "the bomb has made its processes", PATIENCE_S)
    taken_s = []
    for _again in range(5):
        begun = time.monotonic()
        assert home.must("exec", "-b", "large", "--", "echo here").stdout == "here\n"
        taken_s.append(time.monotonic() - begun)
    assert sorted(taken_s)[2] < DEADLINE_S, taken_s
    home.must("stop", "bomb", "--discard")
    assert not Path(group).exists()


def test_a_branch_keeps_its_limits_until_others_are_given(home: Home) -> None:
    asked = ("--pids", "100", "--cpus", "1.5", "--memory", "512M")
    limits = {"memory_bytes": 512 * MIB, "cpus": 1.5, "pids": 100, "disk_bytes": None}
    assert begin(home, "kept", *asked)["limits"] == limits
    home.must("stop", "--files", "kept")
    assert begin(home, "kept")["limits"] == limits
    home.must("stop", "--files", "kept")
    assert home.must("show", "kept", "--json").json()["limits"] == limits
    assert begin(home, "kept", "--pids", "200")["limits"] == {**limits, "pids": 200}
    assert "pids 200" in home.must("show", "kept").stdout
    home.must("stop", "kept", "--discard")


def test_limits_have_defaults_and_may_be_given_in_bytes(home: Home) -> None:
    limits = begin(home, "usual")["limits"]
    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    assert limits == {"memory_bytes": total * 1024 * 3 // 4, "cpus": None, "pids": 4096, "disk_bytes": None}
    home.must("stop", "usual", "--discard")
    session = Client(home.path).start("asked", memory=512 * MIB, cpus=0.5, pids=100)
    assert session.facts.limits == {"memory_bytes": 512 * MIB, "cpus": 0.5, "pids": 100, "disk_bytes": None}
    session.stop(discard=True)


def test_limits_out_of_range_are_refused(home: Home) -> None:
    with collecting() as row:
        for option, value, said in (
            ("--memory", "1M", "the value is not between 64M and 8388607T"),
            ("--disk", "1M", "the value is not between 16M and 8388607T"),
            ("--cpus", "0.001", "the value is not between 0.01 and 1000000000"),
            ("--pids", "3", "the value is not between 64 and 4194304"),
            ("--pids", "5000000", "the value is not between 64 and 4194304"),
            ("--memory", "12Q", "(from 64M to 8388607T)"),
            ("--memory", "99999999999999G", "(from 64M to 8388607T)"),
            ("--disk", "-1", "(from 16M to 8388607T)"),
            ("--cpus", "0", "(from 0.01 to 1000000000)"),
            ("--pids", "0", "not a whole number from 64 to 4194304"),
        ):
            with row(f"{option} {value}"):
                done = home.cli("shell", "refused", "-d", option, value)
                assert (done.code, said in done.stderr) == (2, True), done.stderr
                assert home.cli("show", "refused").code == 2


def test_limits_that_cannot_be_enforced_are_reported(home: Home) -> None:
    """`shell`, `fork`, the facts and `doctor` report exactly the limits that are not enforced."""
    usual = texts(begin(home, "told")["unlimited"])
    home.must("stop", "told", "--discard")
    done = home.must("shell", "told", "-d", "--user", "root", "--memory", "512M", "--pids", "100")
    asked = texts(facts(home, "told")["unlimited"])
    limits = ("--memory", "512M", "--pids", "100")
    forked = home.must("fork", "told", "told-1", "told-2", "--tier", "files", *limits)
    home.must("stop", "told", "told-1", "told-2", "--discard")
    told = [line for line in done.stderr.splitlines() if line.startswith("limit: ")]
    assert told == [f"limit: {line}" for line in asked]
    assert [line for line in forked.stderr.splitlines() if line.startswith("limit: ")] == told
    assert len(asked) <= len(usual)
    row = next(row for row in home.must("doctor", "--json").json() if row["capability"] == "limits of sessions")
    assert (row["state"] == "degraded") == bool(usual)
    assert all(line in row["why"] for line in usual)


def test_resource_limits_do_not_depend_on_who_started_the_daemon() -> None:
    program = "import json, resource; print(json.dumps({k: resource.getrlimit(k) for k in map(int, %r)}))"
    odd = 'ulimit -S -n 77; ulimit -S -c unlimited; ulimit -S -s 4096; exec "$@"'
    with open_home("rlimits") as home:
        home.must("daemon", "stop")
        subprocess.run(["bash", "-c", odd, "-", *home.argv("daemon", "status")], env=home.env, check=False)
        subprocess.run(
            ["bash", "-c", odd, "-", *home.argv("shell", "main", "-d", "--user", "root")], env=home.env, check=True
        )
        text = program % [int(kind) for kind in RESOURCE_LIMITS]
        counted_by_user = any(one["subject"] == "pids" for one in facts(home, "main")["unlimited"])
        usual = RESOURCE_LIMITS | ({resource.RLIMIT_NPROC: (USUAL_PIDS, USUAL_PIDS)} if counted_by_user else {})
        most = {int(kind): hard for kind, hard in own_hard_limits().items()}
        if most[resource.RLIMIT_NOFILE] != -1:  # the launcher keeps a quarter for itself
            most[resource.RLIMIT_NOFILE] = most[resource.RLIMIT_NOFILE] * 3 // 4
        if (signals := resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]) != -1:  # the launcher keeps half for itself
            most[resource.RLIMIT_SIGPENDING] = least(most[resource.RLIMIT_SIGPENDING], signals // 2)
        for verb in ("exec", "run"):
            command = ["python3", "-c", text]
            done = home.must(verb, "--", *([shlex.join(command)] if verb == "exec" else command))
            found = {int(kind): tuple(values) for kind, values in json.loads(done.stdout).items()}
            wanted = {int(kind): tuple(least(one, most[int(kind)]) for one in both) for kind, both in usual.items()}
            assert found == wanted
            assert (
                found[resource.RLIMIT_CORE][0] == 1
            )  # core(5), fs/coredump.c: with 1, the host's core handler is not started either


QUEUES = """
import ctypes, errno, itertools, os
call = ctypes.CDLL(None, use_errno=True)
size = (ctypes.c_long * 8)(0, 10, 8192)
for number in itertools.count():
    if call.mq_open(f'/q{number}'.encode(), os.O_CREAT | os.O_RDWR, 0o600, ctypes.byref(size)) < 0:
        break
print(number > 0, errno.errorcode[ctypes.get_errno()])
"""
ONE_QUEUE = """
import ctypes, os
call = ctypes.CDLL(None, use_errno=True)
size = (ctypes.c_long * 8)(0, 10, 8192)
name = b'/waypoint-test-' + str(os.getpid()).encode()
print(call.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, ctypes.byref(size)) >= 0)
call.mq_unlink(name)
"""


@pytest.mark.soak(part="floods")
def test_sessions_leave_message_queues_to_the_host() -> None:
    """If the kernel also limits the queues of root, all sessions together may have half of that limit."""
    alone = subprocess.run([sys.executable, "-c", ONE_QUEUE], capture_output=True, text=True, check=True)
    assert alone.stdout == "True\n"
    with open_home("queues") as home:
        for name in ("one", "two"):
            home.must("shell", name, "-d", "--user", "root")
            took = home.must("run", "-b", name, "--", "python3", "-c", QUEUES).stdout.split()
            assert took[1] == "EMFILE"
            assert took[0] == "True" or name == "two"
        beside = subprocess.run([sys.executable, "-c", ONE_QUEUE], capture_output=True, text=True, check=True)
        assert beside.stdout == "True\n"


def own_hard_limits() -> dict[int, int]:
    """Return the highest values to which this process may raise its limits; -1: any value."""
    can_raise = int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16) >> 24 & 1
    return {kind: -1 if can_raise else resource.getrlimit(kind)[1] for kind in RESOURCE_LIMITS}


def least(value: int, most: int) -> int:
    return min(filter(lambda one: one != -1, (value, most)), default=-1)


@pytest.mark.requires("userns")
def test_a_session_with_frozen_cgroups_of_its_own_can_be_stopped() -> None:
    """The session has no seccomp filter: with one, it could not make cgroups."""
    with open_home("nested", host_ids=True, seccomp=False) as home:
        begin(home, "main")
        group = group_of(home, "main")
        command = shlex.join(["unshare", "-UrCm", "python3", "-c", NESTING])
        assert home.must("exec", "--", command).stdout.split() == ["32", str(EAGAIN)]
        before = facts(home, "main")["processes"]
        assert before >= 4  # processes in the nested groups count, too
        home.must("stop", "--files", "main")
        assert not Path(group).exists()
        assert home.must("exec", "-b", begin(home, "main")["branch"], "--", "echo here").stdout == "here\n"


@pytest.mark.requires("controller-pids")
def test_the_limit_of_processes_of_the_home_applies_to_all_sessions_together(home: Home) -> None:
    """A limit per user id would not suffice, since a session has thousands of user ids."""
    begin(home, "many")
    hierarchies = cgroups.find_hierarchies()
    root = hierarchies.legacy.get("pids", hierarchies.unified)
    bound = Path(root, Path(group_of(home, "many")).parent.relative_to(hierarchies.unified), "pids.max")
    usual = bound.read_text().strip()
    assert int(usual) == of_all().pids
    count = int((bound.parent / "pids.current").read_text())
    bound.write_text(str(count + 40))
    try:
        found, failed = numbers(home, "many", FORKS, "100")
        assert (found < 60, failed) == (True, EAGAIN)  # a process of the launcher may have ended
    finally:
        bound.write_text(usual)
    assert numbers(home, "many", FORKS, "100") == (100, 0)
    home.must("stop", "many", "--discard")
