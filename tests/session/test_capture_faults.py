"""The daemon, client, CRIU or launcher is killed at each step of a checkpoint, fork, restore, stop and undo. Afterwards
the home has either the old or the new state, its session answers, and nothing is left over.
"""

import contextlib
import functools
import os
import random
import re
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pexpect
import pytest

from tests.chaos import victims
from tests.session import ledger
from tests.session.transactions import (
    APPLYING,
    MOVING,
    OLD,
    TRANSACTIONS,
    UNANSWERED,
    PausableHome,
    check_after,
    is_live,
    is_name,
    replaced,
    say,
)
from tests.waiting import PATIENCE_S, wait_until
from waypoint.capture.steps import Step

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]


@dataclass(frozen=True)
class Case:
    transaction: str
    step: Step
    victim: str

    def __str__(self) -> str:
        return f"{self.transaction}-{self.step}-{self.victim}"


def cases() -> list[Case]:
    found = []
    for step in Step:
        for name, transaction in TRANSACTIONS.items():
            if step in transaction.steps:
                parts = ["daemon"] + (["client"] if step not in transaction.after else [])
                parts += ["criu"] if step in transaction.dumping() else []
                parts += ["launcher"] if step in (Step.PREPARED, Step.SEALED, Step.GROUNDED, Step.RESTORED) else []
                found += [Case(name, step, victim) for victim in parts]
    return found


