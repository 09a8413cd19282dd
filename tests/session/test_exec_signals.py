"""Stopping commands: ^C, signals from the client, timeouts. The shell continues in every case."""

import asyncio
import os
import signal

import pytest

from tests.collecting import collecting
from tests.session.stage import Client, Ran, Stage
from tests.session.stale_group import LEAVE, process_with_number
from tests.waiting import PATIENCE_S
from waypoint.linux.tasks import procfs
from waypoint.linux.tty import terminals
from waypoint.model.requests import ExecRequest
from waypoint.terminal.exec.ending import MARGIN_S
from waypoint.terminal.exec.signals import SignalQueue

# zsh exits with 2 if the signal comes between two commands of this loop, else with 130.
NO_PROGRAM = "while :; do :; done"
# Commands, and the number of foreground processes besides the shell. There is no plain `wait`: zsh 5.9 does not end it
# at ^C on any terminal.
LONG = [
    ("sleep 1000", 1),
    ("sleep 1000 | cat", 2),
    ("cat /dev/zero >/dev/null", 1),
    ("read x </dev/tty", 0),
    ("sleep 1000 & wait $!", 0),
    ("f() { while true; do sleep 1000; done; }; f", 1),
    (NO_PROGRAM, 0),
    ("(sleep 1000; true)", 1),
    ("for i in 1 2 3; do sleep 1000; done", 1),
]
BEGIN_S = 1.0  # the longest time that a command needs to begin on a busy machine; its timeout counts from there


async def begin(stage: Stage, text: str, programs: int) -> "tuple[asyncio.Task[Ran], Client]":
    """Start `text`, and wait until its programs run: a signal would be lost while the shell forks."""
    return await stage.begin(f"echo run''ning\n{text}\necho not reached", b"running\n", programs=programs)


@pytest.mark.parametrize("by", ["client", "keyboard"])
async def test_an_interrupt_ends_the_whole_list(stage: Stage, by: str) -> None:
    with collecting() as row:
        for text, programs in LONG:
            with row(text):
                fresh = await stage.fresh()
                task, client = await begin(fresh, text, programs)
                if by == "client":
                    client.send("k", b"INT")
                else:
                    await fresh.type(b"\x03")
                ran = await task
                assert ran.exit in ((130, 2) if (stage.shell, text) == ("zsh", NO_PROGRAM) else (130,))
                assert b"not reached" not in ran.output
                assert by == "client" or b"^C" not in ran.output
                assert (await fresh.exec("echo fine")).output == b"fine\n"


async def test_a_timeout_stops_the_command_and_is_reported_by_waypoint(stage: Stage) -> None:
    with collecting() as row:
        for text in (
            "sleep 1000",
            NO_PROGRAM,
            "(trap '' INT; sleep 1000)",
            "sh -c 'trap \"\" INT TERM; while :; do sleep 0.01; done'",
            "set +m; sleep 1000",
        ):
            with row(text):
                fresh = await stage.fresh()
                ran = await fresh.exec(f"{text}; echo not reached", timeout_s=0.2)
                assert (ran.exit, ran.by) == (124, "waypoint")
                assert b"not reached" not in ran.output
                assert (await fresh.exec("echo fine", timeout_s=PATIENCE_S)) == (0, b"fine\n", "command", False, "")


STUBBORN = [  # commands, and the signal that ends them
    ("sleep 1000", "INT"),
    ("sh -c 'trap \"\" INT; while :; do sleep 0.01; done'", "TERM"),
    ("sh -c 'trap \"\" INT TERM; while :; do sleep 0.01; done'", "KILL"),
    ('for i in 1 2 3; do sh -c \'trap "" INT; trap "exit 0" TERM; while :; do sleep 0.01; done\'; done', "TERM"),
    ("while :; do /bin/true; done", None),  # a shell that keeps starting programs may lose a signal
]


