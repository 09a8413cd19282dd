"""Checkpoints, forks and restores that cannot be, or that meet others: each says so, with its exit code, and changes
nothing.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest

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
    """A live session on branch main with a variable. Afterwards nothing has a name, and record and machine agree."""
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


REFUSED = [
    pytest.param(["checkpoint", "taken"], 4, "checkpoint of this name", id="a taken name"),
    pytest.param(["checkpoint", "main"], 4, "branch of this name", id="a branch's name"),
    pytest.param(["checkpoint", "main", "--force"], 4, "branch of this name", id="a branch's name by force"),
    pytest.param(["checkpoint", "taken/below"], 4, "taken exists", id="below a taken name"),
    pytest.param(["checkpoint", "../x"], 2, "../x", id="a bad name"),
    pytest.param(["checkpoint", "x.lock"], 2, "x.lock", id="a reserved name"),
    pytest.param(["checkpoint", ""], 2, "", id="an empty name"),
    pytest.param(["checkpoint", "n" * 101], 2, "", id="a long name"),
    pytest.param(["checkpoint", "new", "-b", "nosuch"], 2, "no such branch", id="an unknown branch"),
    pytest.param(["checkpoint", "new", "-b", "taken"], 2, "is a checkpoint, and no", id="a checkpoint for a branch"),
    pytest.param(["checkpoint", "new", "-b", "dead"], 4, "no live session", id="a dead branch"),
    pytest.param(["checkpoint", "new", "--tier", "best"], 2, "best", id="an unknown tier"),
    pytest.param(["restore", "nosuch"], 2, "nothing has this name", id="restore of an unknown name"),
    pytest.param(["restore", "ffff"], 2, "nothing has this name", id="restore of an unknown id"),
    pytest.param(["restore", "taken", "--new", "dead"], 4, "branch of this name", id="restore onto another branch"),
    pytest.param(["fork", "nosuch", "f1"], 2, "nothing has this name", id="fork of an unknown name"),
    pytest.param(["fork", "taken", "main"], 4, "branch of this name", id="fork onto a live branch"),
    pytest.param(["fork", "taken", "f1", "dead"], 4, "branch of this name", id="fork onto a dead branch"),
    pytest.param(["fork", "taken", "f1", "taken"], 4, "checkpoint of this name", id="fork onto a checkpoint"),
    pytest.param(["fork", "taken", "f1", "f1"], 2, "f1 is given twice", id="fork onto the same twice"),
    pytest.param(["fork", "taken", "f1", "f1/a"], 2, "exclude each other", id="forks that exclude each other"),
    pytest.param(["fork", "taken", "-n", "0"], 2, "", id="no fork"),
    pytest.param(["fork", "taken", "-n", "257"], 2, "256", id="too many forks"),
    pytest.param(["fork", "taken", "f1", "-n", "2"], 2, "exclude each other", id="branches and a number"),
    pytest.param(["stop", "main", "--checkpoint", "new", "--discard"], 2, "leave out", id="stop to keep and discard"),
    pytest.param(["stop", "main", "--checkpoint", "taken"], 4, "checkpoint of this name", id="stop to a taken name"),
    pytest.param(["shell", "taken", "-d"], 4, "checkpoint of this name", id="a session on a checkpoint's name"),
    pytest.param(["branch", "rename", "main", "other"], 4, "live session", id="rename of a live branch"),
    pytest.param(["branch", "rename", "dead", "taken"], 4, "checkpoint of this name", id="rename to a taken name"),
    pytest.param(["rm", "main"], 4, "live session", id="rm of a live branch"),
    pytest.param(["rm", "taken", "nosuch"], 2, "nothing has this name", id="rm of an unknown name"),
    pytest.param(["undo", "9999"], 2, "9999", id="undo of an unknown operation"),
]


def test_what_cannot_be_is_refused_and_changes_nothing(home: Home, client: Client, main: Session) -> None:
    """One test for all of them: they need the same, and are to leave it as it was."""
    main.checkpoint("taken")
    client.start("dead").stop()
    before = operations(client)
    for case in REFUSED:
        argv, code, said = case.values
        assert isinstance(argv, list)
        done = home.cli(*argv)
        assert (done.code, done.stdout) == (code, ""), (argv, done)
        assert str(said) in done.stderr, (argv, done)
        # Only `checkpoint` has the option.
        assert done.stderr.count("--force") == done.stderr.count("waypoint checkpoint --force"), (argv, done)
        assert argv[0] in ("checkpoint", "stop") or "--force" not in done.stderr, (argv, done)
    assert operations(client) == before
    assert {row.name for row in client.history.branches()} == {"dead", "main"}
    assert main.exec("echo $kept").output == b"yes\n"


def test_of_two_checkpoints_of_one_name_one_is_made(home: Home, client: Client, main: Session) -> None:
    done = together(lambda: home.cli("checkpoint", "same"), lambda: home.cli("checkpoint", "same"))
    assert sorted(one.code for one in done) == [0, 4]
    assert "checkpoint of this name" in done[0].stderr + done[1].stderr
    ledger.check(home)


def test_a_name_that_another_branch_takes_meanwhile_is_not_moved(
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


def test_checkpoints_of_different_names_come_one_after_the_other(home: Home, client: Client, main: Session) -> None:
    done = together(*(lambda n=n: home.cli("checkpoint", f"c{n}", "--tier", "live") for n in range(3)))
    assert [one.code for one in done] == [0, 0, 0]
    line = client.history.log("main")
    assert [len(capture.parents) for capture in line] == [1, 1, 0]
    assert {name for capture in line for name in capture.names} == {"c0", "c1", "c2", "main"}


def test_two_restores_at_once_come_one_after_the_other(home: Home, client: Client, main: Session) -> None:
    main.checkpoint("first")
    main.exec("kept=second")
    main.checkpoint("second")
    done = together(lambda: home.cli("restore", "first"), lambda: home.cli("restore", "second"))
    assert [one.code for one in done] == [0, 0]
    assert main.exec("echo $kept").output in (b"yes\n", b"second\n")
    ledger.check(home)


def test_a_restore_ends_a_command_in_flight_with_a_reason(home: Home, client: Client, main: Session) -> None:
    main.checkpoint("before")
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(home.cli, "exec", "--", "touch /srv/begun; sleep 1000")
        wait_until(lambda: main.run("test", "-e", "/srv/begun").exit == 0, "it has begun")
        home.must("restore", "before")
        done = busy.result(PATIENCE_S)
    assert (done.code, done.stdout) == (125, "")
    assert done.stderr.startswith("waypoint: ")
    assert main.exec("echo $kept; test -e /srv/begun || echo gone").output == b"yes\ngone\n"


def test_a_checkpoint_during_a_stop_says_that_the_session_is_gone(
    home: Home, client: Client, main: Session, pauses: Pauses
) -> None:
    with pauses.armed(Step.ENDED) as armed, ThreadPoolExecutor(2) as threads:
        stop = threads.submit(home.cli, "stop", "main")
        assert armed.wait() == Step.ENDED
        checkpoint = threads.submit(home.cli, "checkpoint", "late")
        fork = home.cli("fork", "nosuch", "f1")
        armed.go_on()
        assert stop.result().code == 0
        refused(checkpoint.result(), 4, "no live session")
    assert fork.code == 2


@pytest.mark.parametrize("tier", ["live", "files"])
@pytest.mark.parametrize("step", [Step.FROZEN, Step.DRAINED, Step.SEALED])
def test_a_session_that_ends_while_it_is_captured_ends_when_the_capture_is_over(
    home: Home, client: Client, main: Session, pauses: Pauses, step: Step, tier: str
) -> None:
    main.exec("echo work > /srv/work")
    with pauses.armed(step) as armed, ThreadPoolExecutor(1) as threads:
        checkpoint = threads.submit(home.cli, "checkpoint", "late", "--tier", tier)
        assert armed.wait() == step
        (pid,) = [row["pid"] for row in home.must("ps", "--json").json()]
        os.kill(pid, signal.SIGKILL)
        if (step, tier) != (Step.SEALED, "live"):  # there CRIU still traces the processes, and pid 1 waits for them
            wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "pid 1 has ended")
        armed.go_on()
        done = checkpoint.result()
    wait_until(lambda: home.must("ps", "--json").json() == [], "the session has ended")
    if step == Step.SEALED:  # all of the session was in the capture before
        assert (done.code, done.stderr) == (0, "")
        assert client.history.show("late").tier == tier
    else:
        refused(done, 4, "its session has just ended")
        assert "\n  next: its files are kept: 'waypoint shell main' starts it from them\n" in done.stderr
    home.must("shell", "main", "-d")
    assert client.session("main").exec("cat /srv/work").output == b"work\n"


def test_a_gc_that_was_cancelled_is_started_again(home: Home, client: Client, main: Session, pauses: Pauses) -> None:
    for name in ("one", "two", "three", "tip"):
        main.checkpoint(name)
    client.history.remove("one", "two", "three")
    with pauses.armed(Step.REMOVING) as armed, ThreadPoolExecutor(1) as threads:
        gc = threads.submit(home.cli, "gc", "--keep-operations", "0")
        assert armed.wait() == Step.REMOVING
        again = home.cli("gc")
        refused(again, 4, "of this kind runs already")
        (running,) = [job.id for job in client.jobs.list() if job.state == "running"]
        with RawClient(f"{home.runtime}/api.sock") as canceller:
            canceller.send(f"POST /v1/jobs/{running}/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
            client.status()  # by its answer, the daemon has read what came before
            armed.go_on()
            assert canceller.answer().json["job"]["state"] == "cancelled"
        done = gc.result()
    refused(done, 4, "it was cancelled\n  next: start it again\n")
    home.must("gc", "--keep-operations", "0")  # it also finishes the first one
    ledger.check(home)
    assert main.exec("echo $kept").output == b"yes\n"


def test_what_meets_a_session_that_ends_by_itself_waits_for_its_end(
    home: Home, client: Client, main: Session, pauses: Pauses
) -> None:
    with pauses.armed(Step.ENDED) as armed, ThreadPoolExecutor(3) as threads:
        main.exec("echo work > /srv/work")
        threads.submit(home.cli, "exec", "--", "exit 3")
        assert armed.wait() == Step.ENDED
        checkpoint = threads.submit(home.cli, "checkpoint", "late")
        fork = threads.submit(home.cli, "fork", "main", "f1")
        armed.go_on()
        refused(checkpoint.result(), 4, "no live session")
        assert fork.result().code == 0
    assert client.session("f1").exec("cat /srv/work").output == b"work\n"


def test_a_stop_during_a_restore_stops_what_was_restored(
    home: Home, client: Client, main: Session, pauses: Pauses
) -> None:
    main.checkpoint("before")
    with pauses.armed(Step.RESTORED) as armed, ThreadPoolExecutor(2) as threads:
        restore = threads.submit(home.cli, "restore", "before")
        assert armed.wait() == Step.RESTORED
        begun = threading.Event()

        def stop() -> Completed:
            begun.set()
            return home.cli("stop", "main")

        stopped = threads.submit(stop)
        begun.wait()
        armed.go_on()
        assert restore.result().code == 0
        assert stopped.result().code == 0
    assert client.sessions() == []
    ledger.check(home)


def test_a_parked_branch_can_be_forked_and_lives_in_the_fork(home: Home, client: Client, main: Session) -> None:
    main.exec("sleep 1000 &")
    main.checkpoint("parked", park=True)
    assert client.sessions() == []
    for number, name in enumerate(("parked", "main")):
        (copy,) = client.fork(name, f"f{number}")
        assert copy.exec("echo $kept; jobs %1").output.splitlines()[0] == b"yes"
        assert b"Running" in copy.exec("jobs").output
    again = client.start("main")
    assert again.exec("echo $kept").output == b"yes\n"


def test_a_live_branch_without_any_checkpoint_is_forked_as_it_is_now(home: Home, client: Client, main: Session) -> None:
    main.exec("cd /usr; now=1")
    (copy,) = client.fork("main", "f1")
    assert copy.exec("echo $kept $now $PWD").output == b"yes 1 /usr\n"
    assert main.exec("echo $kept $now $PWD").output == b"yes 1 /usr\n"


def test_a_busy_shell_is_captured_and_restored_busy(home: Home, client: Client, main: Session) -> None:
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(
            home.cli, "exec", "--", "touch /srv/begun; until [ -e /srv/end ]; do sleep 0.05; done; echo over"
        )
        wait_until(lambda: main.run("test", "-e", "/srv/begun").exit == 0, "it has begun")
        assert main.checkpoint("busy").tier == "live"
        (copy,) = client.fork("busy", "copy")
        for session in (main, copy):
            session.run("touch", "/srv/end")
        assert (busy.result(PATIENCE_S).stdout, busy.result().code) == ("over\n", 0)
    assert copy.exec("echo $kept", wait_prompt_s=PATIENCE_S).output == b"yes\n"


def test_a_session_without_a_hooked_shell_is_captured_and_forked(home: Home, client: Client, main: Session) -> None:
    script = "n=0; while sleep 0.05; do n=$((n + 1)); echo $n > /srv/n; done"
    plain = client.start("plain", command=["sh", "-c", script])
    wait_until(lambda: plain.run("test", "-s", "/srv/n").exit == 0, "it counts")
    assert plain.checkpoint("counting").tier == "live"
    (copy,) = client.fork("counting", "copy")
    before = copy.run("cat", "/srv/n").stdout
    wait_until(lambda: copy.run("cat", "/srv/n").stdout not in (b"", before), "the copy counts")
    plain.restore("counting")
    before = plain.run("cat", "/srv/n").stdout
    wait_until(lambda: plain.run("cat", "/srv/n").stdout not in (b"", before), "it counts again")


@pytest.mark.alone("how soon a signal ends a program is a matter of the machine's load")
def test_a_timeout_that_comes_due_within_a_capture_harms_neither_command_nor_capture(
    client: Client, main: Session, pauses: Pauses
) -> None:
    timeout_s = 5.0
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
        assert (made.result().tier, made.result().degraded) == ("live", [])
        assert (ran.result().exit, ran.result().output) == (124, b"cleaned up\n")
    (copy,) = client.fork("while-it-ran", "copy")
    assert copy.exec("echo $kept", wait_prompt_s=PATIENCE_S).output == b"yes\n"


def test_more_copies_than_memory_are_refused_together(home: Home, main: Session) -> None:
    """Each of them would have room for itself."""
    for_each = machine.available_memory_bytes() // 200
    hold = f"import time; kept = bytes([1]) * {for_each}; open('/srv/held', 'w'); time.sleep(1000)"
    main.exec(f'python3 -c "{hold}" & until [ -e /srv/held ]; do sleep 0.01; done')
    main.checkpoint("large", tier="live")
    done = home.cli("fork", "large", *(f"copy{number}" for number in range(200)))
    refused(done, 125, "200 copies of its processes need")
    assert "\n  next: end other sessions, or make fewer copies; for its files alone: " in done.stderr
    [fork] = Client(home.path).fork("large", "alone")
    assert fork.exec("echo $kept").output == b"yes\n"


def test_what_can_be_undone_is_undone_and_conflicts_are_told(home: Home, client: Client, main: Session) -> None:
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
    refused(home.cli("undo", str(number)), 4, "has been moved since")
    client.history.undo()
    client.history.undo()
    assert {row.name for row in client.history.branches()} == {"main", "other"}
    client.session("main").stop(discard=True)
    discarded = client.history.operations(1)[0].number
    refused(home.cli("undo", str(discarded)), 4, "thrown away")
    ledger.check(home)
