"""The daemon may die at any moment of an exec: the next one sees it through, and its client loses nothing."""

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shellwrap.marks import Mark
from tests.faults import EACH
from tests.session.stage import UNTIL_GO, Client, Stage
from tests.waiting import PATIENCE_S
from waypoint.linux.tasks import pidfd
from waypoint.terminal.exec.beginning import Beginning
from waypoint.terminal.hooks.shell_watch import NotAtPrompt


async def run_until_death(stage: Stage, text: str, at: str, client: Client, **fields: object) -> None:
    """Start a command, and let the daemon die the moment it hears the mark `at`."""
    daemon = stage.daemon

    def hear(mark: Mark) -> None:
        if mark.kind == at:
            daemon.die()

    daemon.terminal.on_mark.insert(0, hear)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.create_task(stage.exec(text, client, **fields))
        pytest.fail(f"the daemon outlived {at}")


@pytest.mark.parametrize("error", [NotAtPrompt("busy"), OSError(5, "Input/output error")])
async def test_a_daemon_that_stops_while_a_failed_command_waits_to_be_closed_keeps_nobody_waiting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    daemon = await stage.open()
    closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def fail(_: Beginning) -> None:
        daemon.terminal.moving.clear()  # a capture: the record may not be changed before it is done
        asyncio.get_running_loop().call_soon(closing.set_result, None)
        raise error

    monkeypatch.setattr(Beginning, "wait", fail)
    asking = asyncio.create_task(stage.exec("true"))
    await closing
    run = daemon.line._current
    assert run is not None
    daemon.die()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await asyncio.wait([run.result], timeout=PATIENCE_S)
    assert run.result.cancelled()
    assert run.started.is_set()


@pytest.mark.parametrize("at", ["A", "S", "E", "P"])
@pytest.mark.parametrize("half", [b"", b"echo ha''lf"])
async def test_a_command_is_seen_through_by_the_next_daemon(stage: Stage, at: str, half: bytes) -> None:
    await stage.open("n=0")
    await stage.type(half)
    client = Client()
    if at == "P":
        ran = await stage.exec("n=$((n+1)); echo output $n; /bin/false", client)
        assert ran.output == b"output 1\n"
    else:
        await run_until_death(stage, "n=$((n+1)); echo output $n; /bin/false", at, client)
    await stage.next_daemon()
    ran = await stage.resume(client.exec_id, len(client.output_bytes))
    assert bytes(client.output_bytes) + ran.output == b"output 1\n"
    assert (ran.exit, ran.by) == (1, "command")
    after = await stage.exec("echo next $?")
    assert after.output == b"next 1\n"
    mark = len(stage.printed())
    await stage.type(b"\rsh -c 'kill -TERM $$'\rstty -a </dev/tty\r")
    await stage.wait_printed(b"opost", mark)
    assert b"-opost" not in stage.printed(mark)
    if half:
        await stage.wait_printed(b"half", mark)


