"""Supervisor and daemon replace each other after kills, as docs/protocol.md, section 5, describes."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.raw_client import RawClient
from tests.daemon.supervised_home import DAEMON, SupervisedHome, ending, facts_of, kill, supervised_home, write_config
from tests.waiting import PATIENCE_S, wait_until
from waypoint.daemon.siblings import MAX_DELAY_S, MAX_QUICK_DEATHS, QUICK_DEATH_S, Patience
from waypoint.linux.tasks import pidfd

pytestmark = pytest.mark.privileged


@pytest.fixture
def home(tmp_path: Path) -> Iterator[SupervisedHome]:
    with supervised_home(tmp_path / "home") as home:
        yield home


def test_the_socket_listens_when_the_supervisor_reports_ready(home: SupervisedHome) -> None:
    assert home.start() == f"ready {home.supervisor_pid()}"
    assert home.ask("GET", "/v1/status").status == 200


def test_supervisor_and_daemon_inherit_nothing_from_the_caller(home: SupervisedHome) -> None:
    read, write = os.pipe()
    env = {"SECRET_TOKEN": "hunter2", "WAYPOINT_CRIU": "/opt/criu", "LC_ALL": "C.UTF-8"}
    home.start(env, pass_fds=[write])
    os.close(write)
    assert os.read(read, 1) == b""  # no process has inherited the other end
    os.close(read)
    supervisor, daemon = facts_of(home.supervisor_pid()), facts_of(home.daemon_pid())
    log = str(home.folder / "daemon.log")
    for facts in (supervisor, daemon):
        assert (facts["tty"], facts["cwd"]) == (0, "/")
        assert facts["session"] == home.supervisor_pid()
        files = facts["files"]
        assert isinstance(files, dict)
        assert (files[0], files[1], files[2]) == ("/dev/null", log, log)
    assert isinstance(daemon["environ"], bytes)
    assert b"hunter2" not in daemon["environ"]
    assert {b"WAYPOINT_CRIU=/opt/criu", b"LC_ALL=C.UTF-8"} <= set(daemon["environ"].split(b"\0"))
    assert stat.S_IMODE(os.stat(log).st_mode) == 0o600


def test_the_daemon_has_a_mount_namespace_of_its_own(home: SupervisedHome) -> None:
    home.start()
    assert os.readlink(f"/proc/{home.daemon_pid()}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
    assert os.readlink(f"/proc/{home.supervisor_pid()}/ns/mnt") == os.readlink("/proc/self/ns/mnt")


def test_a_killed_daemon_is_replaced_at_once(home: SupervisedHome) -> None:
    home.start()
    first = home.daemon_pid()
    kill(first)
    assert home.daemon_pid() != first


def test_a_killed_supervisor_is_replaced_by_the_daemon(home: SupervisedHome) -> None:
    home.start()
    daemon, first = home.daemon_pid(), home.supervisor_pid()
    kill(first)
    home.until(lambda: home.supervisor_pid() != first)
    assert home.daemon_pid() == daemon
    # The new supervisor replaces the daemon too, although the daemon is not its child.
    kill(daemon)
    assert home.daemon_pid() != daemon


def mount_namespace(pid: int | str) -> int:
    return os.stat(f"/proc/{pid}/ns/mnt").st_ino


def test_a_new_supervisor_is_outside_of_the_daemons_mount_namespace(home: SupervisedHome) -> None:
    home.start()
    for _ in range(2):
        home.daemon_pid()  # wait until the daemon runs
        first = home.supervisor_pid()
        kill(first)
        home.until(lambda first=first: home.supervisor_pid() != first)  # type: ignore[misc]
        home.until(lambda: f"supervisor {home.supervisor_pid()} watches" in home.log())
        outside = mount_namespace("self")
        assert mount_namespace(home.supervisor_pid()) == outside
        daemon = home.daemon_pid()
        assert mount_namespace(daemon) != outside
        kill(daemon)
        assert mount_namespace(home.daemon_pid()) != outside


@pytest.mark.soak(part="outages")
def test_supervisor_and_daemon_can_be_killed_repeatedly(home: SupervisedHome) -> None:
    home.start()
    for _ in range(3):
        daemon, supervisor = home.daemon_pid(), home.supervisor_pid()
        home.until(lambda: "watches" in home.log() or "started" in home.log())
        kill(supervisor)
        home.until(lambda supervisor=supervisor: home.supervisor_pid() != supervisor)  # type: ignore[misc]
        kill(daemon)
        assert home.daemon_pid() != daemon


def test_after_both_were_killed_a_new_start_finds_the_socket_stale(home: SupervisedHome) -> None:
    home.start()
    first = home.daemon_pid()
    os.kill(first, signal.SIGSTOP)  # otherwise the daemon would start another supervisor before it is killed
    kill(home.supervisor_pid(), first)
    with pytest.raises(ConnectionRefusedError):
        RawClient(home.socket)
    assert home.start().startswith("ready ")
    assert home.daemon_pid() != first


def test_a_stale_socket_is_replaced(home: SupervisedHome) -> None:
    home.runtime.mkdir(parents=True, mode=0o711)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(home.socket)
    home.start()
    assert home.ask("GET", "/v1/status").status == 200


def test_all_requests_are_answered_although_the_daemon_is_killed_meanwhile(home: SupervisedHome) -> None:
    home.start()
    answers: list[int] = []
    gate = threading.Barrier(51)

    def ask() -> None:
        gate.wait()
        answers.extend(home.ask("GET", "/v1/status").status for _ in range(4))

    clients = [threading.Thread(target=ask) for _ in range(50)]
    for client in clients:
        client.start()
    victim = home.daemon_pid()
    gate.wait()
    kill(victim)
    for client in clients:
        client.join()
    assert answers == [200] * 200


def test_of_several_supervisors_started_at_once_one_serves_and_all_report_it(home: SupervisedHome) -> None:
    started = [home.spawn() for _ in range(8)]
    reports = set()
    for process in started:
        with process:
            assert process.stdout is not None
            reports.add(process.stdout.read().strip())
    assert reports == {f"ready {home.supervisor_pid()}"}
    home.ask("GET", "/v1/status")
    assert home.log().count("] daemon ") == 1


def test_a_new_supervisor_keeps_the_running_daemon_and_its_socket(home: SupervisedHome) -> None:
    home.start()
    daemon, supervisor = home.daemon_pid(), home.supervisor_pid()
    os.kill(supervisor, signal.SIGKILL)
    assert home.start().startswith("ready ")
    home.until(lambda: home.supervisor_pid() != supervisor)
    assert home.daemon_pid() == daemon


def test_a_stop_ends_both_and_removes_the_socket_before_its_answer(home: SupervisedHome) -> None:
    home.start()
    with ending(home.supervisor_pid(), home.daemon_pid()):
        assert home.ask("POST", "/v1/daemon/stop").json == {}
        assert not os.path.exists(home.socket)
    assert "ends: stopped" in home.log()


@pytest.mark.parametrize("which", ["supervisor_pid", "daemon_pid"])
def test_sigterm_to_either_stops_both(home: SupervisedHome, which: str) -> None:
    home.start()
    with ending(home.supervisor_pid(), home.daemon_pid()):
        os.kill(getattr(home, which)(), signal.SIGTERM)
    assert not os.path.exists(home.socket)


def test_stopping_works_after_the_supervisor_was_replaced(home: SupervisedHome) -> None:
    home.start()
    home.daemon_pid()  # wait until the daemon runs
    first = home.supervisor_pid()
    kill(first)
    home.until(lambda: home.supervisor_pid() != first)
    with ending(home.supervisor_pid(), home.daemon_pid()):
        home.ask("POST", "/v1/daemon/stop")
    assert not os.path.exists(home.socket)


def test_a_start_right_after_a_stop_waits_for_the_old_daemon_to_end(home: SupervisedHome) -> None:
    home.start()
    for _ in range(3):
        first = home.daemon_pid()
        home.ask("POST", "/v1/daemon/stop")
        assert home.start().startswith("ready ")
        assert home.daemon_pid() != first


def test_a_supervisor_whose_socket_was_removed_is_replaced(home: SupervisedHome) -> None:
    home.start()
    supervisor, daemon = home.supervisor_pid(), home.daemon_pid()
    with ending(supervisor, daemon):
        os.unlink(home.socket)
        assert home.start() == f"ready {home.supervisor_pid()}"
    assert home.supervisor_pid() != supervisor
    assert home.daemon_pid() != daemon


def test_a_second_daemon_of_a_home_refuses_to_start(home: SupervisedHome) -> None:
    home.start()
    first = home.daemon_pid()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home.folder / "other.sock"))
        listener.listen()
        self_fd = pidfd.open(os.getpid())
        fds = {"--listen-fd": listener.fileno(), "--supervisor-fd": self_fd}
        options = [word for name, fd in fds.items() for word in (name, str(fd))]
        command = [sys.executable, "-I", "-S", str(DAEMON), str(home.folder), *options]
        second = subprocess.run(command, pass_fds=fds.values(), stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
        os.close(self_fd)
    assert (second.returncode, second.stderr.rpartition("] ")[2]) == (75, "another daemon serves this home\n")
    assert home.daemon_pid() == first


def test_the_reason_why_a_home_cannot_be_served_is_sent_to_clients(home: SupervisedHome) -> None:
    (home.folder / "refuses").touch()
    home.start()
    with ending(home.supervisor_pid()):
        answer = home.ask("GET", "/v1/sessions")
        assert (answer.status, answer.json["error"]["next"]) == (501, "remove the file")
    assert not os.path.exists(home.socket)


def test_a_repaired_home_is_served_to_the_next_client(home: SupervisedHome) -> None:
    (home.folder / "refuses").touch()
    home.start()
    assert home.ask("GET", "/v1/sessions").status == 501
    (home.folder / "refuses").unlink()
    home.start()
    assert home.ask("GET", "/v1/sessions").status == 200


@pytest.mark.soak(part="outages")
def test_the_supervisor_gives_up_a_daemon_that_always_dies_and_logs_it(home: SupervisedHome) -> None:
    (home.folder / "dies").touch()
    home.start()
    with ending(home.supervisor_pid(), deadline_s=60.0):  # 16 s, most of it delays between the starts
        pass
    assert not os.path.exists(home.socket)
    assert "the daemon died 10 times" in home.log()


@pytest.mark.soak(part="outages")
def test_the_delay_before_the_next_daemon_grows_also_for_daemons_that_fail_late(home: SupervisedHome) -> None:
    (home.folder / "dies-late").touch()
    home.start()
    wait_until(lambda: "starting the next daemon in 0.2 s" in home.log(), "three daemons have died")
    (home.folder / "dies-late").unlink()
    assert home.ask("GET", "/v1/status").status == 200


def test_a_missing_home_is_reported_as_an_error(home: SupervisedHome) -> None:
    home.folder.rmdir()
    assert home.start().startswith("error ")
    assert not home.runtime.exists()
    home.folder.mkdir()


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_config_json_is_reported_as_an_error(home: SupervisedHome, content: str) -> None:
    (home.folder / "config.json").write_text(content)
    assert home.start().startswith("error ")
    assert "cannot start" in home.log()


def test_config_json_sets_the_owner_and_group_of_the_socket(home: SupervisedHome) -> None:
    write_config(home, owner_uid=12345)
    home.start()
    found = os.stat(home.socket)
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (12345, 0o600)
    with ending(home.supervisor_pid()):
        home.ask("POST", "/v1/daemon/stop")
    write_config(home, owner_uid=0, group_gid=54321)
    home.start()
    found = os.stat(home.socket)
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 54321, 0o660)
    assert stat.S_IMODE(home.runtime.stat().st_mode) == 0o711


def test_a_large_log_is_moved_aside(home: SupervisedHome) -> None:
    (home.folder / "daemon.log").write_bytes(b"x" * (4 << 20) + b"y")
    home.start()
    home.ask("GET", "/v1/status")
    assert (home.folder / "daemon.log.1").stat().st_size == (4 << 20) + 1
    assert len(home.log()) < 1000


def test_only_quick_deaths_in_a_row_use_up_the_supervisors_patience() -> None:
    patience = Patience()
    assert [patience.delay_after(0.5) for _ in range(8)] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, MAX_DELAY_S]
    assert patience.delay_after(QUICK_DEATH_S) == 0
    assert [patience.delay_after(0.0) for _ in range(MAX_QUICK_DEATHS)][-1] is None