@pytest.mark.soak(part="timing")
async def test_a_timeout_ends_in_time_and_names_the_signal(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    with collecting() as row:
        for text, needed in STUBBORN:
            with row(text):
                fresh, client = await stage.fresh(), Client()
                began = loop.time()
                request = ExecRequest(text=f"{text}; echo not reached", timeout_s=0.3)
                end = await fresh.daemon.line.execute(request, client, client)
                assert loop.time() - began < 0.3 + MARGIN_S + BEGIN_S
                assert (end["exit"], end["by"], end["signal"]) == (124, "waypoint", needed or end["signal"])
                assert end["said"] == f"the command was stopped after 0.3 s, by SIG{end['signal']}"
                assert b"not reached" not in client.output_bytes
                assert (await fresh.exec("echo fine")).output == b"fine\n"


@pytest.mark.soak(part="timing")
async def test_vim_is_ended_at_its_timeout_and_restores_the_terminal(stage: Stage) -> None:
    await stage.open()
    client, loop = Client(), asyncio.get_running_loop()
    began = loop.time()
    end = await stage.daemon.line.execute(ExecRequest(text="vim notes", tty=True, timeout_s=1.0), client, client)
    assert loop.time() - began < 1.0 + MARGIN_S + BEGIN_S
    assert (end["exit"], end["signal"]) == (124, "TERM")
    assert b"\x1b[?1049h" in client.output_bytes
    assert not stage.daemon.terminal.modes.alternate
    assert (await stage.exec("echo fine")).output == b"fine\n"


async def test_a_timeout_counts_from_the_start_of_the_command(bash: Stage) -> None:
    await bash.open()
    slow = asyncio.create_task(bash.exec("sleep 1.2; echo slow"))
    assert (await bash.exec("echo quick", timeout_s=1.0)).output == b"quick\n"
    assert (await slow).output == b"slow\n"


@pytest.mark.soak(part="timing")
async def test_a_shell_that_no_signal_stops_is_reported_and_exec_returns(bash: Stage) -> None:
    """As in a session whose pid 1 cannot start a new shell, since an earlier version has started it."""
    (await bash.open()).line.can_renew = lambda: False
    began = asyncio.get_running_loop().time()
    ran = await bash.exec("trap '' INT; n=0; while [[ ! -e go-on ]]; do :; done; trap - INT", timeout_s=0.1)
    assert asyncio.get_running_loop().time() - began < 0.1 + MARGIN_S + BEGIN_S
    assert (ran.exit, ran.by) == (124, "waypoint")
    assert "still runs; SIGKILL" in ran.said
    refused = await bash.exec("echo never", wait_prompt_s=0.2)
    assert (refused.exit, refused.by) == (125, "waypoint")
    (bash.home / "go-on").touch()
    assert (await bash.exec("echo fine", wait_prompt_s=PATIENCE_S)).output == b"fine\n"


async def test_a_command_with_a_timeout_waits_no_longer_for_an_earlier_command(stage: Stage) -> None:
    await stage.open()
    earlier, client = await begin(stage, "sleep 1000", 1)
    refused = await stage.exec("echo never", timeout_s=0.1)
    assert refused == (125, b"", "waypoint", False, "an earlier command still runs; this command was not begun")
    client.send("k", b"INT")
    assert (await earlier).exit == 130


async def test_kill_ends_the_command_and_the_rest_of_the_list(stage: Stage) -> None:
    await stage.open()
    task, client = await begin(stage, "sleep 1000", 1)
    client.send("k", b"KILL")
    ran = await task
    # zsh: the program's status, or 130 if the ^C that ends the rest of the list comes first
    assert ran.exit in ((130,) if stage.shell == "bash" else (130, 137))
    assert b"not reached" not in ran.output
    assert (await stage.exec("echo fine")).output == b"fine\n"


async def test_other_signals_reach_the_command_only(stage: Stage) -> None:
    await stage.open()
    text = "sh -c 'trap \"echo got it; exit 4\" USR1; echo ready; while :; do :; done'"
    task, client = await stage.begin(text, b"ready\n")
    client.send("k", b"USR1")
    assert await task == (4, b"ready\ngot it\n", "command", False, "")


async def test_a_suspended_command_leaves_the_shell_usable(stage: Stage) -> None:
    await stage.open()
    task, _ = await stage.begin("sleep 1000", programs=1)
    await stage.type(b"\x1a")
    assert (await task).exit == 148
    assert b"sleep 1000" in (await stage.exec("jobs")).output
    await stage.exec("kill -KILL %sleep")


async def test_with_an_int_trap_of_the_user_the_list_continues_as_if_typed(bash: Stage) -> None:
    """bash 5.2 treats a typed line the same way: the job dies, the list continues."""
    await bash.open()
    task, client = await bash.begin("trap 'n=1' INT; echo ready; sleep 1000; echo went on", programs=1)
    client.send("k", b"INT")
    ran = await task
    assert (ran.exit, ran.output.replace(b"\r", b"")) == (0, b"ready\n\nwent on\n")  # \r: only without root
    assert (await bash.exec("trap - INT; echo fine")).output == b"fine\n"


async def test_the_modes_of_the_terminal_are_restored_after_every_command(stage: Stage) -> None:
    await stage.open()
    for text in (
        *("true", "/bin/true", "/bin/false", "sh -c 'kill -KILL $$'", "sleep 1000", "stty raw </dev/tty", "(exit 3)"),
    ):
        await stage.exec(text, timeout_s=0.3)
        mark = len(stage.printed())
        await stage.type(b"sh -c 'kill -TERM $$'\r")
        await stage.type(b"/bin/false; stty -a </dev/tty\r")
        await stage.wait_printed(b"opost", mark)
        await stage.wait_printed(b"P> ", stage.printed().rindex(b"opost"))
        assert b"-opost" not in stage.printed(mark), text


@pytest.mark.privileged
async def test_a_stale_foreground_group_leads_to_no_process_of_the_machine(bash: Stage) -> None:
    """A command leaves an ended group in the foreground, and a process of the machine gets the group's number."""
    await bash.open()
    (bash.folder / "leave.py").write_text(LEAVE)
    task, _client = await bash.begin(f"python3 {bash.folder}/leave.py </dev/tty", b"left\n")
    queue = SignalQueue(bash.daemon.line.desk, lambda: True)
    with process_with_number(terminals.foreground_group(bash.master)):
        await bash.type(b"\x03\x1c")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGUSR1):
            assert await queue.send_now(number)
    (leaver,) = (pid for pid in bash.processes() if procfs.stat(pid).name == "python3")
    os.kill(leaver, signal.SIGKILL)
    await task
    assert (await bash.exec("echo fine")).output == b"fine\n"
