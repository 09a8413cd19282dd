"""The stdin of a command: empty, a stream from the client, or the terminal."""

import asyncio
import hashlib
import os

from tests.collecting import collecting
from tests.session.stage import Client, Stage


def client_with(*pieces: bytes, end: bool = True) -> Client:
    client = Client()
    for piece in pieces:
        client.send("i", piece)
    if end:
        client.send("i", b"")
    return client


def window(rows: int, cols: int) -> bytes:
    return rows.to_bytes(2, "big") + cols.to_bytes(2, "big")


async def test_all_input_and_its_end_reach_the_command(stage: Stage) -> None:
    await stage.open()
    data = os.urandom(5_000_000)
    blocks = [data[place : place + 65536] for place in range(0, len(data), 65536)]
    with collecting() as row:
        for text, pieces, output in (
            ("cat; echo end", [b"one\n", b"two", b"\n"], b"one\ntwo\nend\n"),
            ("cat; echo end", [], b"end\n"),
            ("read -r first; read -r second", [b"a b\nc\n"], b""),
            ('echo "$first/$second"', [], b"a b/c\n"),
            ("sha256sum | cut -c1-64", blocks, f"{hashlib.sha256(data).hexdigest()}\n".encode()),
        ):
            with row(text):
                ran = await stage.exec(text, client_with(*pieces), stdin=True)
                assert ran == (0, output, "command", False, "")


async def test_a_command_need_not_read_its_input(stage: Stage) -> None:
    with collecting() as row:
        for text in ("true", "head -c 1 >/dev/null", "exec </dev/null; sleep 0.01"):
            with row(text):
                fresh = await stage.fresh()
                ran = await fresh.exec(text, client_with(*[bytes(65536)] * 40, end=False), stdin=True)
                assert ran.exit == 0
                assert (await fresh.exec("echo next")).output == b"next\n"


async def test_a_signal_overtakes_input_that_is_not_read(stage: Stage) -> None:
    await stage.open()
    client = client_with(*[bytes(65536)] * 10, end=False)
    task, _ = await stage.begin("sleep 1000", client=client, programs=1, stdin=True)
    client.send("k", b"INT")
    assert (await task).exit == 130


async def test_input_is_passed_on_at_once(stage: Stage) -> None:
    await stage.open()
    task, client = await stage.begin("while read -r x; do echo got $x; done", stdin=True)
    for number in range(5):
        client.send("i", f"{number}\n".encode())
        await client.wait_output(f"got {number}\n".encode())
    client.send("i", b"")
    assert (await task).exit == 0


async def test_a_client_that_leaves_ends_the_input(stage: Stage) -> None:
    await stage.open()
    with collecting() as row:
        for programs in (None, 1):
            with row("before the command runs" if programs is None else "while it runs"):
                client = client_with(b"some\n", end=False)
                task, _ = await stage.begin("cat >got; echo done >>got", client=client, programs=programs, stdin=True)
                client.leave()
                assert "client has disconnected" in (await task).said
                assert (await stage.exec("cat got")).output == b"some\ndone\n"


async def test_with_a_terminal_the_input_of_the_client_is_typed(stage: Stage) -> None:
    await stage.open()
    task, client = await stage.begin("test -t 0 && read -r x && echo got $x", tty=True)
    client.send("i", b"hello\r")
    ran = await task
    assert ran.exit == 0
    assert ran.output.endswith(b"hello\r\ngot hello\r\n")
    task, client = await stage.begin("sleep 1000", programs=1, tty=True)
    client.send("i", b"\x03")
    assert (await task).exit == 130


async def test_a_command_with_a_terminal_has_the_window_size_of_its_client(stage: Stage) -> None:
    await stage.open()
    assert (await stage.exec("stty size", tty=True, rows=30, cols=70)).output == b"30 70\r\n"
    running, first = await stage.begin("echo ready; read -r x; stty size", b"ready", tty=True)
    second = Client()
    second.send("w", window(21, 67))
    waiting = asyncio.create_task(stage.exec("stty size", second, tty=True, rows=30, cols=100))
    first.send("w", window(20, 66))
    first.send("i", b"\r")
    assert b"20 66" in (await running).output
    assert (await waiting).output == b"21 67\r\n"
