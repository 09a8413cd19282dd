"""Parts of Waypoint or of a session are killed: the command line shows what survives."""

import hashlib
import itertools
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.collecting import collecting
from tests.homes import Home, open_home
from tests.processes_now import name_of, runs
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.tasks import lock_holder

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay")]

MIB = 1 << 20


def daemon_pid(home: Home) -> int:
    pid = home.must("daemon", "status", "--json").json()["pid"]
    assert isinstance(pid, int)
    return pid


def supervisor_pid(home: Home) -> int:
    return lock_holder.signed_by(str(home.runtime / "supervisor.lock"))


def facts(home: Home, branch: str = "main") -> dict[str, object]:
    found = {row["branch"]: row for row in home.must("ps", "--json").json()}
    return found.get(branch, {})


def host_pid(home: Home, branch: str, name: str) -> int:
    """Return the pid on the host of the session's process called `name`."""
    group = next(Path("/sys/fs/cgroup").rglob(f"waypoint/{home.id}/{facts(home, branch)['id']}/cgroup.procs"))
    for pid in group.read_text().split():
        if name_of(int(pid)) == name:
            return int(pid)
    raise AssertionError(f"no process {name} in {branch}")


@pytest.fixture
def live() -> Iterator[Home]:
    """A new home with a live session on branch main."""
    with open_home() as home:
        home.must("shell", "-d", "main")
        home.must("exec", "--", "PS1='ready> '; kept=yes")
        yield home


def test_a_killed_daemon_is_replaced_and_the_session_continues(live: Home) -> None:
    live.must("exec", "--", "cd /srv; sleep 1000 &")
    before = facts(live)
    for _kill in range(3):
        os.kill(daemon_pid(live), signal.SIGKILL)
        assert (
            live.must("exec", "--", "echo $kept $PWD; jobs").stdout
            == "yes /srv\n[1]+  Running                 sleep 1000 &\n"
        )
    after = facts(live)
    assert (after["id"], after["pid"]) == (before["id"], before["pid"])