async def test_a_command_that_goes_on_is_taken_over_with_its_output(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = asyncio.create_task(stage.exec("for i in 1 2 3; do echo $i; sleep 0.2; done; (exit 3)", client))
    await client.wait_output(b"1\n")
    await stage.next_daemon()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    ran = await stage.resume(client.exec_id, len(client.output_bytes))
    assert (bytes(client.output_bytes) + ran.output, ran.exit) == (b"1\n2\n3\n", 3)


async def test_output_is_kept_for_a_client_that_comes_back(stage: Stage) -> None:
    stage.ring_size = 1 << 16
    await stage.open()
    client = Client()
    task = asyncio.create_task(stage.exec("echo begin; yes | head -c 1000000", client))
    await client.wait_output(b"begin\n")
    await stage.next_daemon()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    got = bytes(client.output_bytes)
    ran = await stage.resume(client.exec_id, len(got))
    assert got + ran.output == b"begin\n" + b"y\n" * 500_000


async def test_a_command_started_before_by_another_client_is_waited_for(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = asyncio.create_task(stage.exec("echo one; sleep 0.3; x=2", client))
    await client.wait_output(b"one\n")
    await stage.next_daemon()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert (await stage.exec("echo $x")).output == b"2\n"


async def test_a_timeout_goes_on_over_a_change_of_daemons(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = asyncio.create_task(stage.exec("echo one; sleep 1000", client, timeout_s=0.5))
    await client.wait_output(b"one\n")
    await stage.wait_foreground(1)
    await stage.next_daemon()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    ran = await stage.resume(client.exec_id, 4)
    assert (ran.exit, ran.by) == (124, "waypoint")


async def test_input_that_was_cut_is_told_and_not_taken_for_an_end(stage: Stage) -> None:
    await stage.open()
    client = Client()
    client.send("i", b"some input\n")
    task = asyncio.create_task(stage.exec("cat", client, stdin=True))
    await client.wait_output(b"some input\n")
    await stage.next_daemon()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    ran = await stage.resume(client.exec_id, len(client.output_bytes))
    assert (ran.exit, ran.by) == (125, "waypoint")
    assert "input" in ran.said


async def test_input_that_had_ended_is_no_matter(stage: Stage) -> None:
    await stage.open()
    client = Client()
    client.send("i", b"some input\n")
    client.send("i", b"")
    task = asyncio.create_task(stage.exec(f"cat; {UNTIL_GO}; echo end", client, stdin=True))
    await client.wait_output(b"some input\n")
    await stage.wait_foreground(1)
    await stage.next_daemon()
    (stage.home / "go").touch()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    ran = await stage.resume(client.exec_id, len(client.output_bytes))
    assert (ran.exit, ran.by, ran.output) == (0, "command", b"end\n")


async def test_the_shell_may_end_while_there_is_no_daemon(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = asyncio.create_task(stage.exec(f"echo one; {UNTIL_GO}; exec sh -c 'exit 5'", client))
    await client.wait_output(b"one\n")
    stage.daemon.die()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    fd = pidfd.open(stage.pid)
    (stage.home / "go").touch()
    assert await asyncio.to_thread(pidfd.wait_ended, fd, PATIENCE_S)
    os.close(fd)
    await stage.next_daemon()
    stage.daemon.ended.set_result(5)
    ran = await stage.resume(client.exec_id, 4)
    assert (ran.exit, ran.by, ran.ended) == (5, "command", True)


async def test_an_unknown_command_cannot_be_resumed(stage: Stage) -> None:
    await stage.open()
    assert (await stage.resume("0" * 16, 0)).exit == 125


async def test_the_shell_is_known_again_without_a_new_prompt(stage: Stage) -> None:
    stage.ring_size = 1 << 16
    await stage.open()
    await stage.exec("(yes noise | head -c 300000 >/dev/tty) & wait")
    await stage.daemon.line.wait_idle()
    await stage.next_daemon()
    assert (await stage.exec("echo hi")).output == b"hi\n"


@pytest.mark.parametrize("seed", range(4 if EACH else 2))
async def test_a_daemon_killed_in_a_flood_loses_no_byte(bash: Stage, seed: int, tmp_path: Path) -> None:
    """A real process, killed by SIGKILL at moments that it does not choose; ten times in one flood."""
    await bash.open()
    await bash.exec("true")
    await bash.daemon.line.wait_idle()
    bash.daemon.die()
    text = "i=0; while ((i<40)); do seq $((i*10000)) $((i*10000+9999)); i=$((i+1)); done; (exit 3)"
    got, ident = b"", ""
    for kill_after in [20_000 + (seed * 7919 + turn * 104_729) % 150_000 for turn in range(10)] + [0]:
        with subprocess.Popen(
            [sys.executable, "-m", "tests.session.mortal_daemon", str(bash.folder), ident or "-", str(len(got)), text],
            bufsize=0,
            stdout=subprocess.PIPE,
            pass_fds=(bash.master,),
            env={**os.environ, "MASTER": str(bash.master), "SHELL_PID": str(bash.pid)},
        ) as process:
            assert process.stdout is not None
            ident = process.stdout.readline().decode().strip()
            piece = b""
            while chunk := os.read(process.stdout.fileno(), 4096):
                piece += chunk
                if kill_after and len(piece) > kill_after:
                    process.send_signal(signal.SIGKILL)
                    kill_after = 0
            got += piece
        if process.returncode == 0:
            break
    expected = b"".join(f"{number}\n".encode() for number in range(400_000))
    got, _, status = got.rpartition(b"\nEND ")
    assert status == b"3"
    assert len(got) == len(expected)
    assert hashlib.sha256(got).digest() == hashlib.sha256(expected).digest()


async def test_at_whatever_turn_of_its_loop_a_daemon_dies_each_command_runs_once(stage: Stage) -> None:
    """Some hundred deaths in one shell, spread over all steps of a command with and without a half-typed line."""
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
        await stage.next_daemon()
        with contextlib.suppress(asyncio.CancelledError):
            await task
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
    await stage.type(b"\rstty -a </dev/tty\r")  # what is half typed does nothing; zsh may lose a ^U while it draws
    await stage.wait_printed(b"opost", mark)
    assert b"-opost" not in stage.printed(mark)
