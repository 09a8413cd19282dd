"""Standbys: frozen copies of checkpoints that become sessions (waypoint/service/standing_by.py)."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.sessions import OWN_MOUNT, begin, inside, make_host_folder, put
from tests.answers import unusual
from tests.homes import Home, open_home
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.waiting import wait_until
from waypoint.capture.steps import Step
from waypoint.client import Client
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import cgroups, procfs, states
from waypoint.processes.criu import timeless

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "criu", "overlay", "cgroup2", "own-criu")]

SERVER = """
import fcntl, select, socket
held = open("/root/held", "w")
fcntl.lockf(held, fcntl.LOCK_EX)
server = socket.create_server(("127.0.0.1", 8000))
open("/root/ready", "w").close()
while True:
    select.select([server], [], [])
    with server.accept()[0] as one:
        one.sendall(b"served")
"""
ASK = "exec 8<>/dev/tcp/127.0.0.1/8000; cat <&8; exec 8<&-"
HOOK = '#!/bin/sh\necho "$WAYPOINT_HOOK $WAYPOINT_BRANCH" >>/root/hooks\n'
STATE = rf"""
branch=$WAYPOINT_BRANCH
{{ echo "$kept $PWD"; {ASK}; cat /dev/shm/memory /root/hooks; env; set -o; ulimit -a; id; hostname; jobs; tty; stty -a
ls -l /proc/$$/fd /root /run/waypoint; cat /proc/$$/status /proc/self/uid_map; ps -eo pid,ppid,sid,tty,stat,args
cat /proc/net/dev | cut -d: -f1; ip route; getent hosts localhost; sed 's/^[^/]*//' /proc/self/mountinfo
df --output=size /dev/shm; cat /run/waypoint/branch
python3 -c 'import fcntl; fcntl.lockf(open("/root/held", "a"), fcntl.LOCK_EX | fcntl.LOCK_NB)' 2>&1; }} |
sed "s/$branch/BRANCH/g; s/cmd.[0-9a-f]*/cmd/; s/[0-9a-f]\{{32\}}/ID/"
"""
"""Prints the state of a session, from which the name of its branch was removed."""
VOLATILE = ("voluntary_ctxt", "nonvoluntary_ctxt", "Vm", "Rss", "PPid", "Pid", "NSpid", "Tgid", "Cpus", "Mems", "total")


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with open_home("standbys", settings={"standbys": 1}) as made:
        begin(made, "main", "--publish", "0:8000", "--pids", "500")
        put(made, "main", "/root/server.py", SERVER)
        put(made, "main", "/tmp/hook", HOOK)
        hooks = "/etc/waypoint/hooks/post-restore.d"
        inside(made, "main", f"mkdir -p {hooks}; cp /tmp/hook {hooks}/one; chmod 755 {hooks}/one")
        inside(made, "main", "cd /srv; kept=yes; export word=known; echo memory >/dev/shm/memory")
        inside(made, "main", "python3 /root/server.py & until [ -e /root/ready ]; do sleep 0.02; done")
        yield made


@pytest.fixture(autouse=True)
def no_forks_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "home" in request.fixturenames:
        found: Home = request.getfixturevalue("home")
        forks = [one.branch for one in Client(found.path).sessions() if one.branch != "main"]
        if forks:
            found.must("stop", "--discard", *forks)


def standing(home: Home) -> dict[str, str]:
    """The standbys on record: by id, the capture that each stands for."""
    rows = [row for _, row in ledger.rows(home, "SELECT ready, record FROM live")]
    return {row["session"]: row["stands_for"] for row in rows if "stands_for" in row}


def standby(home: Home, name: str) -> str:
    """Wait until the only standby is one of the checkpoint. Return its id."""
    wanted = Client(home.path).history.show(name).capture
    found: dict[str, str] = {}

    def is_ready() -> bool:
        found.clear()
        found.update(standing(home))
        return [*found.values()] == [wanted] and Client(home.path).status().standbys == 1

    wait_until(is_ready, "a standby is ready")
    return next(iter(found))


def pids(home: Home, ident: str) -> list[int]:
    return cgroups.members(str(ledger.group_of(home) / ident))


def is_frozen(home: Home, ident: str) -> bool:
    return "frozen 1" in (ledger.group_of(home) / ident / "cgroup.events").read_text()


def fork(home: Home, *branches: str, name: str = "point") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = home.must("fork", name, *branches, "--json").json()
    return found


def codes(found: dict[str, Any]) -> list[str]:
    return [one["code"] for one in unusual(found["degraded"])]


def ident(home: Home, branch: str) -> str:
    return Client(home.path).session(branch).refresh().id or ""


def state(home: Home, branch: str) -> list[str]:
    lines = inside(home, branch, STATE).splitlines()
    return [line for line in lines if not line.startswith(VOLATILE)]


def test_a_fork_from_a_standby_is_like_one_without(home: Home) -> None:
    home.must("checkpoint", "point", "-b", "main", "--tier", "live", "--force")
    ready = standby(home, "point")
    its = pids(home, ready)
    assert is_frozen(home, ready)
    assert [one.branch for one in Client(home.path).sessions()] == ["main"]
    assert {Path(f"/proc/{pid}/net/dev").read_text().count(":") for pid in its} == {1}  # the loopback interface
    warm, cold = fork(home, "warm", "cold")
    assert ident(home, "warm") == ready
    assert warm["pid"] in its
    assert codes(warm) == codes(cold) == []
    assert state(home, "warm") == state(home, "cold")
    ports = {branch: home.must("port", branch, "8000").stdout for branch in ("main", "warm", "cold")}
    assert len({*ports.values()}) == len(ports), ports
    kept = [facts(home, branch) for branch in ("warm", "cold")]
    assert kept[0] == kept[1]
    again = standby(home, "point")  # another one is made
    (restored,) = [home.must("restore", "point", "-b", "cold", "--json").json()]
    assert restored["id"] == again
    assert inside(home, "cold", "echo $kept $PWD").split() == ["yes", "/srv"]


def facts(home: Home, branch: str) -> dict[str, Any]:
    """The entry of the branch in `ps`, without what differs between any two forks."""
    (found,) = (one for one in home.must("ps", "--json").json() if one["branch"] == branch)
    own = ("branch", "id", "pid", "started", "uptime_s", "ports")
    return {name: value for name, value in found.items() if name not in own and not name.endswith("_bytes")}


def test_a_program_that_waits_for_a_time_makes_the_fork_report_its_clock(home: Home) -> None:
    inside(home, "main", "sleep 1000 &")
    home.must("checkpoint", "waits", "-b", "main", "--tier", "live")
    ready = standby(home, "waits")
    (found,) = fork(home, "late", name="waits")
    assert (ident(home, "late"), codes(found)) == (ready, ["clock-went-on"])
    inside(home, "main", "kill %2")


def test_a_standby_ends_with_its_checkpoint_and_is_not_used_after_the_machine_changed(home: Home) -> None:
    home.must("checkpoint", "short", "-b", "main", "--tier", "live")
    first = standby(home, "short")
    ready = pids(home, first)
    with make_host_folder(OWN_MOUNT):
        (found,) = fork(home, "changed", name="short")
        assert found["pid"] not in ready
        second = standby(home, "short")
        home.must("rm", "short")
        wait_until(lambda: second not in standing(home), "the standby has ended")
    ledger.check(home)


def test_a_killed_daemon_leaves_no_standby(home: Home) -> None:
    home.must("checkpoint", "point", "-b", "main", "--tier", "live", "--force")
    ready = standby(home, "point")
    os.kill(Client(home.path).status().pid, signal.SIGKILL)
    assert Client(home.path).status().standbys == 0
    assert not (ledger.group_of(home) / ready).exists()
    ledger.check(home)


@pytest.mark.soak(part="differences")
def test_without_the_setting_only_a_checkpoint_that_was_restored_has_a_standby() -> None:
    with open_home("automatic") as home:
        begin(home, "main")
        home.must("checkpoint", "unused", "-b", "main", "--tier", "live")
        inside(home, "main", "kept=yes")
        home.must("checkpoint", "point", "-b", "main", "--tier", "live")
        fork(home, "cold")
        ready = standby(home, "point")
        assert codes(fork(home, "warm")[0]) == []
        assert ident(home, "warm") == ready
        home.must("stop", "--all")
        wait_until(lambda: not standing(home), "no session runs, so no standby is kept")


SELECT, EPOLL, PAUSE, FUTEX, SLEEP = {23, 270}, {232, 281}, {34}, {202}, {230}
PYTHON = "import ctypes, select, signal, threading, time"
TIMER = "libc = ctypes.CDLL(None); fd = libc.timerfd_create(1, 0)"
PROGRAMS: dict[str, tuple[set[int], bool]] = {
    "select.select([], [], [])": (SELECT, True),
    "select.select([], [], [], 900)": (SELECT, False),
    "select.epoll().poll()": (EPOLL, True),
    "select.epoll().poll(900)": (EPOLL, False),
    "signal.alarm(900); signal.pause()": (PAUSE, False),
    f"{TIMER}; libc.timerfd_settime(fd, 0, (ctypes.c_long * 4)(0, 0, 900, 0), 0); signal.pause()": (PAUSE, False),
    "threading.Thread(target=threading.Event().wait).start(); signal.pause()": (PAUSE | FUTEX, True),
    "threading.Thread(target=time.sleep, args=[900]).start(); signal.pause()": (PAUSE | SLEEP, False),
}
"""Programs in Python: the system calls in which their threads wait, and whether they notice nothing of the time."""


def calls(pid: int) -> set[int]:
    """The system calls in which the threads of a process are; -1 if one runs."""
    return {states.system_call(tid)[0] for tid in procfs.threads(pid)}


@pytest.mark.soak(part="differences")
def test_the_images_tell_whether_a_program_notices_the_time(home: Home) -> None:
    session, group = Client(home.path).session("main"), str(ledger.group_of(home) / ident(home, "main"))
    found = {}
    for text, (waits, _) in PROGRAMS.items():
        number = int(session.exec(f"python3 -c '{PYTHON}; {text}' & program=$!; echo $program").output.split()[-1])
        (pid,) = (one for one in cgroups.members(group) if procfs.inner_pid(one) == number)
        wait_until(lambda pid=pid, waits=waits: calls(pid) and calls(pid) <= waits, "the program waits")
        capture = session.checkpoint("waiting", tier="live", force=True).capture
        daemon = Client(home.path).status().pid
        with open_folder(Path(f"/proc/{daemon}/root{home.path}/hot/{capture}/images")) as images_fd:
            found[text] = timeless.is_timeless(images_fd)
        session.exec("kill -KILL $program; wait $program 2>/dev/null; true")
    assert found == {text: is_timeless for text, (_, is_timeless) in PROGRAMS.items()}


@pytest.mark.soak(part="faults")
@pytest.mark.parametrize("step", [Step.RESERVED, Step.GROUNDED, Step.STANDING, Step.RESTORED, Step.CONFIRMED])
def test_after_a_kill_at_any_step_nothing_is_left_over(pauses: Pauses, step: Step) -> None:
    """The first three steps make a standby, the others make a session of it."""
    with pauses.open_home("standbys") as home:
        home.must("setup", "--standbys", "1", env=pauses.env)
        home.must("daemon", "stop")
        home.must("ps", env=pauses.env)
        begin(home, "main")
        is_taken = step in (Step.RESTORED, Step.CONFIRMED)
        if is_taken:
            home.must("checkpoint", "point", "-b", "main", "--tier", "live")
            standby(home, "point")
        words = ("fork", "point", "new") if is_taken else ("checkpoint", "point", "-b", "main", "--tier", "live")
        with pauses.armed(step) as armed, home.background(*words):
            assert armed.wait() == step
            os.kill(Client(home.path).status().pid, signal.SIGKILL)
            assert Client(home.path).status().standbys == 0
        found = {one.branch for one in Client(home.path).sessions()}
        assert found == ({"main", "new"} if step == Step.CONFIRMED else {"main"})
        ledger.check(home)
        fork(home, "again")
        assert inside(home, "again", "echo runs") == "runs\n"
        home.must("stop", "--all")
        wait_until(lambda: not standing(home), "no session runs, so no standby is kept")