@pytest.mark.soak(part="floods")
def test_a_command_loses_no_output_when_its_daemon_is_killed_several_times(live: Home) -> None:
    size = int(os.environ.get("WAYPOINT_TEST_FLOOD_MIB", "200")) * MIB
    person = pexpect.spawn(live.argv("attach")[0], live.argv("attach")[1:], env=live.env, timeout=PATIENCE_S)
    drain = subprocess.Popen(["cat"], stdin=person.child_fd, stdout=subprocess.DEVNULL)
    try:
        with live.background(
            "exec", "--", f"yes | head -c {size}; echo the end; exit_code() {{ return 7; }}; exit_code"
        ) as client:
            assert client.stdout is not None
            digest, count, tail, next_kill = hashlib.sha256(), 0, b"", 4 * MIB
            while chunk := client.stdout.read(MIB):
                digest.update(chunk)
                count += len(chunk)
                tail = (tail + chunk)[-64:]
                if count >= next_kill:
                    os.kill(daemon_pid(live), signal.SIGKILL)
                    next_kill += size // 4
            code = client.wait()
        assert code == 7
        assert tail.endswith(b"y\nthe end\n")
        wanted = hashlib.sha256()
        for _block in range(size // MIB):
            wanted.update(b"y\n" * (MIB // 2))
        wanted.update(b"the end\n")
        assert count == size + len(b"the end\n")
        assert digest.digest() == wanted.digest()
        assert live.must("exec", "--", "echo $kept").stdout == "yes\n"
    finally:
        drain.kill()
        drain.wait()
        person.close(force=True)


def test_an_attached_terminal_reconnects_after_the_daemon_was_killed(live: Home) -> None:
    argv = live.argv("attach")
    person = pexpect.spawn(argv[0], argv[1:], env=live.env, timeout=PATIENCE_S)
    try:
        person.expect("ready> ")
        os.kill(daemon_pid(live), signal.SIGKILL)
        live.must("exec", "--", "true")
        person.sendline("echo back$((40 + 2))")
        person.expect("back42\r\n")
        person.send("\x1dd")
        person.expect(pexpect.EOF)
    finally:
        person.close(force=True)


def test_a_killed_client_leaves_the_command_running(live: Home) -> None:
    with live.background(
        "exec", "--", "echo begun; while [ ! -e /tmp/go-on ]; do sleep 0.05; done; echo done > /tmp/done"
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"begun\n"
        client.kill()
    live.must("run", "--", "touch", "/tmp/go-on")
    assert live.must("exec", "--", "cat /tmp/done").stdout == "done\n"


def test_an_exec_that_ends_the_session_is_reported_and_its_text_is_not_kept(live: Home) -> None:
    with collecting() as row:
        for text, code in (("exec sh -c 'exit 3'", 3), ("kill -KILL $$", 137), ("exec false", 1)):
            with row(text):
                live.must("shell", "-d", "main")
                done = live.cli("exec", "--", f"{text}; : a-secret")
                said = "waypoint: the session of main has ended with its shell; to continue: waypoint shell main\n"
                assert (done.code, done.stderr) == (code, said)
                wait_until(lambda: not facts(live), "the session has ended")
                pool = Path(f"/proc/{daemon_pid(live)}/root{live.path}/pool")
                kept = [path.name for path in pool.rglob("run/waypoint/*")]
                assert "exit" in kept
                assert [name for name in kept if name == "req" or name.startswith(("cmd.", "in."))] == []
    assert "bug" not in (live.path / "daemon.log").read_text()


def test_a_killed_shell_or_init_ends_the_session_and_its_files_are_kept(live: Home) -> None:
    live.must("exec", "--", "echo work > /srv/work; sleep 1000 &")
    os.kill(host_pid(live, "main", "bash"), signal.SIGKILL)
    wait_until(lambda: not facts(live), "the session has ended")
    rows = live.must("ps", "--all", "--json").json()
    assert [(row["branch"], row["state"]) for row in rows] == [("main", "ended")]
    live.must("shell", "-d", "main")
    assert live.must("exec", "--", "cat /srv/work; echo [$kept]").stdout == "work\n[yes]\n"
    pid = facts(live)["pid"]
    assert isinstance(pid, int)
    with live.background("exec", "--", "echo begun; sleep 1000") as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"begun\n"
        os.kill(pid, signal.SIGKILL)
        assert client.wait(PATIENCE_S) == 125
    wait_until(lambda: not facts(live), "the session has ended")
    live.must("shell", "-d", "main")
    assert live.must("exec", "--", "cat /srv/work").stdout == "work\n"


def test_a_session_that_died_without_a_daemon_is_listed_as_ended_with_its_files(live: Home) -> None:
    live.must("exec", "--", "echo work > /srv/work")
    pid = facts(live)["pid"]
    assert isinstance(pid, int)
    live.must("daemon", "stop")
    assert Path(f"/proc/{pid}").exists()
    os.kill(pid, signal.SIGKILL)
    rows = live.must("ps", "--all", "--json").json()
    assert [(row["branch"], row["state"]) for row in rows] == [("main", "ended")]
    live.must("shell", "-d", "main")
    assert live.must("exec", "--", "cat /srv/work").stdout == "work\n"


def test_after_a_reboot_sessions_are_reported_as_lost_and_their_files_are_kept(live: Home) -> None:
    """The test simulates a reboot: it kills all processes of the home and removes the runtime folder."""
    live.must("shell", "-d", "other")
    live.must("exec", "-b", "other", "--", "echo work > /srv/work; sync")
    pids = [supervisor_pid(live), daemon_pid(live)]
    pids += [row["pid"] for row in live.must("ps", "--json").json()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(runs(pid) for pid in pids), "all processes have ended")
    subprocess.run(["rm", "-rf", str(live.runtime)], check=True)
    rows = live.must("ps", "--all", "--json").json()
    assert [(row["branch"], row["state"], row["pid"]) for row in rows] == [
        ("main", "lost", None),
        ("other", "lost", None),
    ]
    live.must("shell", "-d", "other")
    assert live.must("exec", "-b", "other", "--", "cat /srv/work").stdout == "work\n"


@pytest.mark.soak(part="faults")
def test_a_start_without_a_free_descriptor_is_refused(live: Home) -> None:
    daemon = daemon_pid(live)
    former = resource.prlimit(daemon, resource.RLIMIT_NOFILE)
    used = {int(path.name) for path in Path(f"/proc/{daemon}/fd").iterdir()}
    free = (number for number in itertools.count() if number not in used)
    resource.prlimit(daemon, resource.RLIMIT_NOFILE, (list(itertools.islice(free, 4))[-1], former[1]))
    done = live.cli("shell", "more", "-d")
    resource.prlimit(daemon, resource.RLIMIT_NOFILE, former)
    assert done.code == 4
    assert "cannot start more sessions (1): the daemon needs 80 descriptors" in done.stderr
    live.must("shell", "more", "-d")
