"""Proofs of captures: a restore that runs nothing shows whether the processes come back as they were captured."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance.sessions import facts, inside, session
from tests.homes import Home, open_home
from tests.waiting import wait_until
from waypoint.linux.tasks import cgroups
from waypoint.processes.criu import comparison

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

HELD = r"""
import os, select, signal, socket
listener = socket.create_server(("127.0.0.1", 8000))
caller = socket.create_connection(("127.0.0.1", 8000))
held = [socket.socketpair(), os.pipe(), select.epoll(), os.eventfd(0), os.memfd_create("m"), os.openpty()]
removed = open("/tmp/removed", "w")
os.unlink("/tmp/removed")
os.fork() or os._exit(0)  # a zombie
print("ready", flush=True)
signal.pause()
"""
WRITES = "while :; do echo x >>/shared/log; done"
LISTENS = (
    "import signal, socket; s = socket.create_server(('', 0)); open('/tmp/port', 'w').write(str(s.getsockname()[1])); "
    "signal.pause()"
)
BINDS = "import signal, socket; s = socket.socket(socket.AF_UNIX); s.bind('//tmp/../shared/file'); signal.pause()"
LEASES = (  # a break of the lease ends the program
    "import fcntl, signal; f = open('/shared/file', 'w'); fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK); "
    "f.write('x'); f.flush(); signal.pause()"
)


@pytest.fixture
def branch(home: Home) -> Iterator[str]:
    with session(home, "root") as name:
        yield name


@pytest.fixture
def shared(home: Home, tmp_path: Path) -> Iterator[str]:
    with session(home, "root", "--bind", f"{tmp_path}:/shared") as name:
        yield name


def test_a_proved_capture_says_so_everywhere(home: Home, branch: str) -> None:
    inside(home, branch, f"cat >/tmp/held.py <<'END'\n{HELD}END\npython3 /tmp/held.py >/tmp/out & sleep 1000 | cat &")
    wait_until(lambda: inside(home, branch, "cat /tmp/out") == "ready\n", "the program holds its files")
    before = facts(home, branch)["pid"]
    made = home.must("checkpoint", f"{branch}-cp", "-b", branch, "--prove", "--json").json()
    assert (made["tier"], made["proof"]["proved"], made["proof"]["differences"]) == ("live", True, [])
    assert home.must("checkpoint", f"{branch}-cp2", "-b", branch, "--anew", "--prove").stdout.endswith("ms  proved\n")
    assert "proof" not in home.must("show", made["capture"]).stdout.replace("proof        proved at", "")
    assert f"({branch}-cp) live, proved" in home.must("log", branch).stdout
    assert facts(home, branch)["pid"] == before
    (proved,) = home.must("prove", f"{branch}-cp", "--json").json()
    assert (proved["name"], proved["capture"], proved["proof"]["code"]) == (f"{branch}-cp", made["capture"], "")


def test_a_capture_without_processes_is_not_proved(home: Home, branch: str) -> None:
    done = home.cli("checkpoint", f"{branch}-files", "-b", branch, "--tier", "files", "--prove")
    assert (done.code, "not proved: the capture has no processes" in done.stderr) == (5, True), done
    assert f"{branch}-files" in done.stdout
    assert f"({branch}, {branch}-files) files, not proved" in home.must("log", branch).stdout


def test_a_proof_runs_nothing_and_changes_no_file_of_the_machine(home: Home, shared: str, tmp_path: Path) -> None:
    inside(home, shared, f"{{ {WRITES}; }} & disown; sleep 0.1")
    home.must("checkpoint", f"{shared}-cp", "-b", shared, "--park")
    size = (tmp_path / "log").stat().st_size
    assert home.must("prove", f"{shared}-cp").stdout.split()[2] == "proved"
    assert (tmp_path / "log").stat().st_size == size > 0


def test_a_proof_that_would_take_a_file_from_its_running_session_is_refused(
    home: Home, shared: str, tmp_path: Path
) -> None:
    check_refused_for_file(home, shared, BINDS, tmp_path / "file")


def test_a_proof_that_would_break_a_lease_of_a_session_without_a_filter_is_refused(tmp_path: Path) -> None:
    """The filter of system calls refuses leases."""
    with open_home("leases", seccomp=False) as home, session(home, "root", "--bind", f"{tmp_path}:/shared") as branch:
        check_refused_for_file(home, branch, LEASES, tmp_path / "file")


def check_refused_for_file(home: Home, branch: str, program: str, file: Path) -> None:
    """`program`: takes /shared/file, which is `file` on the machine, in a way that a restore would end."""
    inside(home, branch, f'python3 -c "{program}" & disown')
    wait_until(lambda: file.exists() and (file.is_socket() or file.stat().st_size), "the program has its file")
    inode = file.stat().st_ino
    done = home.cli("checkpoint", f"{branch}-cp", "-b", branch, "--prove", "--json")
    assert (done.code, done.json()["proof"]["code"]) == (5, "changes-host"), done
    assert file.stat().st_ino == inode
    inside(home, branch, "pidof python3")


def test_a_proof_does_not_wait_for_the_locks_of_its_running_session(home: Home, shared: str) -> None:
    inside(home, shared, "exec 7>/shared/lock; flock 7")
    home.must("checkpoint", f"{shared}-cp", "-b", shared, "--prove")


def test_two_proofs_of_a_capture_at_the_same_time_do_not_hinder_each_other(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-cp", "-b", branch)
    with ThreadPoolExecutor() as pool:
        proofs = list(pool.map(lambda _number: home.cli("prove", f"{branch}-cp"), range(2)))
    assert [done.code for done in proofs] == [0, 0], proofs


def test_a_proof_does_not_need_the_ports_of_the_machine(home: Home) -> None:
    with session(home, "root", "--net", "host") as branch:
        inside(home, branch, f'touch /tmp/port; python3 -c "{LISTENS}" & disown')
        wait_until(lambda: inside(home, branch, "cat /tmp/port"), "the program listens")
        home.must("checkpoint", f"{branch}-cp", "-b", branch, "--prove")
        socket.create_connection(("127.0.0.1", int(inside(home, branch, "cat /tmp/port")))).close()


def test_every_difference_from_the_capture_is_found(home: Home, branch: str) -> None:
    inside(home, branch, "sleep 1000 & sleep 1001 & exec 7</etc/passwd 8</etc/group 9</etc/hosts")
    made = home.must("checkpoint", f"{branch}-cp", "-b", branch, "--json").json()
    images = os.open(f"{home.path}/hot/{made['capture']}/images", os.O_RDONLY)
    try:

        def found() -> list[comparison.Difference]:
            group = Path(f"/proc/{facts(home, branch)['pid']}/cgroup").read_text().rpartition("::")[2].strip()
            pids = cgroups.members(f"{cgroups.find_hierarchies().unified}{group}")
            # The shell's hooks redirect other descriptors for a moment.
            return [one for one in comparison.differences(images, pids) if one.fd in (-1, 7, 8, 9)]

        assert found() == []
        inside(home, branch, "exec 7<&- 8</etc/shells; read -r line <&9; kill %1; wait %1; sleep 1002 &")
        shell = int(inside(home, branch, "echo $$"))
        [closed, replaced, moved] = [one for one in found() if one.pid == shell]
        assert (closed.fd, closed.restored) == (7, "closed")
        assert (replaced.captured, replaced.restored) == ("file /etc/group", "/etc/shells")
        assert (moved.fd, moved.captured) == (9, "/etc/hosts at byte 0")
        rest = [(one.captured, one.restored) for one in found() if one.pid != shell]
        assert rest == [("process sleep", "missing"), ("no process", "sleep")]
    finally:
        os.close(images)
