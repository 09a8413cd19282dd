"""Stopping commands: ^C, signals from the client, timeouts. The shell goes on, whatever it was."""

import asyncio

import pytest

from tests.session.stage import Client, Ran, Stage
from tests.waiting import PATIENCE_S
from waypoint.model.requests import ExecRequest
from waypoint.terminal.exec.ending import MARGIN_S

# The loop in which no program runs. zsh says 2 of it if the signal comes between two of its commands, or else 130.
NO_PROGRAM = "while :; do :; done"
OF_ZSH = {130, 2}
# What runs, and how many programs that are not the shell are in the foreground then. (A plain `wait` is none of them:
# zsh 5.9 does not end it at ^C, at whatever terminal.)
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

# What zsh says of a program that was killed: 137, the program's status, or 130 if the ^C comes first that is typed to
# end the rest of the list, too.
KILLED = {"bash": {130}, "zsh": {130, 137}}

BEGIN_S = 5.0  # what a command may need to begin on a busy machine, and a timeout counts from there
ALONE = pytest.mark.alone("how soon a signal ends a program is a matter of the machine's load")


def check_interrupted(ran: Ran, shell: str, text: str) -> None:
    """The status of the whole list, after the rest of it was interrupted."""
    if shell == "zsh" and text == NO_PROGRAM:
        assert ran.exit in OF_ZSH
    else:
        assert ran.exit == 130


async def start(stage: Stage, text: str, programs: int, client: Client) -> "asyncio.Task[Ran]":
    """Run `text` until it runs. A little earlier a signal would hit the shell as it forks, and be lost."""
    task = asyncio.create_task(stage.exec(f"echo run''ning\n{text}\necho not reached", client))
    await client.wait_output(b"running\n")
    await stage.wait_foreground(programs)
    return task


@pytest.mark.parametrize(("text", "programs"), LONG)
async def test_an_interrupt_from_the_client_ends_the_whole_list(stage: Stage, text: str, programs: int) -> None:
    await stage.open()
    client = Client()
    task = await start(stage, text, programs, client)
    client.send("k", b"INT")
    ran = await task
    check_interrupted(ran, stage.shell, text)
    assert b"not reached" not in ran.output
    assert (await stage.exec("echo fine")).output == b"fine\n"


@pytest.mark.parametrize(("text", "programs"), LONG)
async def test_control_c_typed_by_a_person_ends_the_whole_list(stage: Stage, text: str, programs: int) -> None:
    await stage.open()
    client = Client()
    task = await start(stage, text, programs, client)
    await stage.type(b"\x03")
    ran = await task
    check_interrupted(ran, stage.shell, text)
    assert b"not reached" not in ran.output
    assert b"^C" not in ran.output
    assert (await stage.exec("echo fine")).output == b"fine\n"


@pytest.mark.parametrize(
    "text",
    [
        "sleep 1000",
        "while :; do :; done",
        "(trap '' INT; sleep 1000)",
        "sh -c 'trap \"\" INT TERM; while :; do sleep 0.01; done'",
        "set +m; sleep 1000",
    ],
)
async def test_a_timeout_stops_what_runs_and_is_ours(stage: Stage, text: str) -> None:
    await stage.open()
    ran = await stage.exec(f"{text}; echo not reached", timeout_s=0.2)
    assert (ran.exit, ran.by) == (124, "waypoint")
    assert b"not reached" not in ran.output
    assert (await stage.exec("echo fine")).output == b"fine\n"


STUBBORN = [  # what runs, and the signal that it needs
    ("sleep 1000", "INT"),
    ("sh -c 'trap \"\" INT; while :; do sleep 0.01; done'", "TERM"),
    ("sh -c 'trap \"\" INT TERM; while :; do sleep 0.01; done'", "KILL"),
    ('for i in 1 2 3; do sh -c \'trap "" INT; trap "exit 0" TERM; while :; do sleep 0.01; done\'; done', "TERM"),
    ("while :; do /bin/true; done", None),  # a shell that starts programs all the time may lose a signal
]


@ALONE
@pytest.mark.parametrize(("text", "needed"), STUBBORN)
async def test_a_timeout_is_a_bound_and_what_stopped_the_command_is_told(
    stage: Stage, text: str, needed: str | None
) -> None:
    await stage.open()
    client, loop = Client(), asyncio.get_running_loop()
    began = loop.time()
    request = ExecRequest(text=f"{text}; echo not reached", timeout_s=0.3)
    end = await stage.daemon.line.execute(request, client, client)
    assert loop.time() - began < 0.3 + MARGIN_S + BEGIN_S
    assert (end["exit"], end["by"], end["signal"]) == (124, "waypoint", needed or end["signal"])
    assert end["said"] == f"the command was stopped after 0.3 s, by SIG{end['signal']}"
    assert b"not reached" not in client.output_bytes
    assert (await stage.exec("echo fine")).output == b"fine\n"


