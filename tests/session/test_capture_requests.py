"""Impossible and concurrent checkpoints, forks and restores are refused with an exit code, or wait for each other."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest

from tests.answers import unusual
from tests.collecting import collecting
from tests.daemon.raw_client import RawClient
from tests.homes import Completed, Home, open_home
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.waiting import PATIENCE_S, wait_until
from waypoint.capture.steps import Step
from waypoint.client import Client, Session
from waypoint.linux.calls import machine
from waypoint.terminal.exec.ending import MARGIN_S

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]


@pytest.fixture(scope="module")
def home(pauses: Pauses) -> Iterator[Home]:
    with open_home("requests") as fresh:
        fresh.must("daemon", "stop")
        fresh.must("ps", env=pauses.env)
        yield fresh


@pytest.fixture
def main(home: Home, client: Client) -> Iterator[Session]:
    """A live session on branch main with a shell variable. After the test, all sessions and names are removed."""
    session = client.start("main")
    session.exec("kept=yes")
    yield session
    home.must("stop", "--all", "--discard")
    names = {name for capture in client.history.log(all=True) for name in capture.names}
    names |= {row.name for row in client.history.branches()}
    if names:
        client.history.remove(*names)
    ledger.check(home)


def together(*calls: Callable[[], Completed]) -> list[Completed]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return [begun.result() for begun in [threads.submit(call) for call in calls]]


def refused(done: Completed, code: int, said: str) -> None:
    assert (done.code, done.stdout) == (code, ""), done
    assert said in done.stderr
    assert done.stderr.startswith("waypoint: cannot ") or code == 2


def operations(client: Client) -> int:
    return len(client.history.operations())


REFUSED: list[tuple[list[str], int, str]] = [
    (["checkpoint", "taken"], 4, "checkpoint of this name"),
    (["checkpoint", "main"], 4, "branch of this name"),
    (["checkpoint", "main", "--force"], 4, "branch of this name"),
    (["checkpoint", "taken/below"], 4, "taken exists"),
    (["checkpoint", "../x"], 2, "../x"),
    (["checkpoint", "x.lock"], 2, "x.lock"),
    (["checkpoint", ""], 2, ""),
    (["checkpoint", "n" * 101], 2, ""),
    (["checkpoint", "new", "-b", "nosuch"], 2, "no such branch\n"),
    (["exec", "-b", "daed", "true"], 125, "no such branch; did you mean dead?"),
    (["exec", "-b", "taekn", "true"], 125, "no such branch\n"),  # `taken` is a checkpoint
    (["stop", "daed"], 2, "no such branch; did you mean dead?"),
    (["branch", "rename", "daed", "new"], 2, "no such branch; did you mean dead?"),
    (["branch", "delete", "daed"], 2, "no such branch; did you mean dead?"),
    (["list", "-b", "daed"], 2, "no such branch; did you mean dead?"),
    (["checkpoint", "new", "-b", "taken"], 2, "is a checkpoint, not a branch"),
    (["checkpoint", "new", "-b", "dead"], 4, "no running session"),
    (["checkpoint", "new", "--tier", "best"], 2, "best"),
    (["restore", "taekn"], 2, "nothing has this name; did you mean taken?"),
    (["restore", "ffff"], 2, "nothing has this name"),
    (["restore", "taken", "--new", "dead"], 4, "branch of this name"),
    (["fork", "nosuch", "f1"], 2, "nothing has this name"),
    (["fork", "taken", "main"], 4, "branch of this name"),
    (["fork", "taken", "f1", "dead"], 4, "branch of this name"),
    (["fork", "taken", "f1", "taken"], 4, "checkpoint of this name"),
    (["fork", "taken", "f1", "f1"], 2, "f1 is given twice"),
    (["fork", "taken", "f1", "f1/a"], 2, "cannot both exist"),
    (["fork", "taken", "-n", "0"], 2, ""),
    (["fork", "taken", "-n", "257"], 2, "256"),
    (["fork", "taken", "f1", "-n", "2"], 2, "cannot be combined"),
    (["stop", "main", "--checkpoint", "new", "--discard"], 2, "leave out"),
    (["stop", "main", "--checkpoint", "taken"], 4, "checkpoint of this name"),
    (["shell", "taken", "-d"], 4, "checkpoint of this name"),
    (["branch", "rename", "main", "other"], 4, "running session"),
    (["branch", "rename", "dead", "taken"], 4, "checkpoint of this name"),
    (["rm", "main"], 4, "running session"),
    (["rm", "taken", "nosuch"], 2, "nothing has this name"),
    (["undo", "9999"], 2, "9999"),
]


def test_impossible_requests_are_refused_and_change_nothing(home: Home, client: Client, main: Session) -> None:
    main.checkpoint("taken")
    client.start("dead").stop()
    before = operations(client)
    with collecting() as row:
        for argv, code, said in REFUSED:
            with row(argv):
                done = home.cli(*argv)
                assert (done.code, done.stdout) == (code, ""), done
                assert said in done.stderr
                # Only `checkpoint` has the option.
                assert done.stderr.count("--force") == done.stderr.count("waypoint checkpoint --force"), done
                assert argv[0] in ("checkpoint", "stop") or "--force" not in done.stderr, done
    assert operations(client) == before
    assert {row.name for row in client.history.branches()} == {"dead", "main"}
    assert main.exec("echo $kept").output == b"yes\n"


def test_of_two_concurrent_checkpoints_of_one_name_one_is_made(home: Home, client: Client, main: Session) -> None:
    done = together(lambda: home.cli("checkpoint", "same"), lambda: home.cli("checkpoint", "same"))
    assert sorted(one.code for one in done) == [0, 4]
    assert "checkpoint of this name" in done[0].stderr + done[1].stderr
    ledger.check(home)


def test_a_name_taken_during_a_slow_checkpoint_is_not_moved(
    home: Home, client: Client, main: Session, pauses: Pauses
) -> None:
    client.start("other")
    with pauses.armed(Step.SEALED) as armed, ThreadPoolExecutor(1) as threads:
        slow = threads.submit(home.cli, "checkpoint", "same", "-b", "other")
        assert armed.wait() == Step.SEALED
        quick = home.cli("checkpoint", "same")
        armed.go_on()
        refused(slow.result(), 4, "checkpoint of this name")
    assert quick.code == 0
    assert client.history.show("same").branch == "main"
    assert client.session("other").exec("echo on").output == b"on\n"
    ledger.check(home)


def test_concurrent_checkpoints_of_one_branch_are_made_one_after_the_other(
    home: Home, client: Client, main: Session
) -> None:
    done = together(*(lambda n=n: home.cli("checkpoint", f"c{n}", "--tier", "live", "--anew") for n in range(3)))
    assert [one.code for one in done] == [0, 0, 0]
    line = client.history.log("main")
    assert [len(capture.parents) for capture in line] == [1, 1, 0]
    assert {name for capture in line for name in capture.names} == {"c0", "c1", "c2", "main"}


def test_a_restore_ends_a_command_in_flight_with_a_reason(home: Home, client: Client, main: Session) -> None:
    main.checkpoint("before")
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(home.cli, "exec", "--", "touch /srv/begun; sleep 1000")
        wait_until(lambda: main.run("test", "-e", "/srv/begun").exit == 0, "the command has begun")
        home.must("restore", "before")
        done = busy.result(PATIENCE_S)
    assert (done.code, done.stdout) == (125, "")
    assert done.stderr.startswith("waypoint: ")
    assert main.exec("echo $kept; test -e /srv/begun || echo gone").output == b"yes\ngone\n"


def test_a_checkpoint_during_a_stop_reports_that_no_session_is_live(
    home: Home, client: Client, main: Session, pauses: Pauses
) -> None:
    with pauses.armed(Step.ENDED) as armed, ThreadPoolExecutor(2) as threads:
        stop = threads.submit(home.cli, "stop", "main")
        assert armed.wait() == Step.ENDED
        checkpoint = threads.submit(home.cli, "checkpoint", "late")
        fork = home.cli("fork", "nosuch", "f1")
        armed.go_on()
        assert stop.result().code == 0
        refused(checkpoint.result(), 4, "no running session")
    assert fork.code == 2


@pytest.mark.parametrize("tier", ["live", "files"])
@pytest.mark.parametrize("step", [Step.FROZEN, Step.DRAINED, Step.SEALED])
def test_a_session_that_ends_during_a_capture_is_ended_after_it(
    home: Home, client: Client, main: Session, pauses: Pauses, step: Step, tier: str
) -> None:
    main.exec("echo work > /srv/work")
    with pauses.armed(step) as armed, ThreadPoolExecutor(1) as threads:
        checkpoint = threads.submit(home.cli, "checkpoint", "late", "--tier", tier)
        assert armed.wait() == step
        (pid,) = [row["pid"] for row in home.must("ps", "--json").json()]
        os.kill(pid, signal.SIGKILL)
        if (step, tier) != (Step.SEALED, "live"):  # CRIU still traces the processes, so pid 1 cannot end
            wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "pid 1 has ended")
        armed.go_on()
        done = checkpoint.result()
    wait_until(lambda: home.must("ps", "--json").json() == [], "the session has ended")
    if step == Step.SEALED:  # the capture was complete before
        assert (done.code, done.stderr) == (0, "")
        assert client.history.show("late").tier == tier
    else:
        refused(done, 4, "its session has just ended")
        assert "\n  next: its files are kept: 'waypoint shell main' starts a session with them\n" in done.stderr
    home.must("shell", "main", "-d")
    assert client.session("main").exec("cat /srv/work").output == b"work\n"


def test_a_cancelled_gc_can_be_started_again(home: Home, client: Client, main: Session, pauses: Pauses) -> None:
    for name in ("one", "two", "three", "tip"):
        main.checkpoint(name)
    client.history.remove("one", "two", "three")
    with pauses.armed(Step.REMOVING) as armed, ThreadPoolExecutor(1) as threads:
        gc = threads.submit(home.cli, "gc", "--keep-operations", "0")
        assert armed.wait() == Step.REMOVING
        again = home.cli("gc")
        refused(again, 4, "of this kind is already running")
        (running,) = [job.id for job in client.jobs.list() if job.state == "running"]
        with RawClient(f"{home.runtime}/api.sock") as canceller:
            canceller.send(f"POST /v1/jobs/{running}/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
            client.status()  # once it answers, the daemon has also read the request sent before
            armed.go_on()
            assert canceller.answer().json["job"]["state"] == "cancelled"
        done = gc.result()
    refused(done, 4, "it was cancelled\n  next: start it again\n")
    home.must("gc", "--keep-operations", "0")  # also finishes the cancelled gc
    ledger.check(home)
    assert main.exec("echo $kept").output == b"yes\n"


def test_requests_wait_for_the_end_of_a_session_that_is_ending(
    home: Home, client: Client, main: Session, pauses: Pauses
) -> None:
    with pauses.armed(Step.ENDED) as armed, ThreadPoolExecutor(3) as threads:
        main.exec("echo work > /srv/work")
        threads.submit(home.cli, "exec", "--", "exit 3")
        assert armed.wait() == Step.ENDED
        checkpoint = threads.submit(home.cli, "checkpoint", "late")
        fork = threads.submit(home.cli, "fork", "main", "f1")
        armed.go_on()
        refused(checkpoint.result(), 4, "no running session")
        assert fork.result().code == 0
    assert client.session("f1").exec("cat /srv/work").output == b"work\n"


def test_a_stop_during_a_restore_stops_the_restored_session(
    home: Home, client: Client, main: Session, pauses: Pauses
) -> None:
    main.checkpoint("before")
    with pauses.armed(Step.RESTORED) as armed, ThreadPoolExecutor(2) as threads:
        restore = threads.submit(home.cli, "restore", "before")
        assert armed.wait() == Step.RESTORED
        begun = threading.Event()

        def stop() -> Completed:
            begun.set()
            return home.cli("stop", "--files", "main")

        stopped = threads.submit(stop)
        begun.wait()
        armed.go_on()
        assert restore.result().code == 0
        assert stopped.result().code == 0
    assert client.sessions() == []
    ledger.check(home)


def test_a_parked_branch_can_be_forked_and_started(home: Home, client: Client, main: Session) -> None:
    main.exec("sleep 1000 &")
    main.checkpoint("parked", park=True)
    assert client.sessions() == []
    for number, name in enumerate(("parked", "main")):
        (copy,) = client.fork(name, f"f{number}")
        assert copy.exec("echo $kept; jobs %1").output.splitlines()[0] == b"yes"
        assert b"Running" in copy.exec("jobs").output
    again = client.start("main")
    assert again.exec("echo $kept").output == b"yes\n"


def test_a_session_without_a_hooked_shell_is_captured_and_forked(home: Home, client: Client, main: Session) -> None:
    script = "n=0; while sleep 0.05; do n=$((n + 1)); echo $n > /srv/n; done"
    plain = client.start("plain", command=["sh", "-c", script])
    wait_until(lambda: plain.run("test", "-s", "/srv/n").exit == 0, "the program counts")
    assert plain.checkpoint("counting").tier == "live"
    (copy,) = client.fork("counting", "copy")
    before = copy.run("cat", "/srv/n").stdout
    wait_until(lambda: copy.run("cat", "/srv/n").stdout not in (b"", before), "the copy counts")
    plain.restore("counting")
    before = plain.run("cat", "/srv/n").stdout
    wait_until(lambda: plain.run("cat", "/srv/n").stdout not in (b"", before), "the restored program counts")


@pytest.mark.soak(part="timing")
def test_a_timeout_during_a_capture_takes_effect_after_the_capture(
    client: Client, main: Session, pauses: Pauses
) -> None:
    timeout_s = 3.0
    text = "sh -c 'trap \"echo cleaned up; exit 3\" INT; echo >/srv/begun; while :; do sleep 0.05; done'"
    with ThreadPoolExecutor(2) as threads, pauses.armed(Step.FROZEN) as armed:
        begun = time.monotonic()
        ran = threads.submit(main.exec, text, timeout_s=timeout_s)
        wait_until(lambda: main.run("test", "-e", "/srv/begun").exit == 0, "the command runs")
        made = threads.submit(main.checkpoint, "while-it-ran")
        assert armed.wait() == Step.FROZEN
        assert time.monotonic() < begun + timeout_s, "the session was frozen too late for this test"
        assert not wait([ran, made], timeout_s + MARGIN_S + 1, return_when=FIRST_COMPLETED).done
        armed.go_on()
        assert (made.result().tier, unusual(made.result().degraded)) == ("live", [])
        assert (ran.result().exit, ran.result().output) == (124, b"cleaned up\n")
    (copy,) = client.fork("while-it-ran", "copy")
    assert copy.exec("echo $kept", wait_prompt_s=PATIENCE_S).output == b"yes\n"


def test_copies_that_need_more_memory_than_the_machine_has_are_refused(home: Home, main: Session) -> None:
    """Each copy alone would fit."""
    for_each = machine.available_memory_bytes() // 200
    hold = f"import time; kept = bytes([1]) * {for_each}; open('/srv/held', 'w'); time.sleep(1000)"
    main.exec(f'python3 -c "{hold}" & until [ -e /srv/held ]; do sleep 0.01; done')
    main.checkpoint("large", tier="live")
    done = home.cli("fork", "large", *(f"copy{number}" for number in range(200)))
    refused(done, 125, "200 copies of its processes need")
    assert "\n  next: end other sessions, or make fewer copies; to restore only the files: " in done.stderr
    [fork] = Client(home.path).fork("large", "alone")
    assert fork.exec("echo $kept").output == b"yes\n"


def test_operations_are_undone_and_conflicts_are_refused(home: Home, client: Client, main: Session) -> None:
    main.checkpoint("one")
    first = client.history.show("main").capture
    main.exec("kept=changed")
    main.checkpoint("one", force=True)
    client.fork("one", "f1", "f2")
    client.history.undo()  # the forks
    assert [row.branch for row in client.sessions()] == ["main"]
    assert {row.name for row in client.history.branches()} == {"main"}
    client.history.undo()  # the move of the checkpoint
    assert client.history.show("one").capture == first
    main.restore("one")
    assert main.exec("echo $kept").output == b"yes\n"
    client.history.undo()  # the restore
    assert main.exec("echo $kept").output == b"changed\n"
    main.stop()
    client.history.undo()  # the stop
    assert client.session("main").exec("pwd").exit == 0
    client.start("other").stop()
    client.history.rename("other", "elsewhere")
    number = client.history.operations(1)[0].number
    client.history.remove("elsewhere")
    refused(home.cli("undo", str(number)), 4, "has been changed since")
    client.history.undo()
    client.history.undo()
    assert {row.name for row in client.history.branches()} == {"main", "other"}
    client.session("main").stop(discard=True)
    discarded = client.history.operations(1)[0].number
    refused(home.cli("undo", str(discarded)), 4, "deleted")
    ledger.check(home)


SHOW = "cd /srv/f; find . -printf '%p %y %m %n %s %T@\\n' | sort; find . -type f | sort | xargs cat"


def test_files_that_change_while_a_restore_of_files_is_prepared_are_restored(
    client: Client, main: Session, pauses: Pauses
) -> None:
    main.exec("mkdir -p /srv/f/d/deep; cd /srv/f; for i in a b c d/e d/deep/f; do echo $i > $i; done; ln a a2; cd /")
    before = main.run("sh", "-c", SHOW).stdout
    main.checkpoint("early", force=True)
    main.exec("echo new > /srv/f/b; rm /srv/f/c; mv /srv/f/d /srv/f/moved; rm /srv/f/a2; touch /srv/f/a2")
    with ThreadPoolExecutor(1) as threads, pauses.armed(Step.PREPARED) as armed:
        restoring = threads.submit(main.restore, "early", only="files")
        armed.wait()
        late = "echo late > a; echo x > late; rm b; mkdir c; echo y > c/y; mv moved/e moved/z; mkdir d; echo q > d/e"
        main.run("sh", "-c", f"cd /srv/f; {late}; rm -r moved/deep; ln a2 a3; chmod 700 .")
        armed.go_on()
        restoring.result(PATIENCE_S)
    assert main.run("sh", "-c", SHOW).stdout == before
