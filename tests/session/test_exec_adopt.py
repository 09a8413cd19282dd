"""The daemon may die at any moment of an exec: the next daemon completes it, and its client loses nothing."""

import asyncio
import contextlib
import os

import pytest

from shellwrap.marks import Mark
from tests.collecting import collecting
from tests.session.stage import Client, Stage
from waypoint.linux.tasks import pidfd


async def run_until_death(stage: Stage, text: str, at: str, client: Client, **fields: object) -> None:
    """Start a command, and let the daemon die when it reads the mark `at` of the hooks from the terminal."""
    daemon = stage.daemon

    def die_at(mark: Mark) -> None:
        if mark.kind == at:
            daemon.die()

    daemon.terminal.on_mark.insert(0, die_at)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.create_task(stage.exec(text, client, **fields))
        pytest.fail(f"the daemon outlived {at}")


@pytest.mark.parametrize("at", ["A", "S", "E", "P"])
async def test_the_next_daemon_completes_a_command(stage: Stage, at: str) -> None:
    text = "n=$((n+1)); echo output $n; /bin/false"
    with collecting() as row:
        for half in (b"", b"echo ha''lf"):
            with row(half):
                fresh, client = await stage.fresh("n=0"), Client()
                await fresh.type(half)
                if at == "P":
                    assert (await fresh.exec(text, client)).output == b"output 1\n"
                else:
                    await run_until_death(fresh, text, at, client)
                await fresh.next_daemon()
                ran = await fresh.resume(client.exec_id, len(client.output_bytes))
                assert bytes(client.output_bytes) + ran.output == b"output 1\n"
                assert (ran.exit, ran.by) == (1, "command")
                assert (await fresh.exec("echo next $?")).output == b"next 1\n"
                mark = len(fresh.printed())
                await fresh.type(b"\rsh -c 'kill -TERM $$'\rstty -a </dev/tty\r")
                await fresh.wait_printed(b"opost", mark)
                assert b"-opost" not in fresh.printed(mark)
                if half:
                    await fresh.wait_printed(b"half", mark)


# text, its output before the daemon dies, exit status, all its output
RUNNING_AT_DEATH = [
    ("for i in 1 2 3; do echo $i; sleep 0.1; done; (exit 3)", b"1\n", 3, b"1\n2\n3\n"),
    ("echo begin; yes | head -c 1000000", b"begin\n", 0, b"begin\n" + b"y\n" * 500_000),  # more than the ring holds
]


async def test_the_client_of_a_running_command_gets_the_rest_from_the_next_daemon(stage: Stage) -> None:
    stage.ring_size = 1 << 16
    await stage.open()
    with collecting() as row:
        for text, shows, status, output in RUNNING_AT_DEATH:
            with row(text):
                task, client = await stage.begin(text, shows)
                await stage.next_daemon(task)
                got = bytes(client.output_bytes)
                ran = await stage.resume(client.exec_id, len(got))
                assert ran.exit == status
                assert got + ran.output == output
        with row("the next command waits for the running command"):
            task, _ = await stage.begin("echo one; sleep 0.3; x=2", b"one\n")
            await stage.next_daemon(task)
            assert (await stage.exec("echo $x")).output == b"2\n"
        with row("unknown command"):
            assert (await stage.resume("0" * 16, 0)).exit == 125


async def test_a_timeout_still_applies_under_the_next_daemon(stage: Stage) -> None:
    await stage.open()
    task, client = await stage.begin("echo one; sleep 1000", b"one\n", programs=1, timeout_s=0.5)
    await stage.next_daemon(task)
    ran = await stage.resume(client.exec_id, 4)
    assert (ran.exit, ran.by) == (124, "waypoint")


async def test_input_cut_by_the_death_of_the_daemon_is_reported_unless_it_had_ended(stage: Stage) -> None:
    await stage.open()
    with collecting() as row:
        for ended in (False, True):
            with row(f"ended: {ended}"):
                client = Client()
                for piece in (b"some input\n", *([b""] if ended else [])):
                    client.send("i", piece)
                text = "cat; sleep 0.3; echo end"
                task, _ = await stage.begin(text, b"some input\n", client, programs=1, stdin=True)
                await stage.next_daemon(task)
                ran = await stage.resume(client.exec_id, len(client.output_bytes))
                if ended:
                    assert (ran.exit, ran.by, ran.output) == (0, "command", b"end\n")
                else:
                    assert (ran.exit, ran.by) == (125, "waypoint")
                    assert "input" in ran.said


async def test_the_shell_may_end_while_there_is_no_daemon(stage: Stage) -> None:
    await stage.open()
    task, client = await stage.begin("echo one; sleep 0.3; exec sh -c 'exit 5'", b"one\n")
    stage.daemon.die()
    fd = pidfd.open(stage.pid)
    assert await asyncio.to_thread(pidfd.wait_ended, fd, 10)
    os.close(fd)
    await stage.next_daemon(task)
    stage.daemon.ended.set_result(5)
    ran = await stage.resume(client.exec_id, 4)
    assert (ran.exit, ran.by, ran.ended) == (5, "command", True)


async def test_the_next_daemon_recognises_the_shell_without_a_new_prompt(stage: Stage) -> None:
    stage.ring_size = 1 << 16
    await stage.open()
    await stage.exec("(yes noise | head -c 300000 >/dev/tty) & wait")
    await stage.daemon.line.wait_idle()
    await stage.next_daemon()
    assert (await stage.exec("echo hi")).output == b"hi\n"


@pytest.mark.soak(part="faults")
async def test_each_command_runs_exactly_once_whenever_the_daemon_dies(stage: Stage) -> None:
    """About a hundred daemons die for one shell, at all steps of a command, with and without a half-typed line."""
    await stage.open("n=0")
    count, turns, finished = 0, 0, 0
    while finished < 3:
        if turns % 3 == 0:
            await stage.daemon.line.wait_idle()
            await stage.type(b"\x15: half")
        client = Client()
        task = asyncio.create_task(stage.exec("n=$((n+1)); echo $n; /bin/true", client))
        for _ in range(turns):
            await asyncio.sleep(0)
        finished += task.done()
        await stage.next_daemon(task)
        output = bytes(client.output_bytes)
        if client.notes:
            count += 1
            ran = await stage.resume(client.exec_id, len(output))
            assert (ran.exit, ran.by) == (0, "command"), (turns, ran)
            assert output + ran.output == f"{count}\n".encode(), turns
        turns += 1 + turns // 8
    assert (await stage.exec("echo $n")).output == f"{count}\n".encode()
    assert (await stage.exec("stty -a </dev/tty | grep -c -- -opost; true")).output == b"1\n"
    mark = len(stage.printed())
    await stage.daemon.line.wait_idle()
    await stage.type(b"\rstty -a </dev/tty\r")  # the half-typed line has no effect; zsh may lose a ^U while it draws
    await stage.wait_printed(b"opost", mark)
    assert b"-opost" not in stage.printed(mark)