@ALONE
async def test_vim_is_ended_at_its_timeout_and_leaves_the_terminal_as_it_was(stage: Stage) -> None:
    await stage.open()
    client, loop = Client(), asyncio.get_running_loop()
    began = loop.time()
    request = ExecRequest(text="vim notes", tty=True, timeout_s=3.0)  # before that it must have begun to draw
    end = await stage.daemon.line.execute(request, client, client)
    assert loop.time() - began < 3.0 + MARGIN_S + BEGIN_S
    assert (end["exit"], end["signal"]) == (124, "TERM")
    assert b"\x1b[?1049h" in client.output_bytes
    assert not stage.daemon.terminal.modes.alternate
    assert (await stage.exec("echo fine")).output == b"fine\n"


async def test_a_timeout_counts_from_the_commands_start(bash: Stage) -> None:
    await bash.open()
    slow = asyncio.create_task(bash.exec("sleep 1.2; echo slow"))
    assert (await bash.exec("echo quick", timeout_s=1.0)).output == b"quick\n"
    assert (await slow).output == b"slow\n"


async def test_a_command_that_ends_in_time_is_not_touched(stage: Stage) -> None:
    await stage.open()
    assert await stage.exec("echo quick", timeout_s=2) == (0, b"quick\n", "command", False, "")


@ALONE
async def test_a_shell_that_cannot_be_stopped_is_reported_and_blocks_only_for_a_while(bash: Stage) -> None:
    await bash.open()
    began = asyncio.get_running_loop().time()
    ran = await bash.exec("trap '' INT; n=0; while [[ ! -e go-on ]]; do :; done; trap - INT", timeout_s=0.1)
    assert asyncio.get_running_loop().time() - began < 0.1 + MARGIN_S + BEGIN_S
    assert (ran.exit, ran.by) == (124, "waypoint")
    assert "still runs; SIGKILL" in ran.said
    refused = await bash.exec("echo never", wait_prompt_s=0.2)
    assert (refused.exit, refused.by) == (125, "waypoint")
    (bash.home / "go-on").touch()
    assert (await bash.exec("echo fine", wait_prompt_s=PATIENCE_S)).output == b"fine\n"


async def test_with_a_timeout_an_earlier_command_is_not_waited_for_any_longer(stage: Stage) -> None:
    await stage.open()
    earlier = await start(stage, "sleep 1000", 1, client := Client())
    refused = await stage.exec("echo never", timeout_s=0.1)
    assert refused == (125, b"", "waypoint", False, "an earlier command still runs; this one was not begun")
    client.send("k", b"INT")
    assert (await earlier).exit == 130
    assert (await stage.exec("echo fine", timeout_s=2)).output == b"fine\n"


async def test_kill_ends_the_command_and_the_rest_of_the_list(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = await start(stage, "sleep 1000", 1, client)
    client.send("k", b"KILL")
    ran = await task
    assert ran.exit in KILLED[stage.shell]
    assert b"not reached" not in ran.output
    assert (await stage.exec("echo fine")).output == b"fine\n"


async def test_other_signals_reach_the_command_only(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = asyncio.create_task(
        stage.exec("sh -c 'trap \"echo got it; exit 4\" USR1; echo ready; while :; do :; done'", client)
    )
    await client.wait_output(b"ready\n")
    client.send("k", b"USR1")
    assert await task == (4, b"ready\ngot it\n", "command", False, "")


async def test_a_suspended_command_leaves_the_shell_usable(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = asyncio.create_task(stage.exec("sleep 1000", client))
    await stage.wait_foreground(1)
    await stage.type(b"\x1a")
    ran = await task
    assert ran.exit == 148
    assert b"sleep 1000" in (await stage.exec("jobs")).output
    await stage.exec("kill -KILL %sleep")


async def test_with_a_trap_of_the_users_the_list_goes_on_as_if_typed(bash: Stage) -> None:
    """What is typed gets the same in bash 5.2: the job dies, the list goes on."""
    await bash.open()
    client = Client()
    task = asyncio.create_task(bash.exec("trap 'n=1' INT; echo ready; sleep 1000; echo went on", client))
    await bash.wait_foreground(1)
    client.send("k", b"INT")
    ran = await task
    assert (ran.exit, ran.output.replace(b"\r", b"")) == (
        0,
        b"ready\n\nwent on\n",
    )  # \r: without root, see hold_output_raw
    assert (await bash.exec("trap - INT; echo fine")).output == b"fine\n"


async def test_the_terminals_modes_are_put_back_after_everything(stage: Stage) -> None:
    await stage.open()
    for text in (
        "true",
        "/bin/true",
        "/bin/false",
        "sh -c 'kill -KILL $$'",
        "sleep 1000",
        "stty raw </dev/tty",
        "(exit 3)",
    ):
        await stage.exec(text, timeout_s=0.3)
        mark = len(stage.printed())
        await stage.type(b"sh -c 'kill -TERM $$'\r")
        await stage.type(b"/bin/false; stty -a </dev/tty\r")
        await stage.wait_printed(b"opost", mark)
        await stage.wait_printed(b"P> ", stage.printed().rindex(b"opost"))
        assert b"-opost" not in stage.printed(mark), text