def kill(case: Case, pausable_home: PausableHome, command: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to the processes of the victim."""
    match case.victim:
        case "daemon":
            pids = [pausable_home.client.status().pid]
        case "client":
            pids = [command.pid]
        case "launcher":
            pids = victims.pids(pausable_home.home, "launcher")
        case _:
            pids = ledger.criu_pids(pausable_home.home)
    killed = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a CRIU that did not stop at this step may have ended
            pidfd = os.pidfd_open(pid)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            killed += 1
    assert killed, f"there is no {case.victim}"


def test_the_transactions_together_pass_all_steps() -> None:
    assert len(Step) > 5
    assert {step for transaction in TRANSACTIONS.values() for step in transaction.steps} == {*Step} - {
        *APPLYING,
        *MOVING,
        Step.STANDING,
    }


@pytest.mark.soak(part="faults")
@pytest.mark.parametrize("name", TRANSACTIONS)
def test_a_transaction_passes_its_listed_steps(w: PausableHome, name: str) -> None:
    transaction = TRANSACTIONS[name]
    transaction.prepare(w.home)
    passed = set()
    with (
        w.pauses.armed(*(step for step in Step if step not in MOVING)) as armed,
        w.home.background(*transaction.argv) as command,
    ):
        ended = os.pidfd_open(command.pid)
        while (step := armed.wait(or_end_of=ended)) is not None:
            passed.add(step)
            armed.go_on()
        while not passed.issuperset(transaction.after):
            step = armed.wait()
            assert step is not None
            passed.add(step)
            armed.go_on()
        os.close(ended)
        assert command.wait(PATIENCE_S) == 0
    assert passed == set(transaction.steps)
    assert transaction.is_done(w.client)
    ledger.check(w.home)


def in_the_gate(case: Case) -> bool:
    """Select the cases for the gate: the daemon is killed at each step of one undo, and at one step of each other
    transaction; of a restore also after its answer.
    """
    steps = TRANSACTIONS[case.transaction].steps
    chosen = {
        "undo-of-park": steps,
        "undo-of-restore": (Step.CONFIRMED,),
        "undo-of-files": (Step.RECORDED,),
        "undo-of-shell": (Step.CARRIED_OUT,),
        "undo-of-fork": (Step.RECORDED,),
        "restore": (Step.GROUNDED, Step.DUMPED),
    }
    return case.victim == "daemon" and case.step in chosen.get(case.transaction, (steps[len(steps) // 2],))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[] if in_the_gate(case) else pytest.mark.soak(part="faults"))
        for case in cases()
    ],
)
def test_after_a_kill_at_any_step_the_old_or_the_new_state_exists(w: PausableHome, case: Case) -> None:
    transaction, client = TRANSACTIONS[case.transaction], w.client
    transaction.prepare(w.home)
    ledger.check(w.home)  # a session that `prepare` has replaced is dumped later, and passes steps, too
    before = len(client.history.operations())
    with w.pauses.armed(case.step) as armed, w.home.background(*transaction.argv) as command:
        assert armed.wait() == case.step
        if case.step in transaction.after:
            command.wait(PATIENCE_S)
        kill(case, w, command)
        if case.victim != "daemon":
            armed.go_on()
        said = command.communicate(timeout=PATIENCE_S)[1].decode()
    if case.victim == "client":
        wait_until(lambda: transaction.is_done(client), "the daemon has finished the transaction")
    is_done = transaction.is_done(client)
    if case.transaction not in ("fork-of-live", "prove"):  # the first also logs the capture of w, the second nothing
        assert (len(client.history.operations()) > before) == is_done
    if case.victim == "daemon" and case.step not in transaction.after:
        assert is_done == (case.step in transaction.sure)
        assert (command.returncode, bool(re.fullmatch(UNANSWERED, said))) == (125, True), said
    elif case.victim != "client":
        assert (command.returncode, is_done) == (0, True), f"a new {case.victim} did not finish the transaction: {said}"
        printed = replaced("w", case.transaction) if case.transaction.startswith("restore") else transaction.prints
        assert re.fullmatch(printed, said)
    check_after(w, transaction, before, is_done=is_done)


@pytest.mark.soak(part="faults")
@pytest.mark.timeout(1200)
def test_a_daemon_killed_in_the_middle_of_a_restore_of_files_leaves_them_as_before_or_as_after(w: PausableHome) -> None:
    choose, session = random.Random(5), w.client.session("w")
    make = "mkdir /srv/many; cd /srv/many; for i in $(seq 3000); do echo $i > $i; done; cd /"
    assert session.exec(make).exit == 0
    look = "cd /srv/many; ls -A | wc -l; stat -c '%n %a %Y' * | sha256sum; cat * | sha256sum; ls -d /srv/m*; cd /"
    wanted = session.exec(look).output
    session.checkpoint("many")
    change = "for i in $(seq 3000); do echo changed >> $i; done; rm 1*; chmod 600 2*; mkdir -p /srv/more/below"
    outcomes = Counter[str]()
    notes = functools.partial(w.home.runtime.glob, "sessions/*/rewind.json")
    for _ in range(20):
        session.exec(f"cd /srv/many; {change}; cd /")
        present = session.exec(look).output
        daemon = w.client.status().pid
        with w.home.background("restore", "many", "-b", "w", "--only", "files") as command:
            wait_until(lambda: command.poll() is not None or bool(list(notes())), "the restore has begun")
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(choose.uniform(0, 0.5))
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon, signal.SIGKILL)
            command.wait(PATIENCE_S)
        now = session.exec(look).output
        assert now in (wanted, present)
        outcomes["after" if now == wanted else "before"] += 1
        assert not list(notes())
    assert outcomes["after"]
    ledger.check(w.home)


def test_a_restore_that_is_refused_starts_nothing(w: PausableHome) -> None:
    hold = "import os, time; pipe = os.pipe2(os.O_DIRECT); print(1, flush=True); time.sleep(1000)"
    until_held = "until [ -s /srv/held ]; do sleep 0.05; done"
    assert w.client.session("w").exec(f"python3 -c '{hold}' >/srv/held & {until_held}").exit == 0
    before = say(w.client, "w")
    with w.pauses.armed(Step.RESERVED) as armed, w.home.background("restore", "base", "-b", "w") as command:
        ended = os.pidfd_open(command.pid)
        assert armed.wait(or_end_of=ended) is None, "the new session was begun before the refusal was known"
        os.close(ended)
        assert (command.wait(PATIENCE_S), say(w.client, "w")) == (5, before)


def test_the_next_daemon_starts_the_sessions_that_an_undo_has_not_started_yet(w: PausableHome) -> None:
    client = w.client
    w.home.must("fork", "base", "f1", "f2")
    w.home.must("undo")
    ended = client.history.operations(1)[0].number
    with w.pauses.armed(Step.RESTORED, Step.CONFIRMED) as armed, w.home.background("undo", str(ended)) as command:
        # One of the two stops before its record, so the other one passes that step.
        assert {armed.wait(), armed.wait()} == {Step.RESTORED, Step.CONFIRMED}
        os.kill(client.status().pid, signal.SIGKILL)
        assert command.wait(PATIENCE_S) == 125
    assert (say(client, "f1"), say(client, "f2")) == (OLD, OLD)
    (entry,) = client.history.operations(1)
    assert (entry.undoes, entry.degraded) == (ended, [])
    ledger.check(w.home)
    w.home.must("undo", str(entry.number))
    assert not is_live(client, "f1")
    assert not is_live(client, "f2")
    ledger.check(w.home)


@pytest.mark.soak(part="faults")
@pytest.mark.parametrize("step", [Step.DRAINED, Step.DUMPED, Step.SEALED])
def test_input_typed_ahead_survives_a_killed_daemon(w: PausableHome, step: Step) -> None:
    argv = w.home.argv("attach", "w")
    person = pexpect.spawn(argv[0], argv[1:], env=w.home.env, timeout=PATIENCE_S)
    try:
        person.sendline('until [ -e /tmp/go ]; do sleep 0.05; done; read it; echo "<$it>"')
        session = w.client.session("w")
        session.run("sh", "-c", "until pgrep sleep; do :; done")
        person.send("for the read\recho half")
        person.expect("\r\necho half")
        with w.pauses.armed(step) as armed, w.home.background(*TRANSACTIONS["checkpoint"].argv) as command:
            assert armed.wait() == step
            kill(Case("checkpoint", step, "daemon"), w, command)
            command.wait(PATIENCE_S)
        assert session.run("touch", "/tmp/go").exit == 0
        person.expect("<for the read>\r\n")
        person.sendline("-of-it")
        person.expect("half-of-it\r\n.*half-of-it\r\n")
    finally:
        person.close(force=True)
    ledger.check(w.home)


def test_a_request_from_inside_is_answered_after_its_daemon_was_killed(w: PausableHome) -> None:
    session = w.client.session("w")
    with w.pauses.armed(Step.PREPARED) as armed:
        session.exec("kept=yes; (waypoint checkpoint late > /srv/said 2>&1; echo $? >> /srv/said) & asked=$!")
        assert armed.wait() == Step.PREPARED
        os.kill(w.client.status().pid, signal.SIGKILL)
    *_, said, advised, code = session.exec("wait $asked; cat /srv/said").output.decode().splitlines()
    assert code == "125"
    assert said.endswith("the daemon was replaced while it carried out the request")
    step = advised.removeprefix("  next: see whether it was done: ")
    assert step == "waypoint op log"
    assert "late" not in session.exec(step).output.decode()
    assert session.exec("waypoint checkpoint late > /dev/null; waypoint op log; echo $kept").output.endswith(b"yes\n")
    assert w.client.history.show("late").tier == "live"


@pytest.mark.soak(part="floods")
def test_a_request_in_flight_at_a_capture_is_answered_and_not_executed_in_the_copy(w: PausableHome) -> None:
    """This also holds if the daemon is killed before it reads the request in the copy."""
    session = w.client.session("w")
    asked = "cd /run/waypoint; mkfifo a.9.1; printf 'checkpoint\\0evil\\0' >r.9.1; (cat a.9.1 >/tmp/said) & cd /"
    session.exec(asked)  # write the request that `waypoint checkpoint evil` writes, but without ringing the bell
    captured = session.checkpoint("point", tier="live").capture
    session.stop(discard=True)
    with w.pauses.armed(Step.CONFIRMED) as armed, w.home.background("fork", "point", "f") as command:
        assert armed.wait() == Step.CONFIRMED
        os.kill(w.client.status().pid, signal.SIGKILL)
        _, said = command.communicate(timeout=PATIENCE_S)
    assert re.fullmatch(UNANSWERED, said.decode())
    read = "until [ -s /tmp/said ]; do sleep 0.02; done; cat /tmp/said"
    answer = w.client.session("f").run("sh", "-c", read).stdout.decode()
    assert answer == f"0\nrestored f  {captured}\n"
    assert not is_name(w.client, "evil")


@pytest.mark.soak(part="faults")
def test_a_working_folder_removed_before_the_freeze_is_restored_as_deleted(w: PausableHome, tmp_path: Path) -> None:
    """The daemon lists removed folders for CRIU when it starts CRIU; `second` is removed after that."""
    tmp_path.chmod(0o755)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    session = w.client.start("r")
    for name in ("first", "second"):
        session.exec(f"kept=yes; cd {tmp_path}/{name}; sleep 1000 &")
    session.exec(f"rmdir {tmp_path}/first")
    checkpoint = ("checkpoint", "point", "-b", "r", "--tier", "live")
    with w.pauses.armed(Step.PREPARED) as armed, w.home.background(*checkpoint) as command:
        assert armed.wait() == Step.PREPARED
        wait_until(lambda: bool(ledger.dumping_pids(w.home)), "CRIU has started")
        assert session.run("rmdir", f"{tmp_path}/second").exit == 0
        armed.go_on()
        _, said = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, said) == (0, b"")
    (fork,) = w.client.fork("point", "f")
    look = "echo $kept; for pid in $$ $(jobs -p); do readlink /proc/$pid/cwd; done"
    kept, *places = fork.exec(look).output.decode().splitlines()
    assert kept == "yes"
    assert [place.rpartition("/")[2] for place in places] == [
        f"{one} (deleted)" for one in ("second", "first", "second")
    ]
    assert fork.run("ls", "-A", str(tmp_path)).stdout == session.run("ls", "-A", str(tmp_path)).stdout
    ledger.check(w.home)
