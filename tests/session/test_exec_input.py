"""The stdin of a command: nothing, a stream from the client, or the terminal."""

import asyncio
import hashlib
import os

import pytest

from tests.session.stage import Client, Stage


def client_with(*pieces: bytes, end: bool = True) -> Client:
    client = Client()
    for piece in pieces:
        client.send("i", piece)
    if end:
        client.send("i", b"")
    return client


async def test_input_arrives_whole_and_ends(stage: Stage) -> None:
    await stage.open()
    ran = await stage.exec("cat; echo end", client_with(b"one\n", b"two", b"\n"), stdin=True)
    assert ran == (0, b"one\ntwo\nend\n", "command", False, "")


async def test_megabytes_of_binary_input_arrive_unchanged(stage: Stage) -> None:
    await stage.open()
    data = os.urandom(5_000_000)
    pieces = [data[place : place + 65536] for place in range(0, len(data), 65536)]
    ran = await stage.exec("sha256sum | cut -c1-64", client_with(*pieces), stdin=True)
    assert ran.output.decode().strip() == hashlib.sha256(data).hexdigest()


async def test_no_input_at_all_is_an_end_at_once(stage: Stage) -> None:
    await stage.open()
    assert (await stage.exec("cat; echo end", client_with(), stdin=True)).output == b"end\n"


async def test_what_read_takes_stays_in_the_shell(stage: Stage) -> None:
    await stage.open()
    await stage.exec("read -r first; read -r second", client_with(b"a b\nc\n"), stdin=True)
    assert (await stage.exec('echo "$first/$second"')).output == b"a b/c\n"


@pytest.mark.parametrize("text", ["true", "head -c 1 >/dev/null", "exec </dev/null; sleep 0.01"])
async def test_a_command_that_does_not_take_its_input_ends_all_the_same(stage: Stage, text: str) -> None:
    await stage.open()
    ran = await stage.exec(text, client_with(*[bytes(65536)] * 40, end=False), stdin=True)
    assert ran.exit == 0
    assert (await stage.exec("echo next")).output == b"next\n"


async def test_a_signal_gets_through_behind_input_that_nobody_takes(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = asyncio.create_task(stage.exec("sleep 1000", client, stdin=True))
    for _ in range(10):
        client.send("i", bytes(65536))
    await stage.wait_foreground(1)
    client.send("k", b"INT")
    assert (await task).exit == 130


async def test_input_given_piece_by_piece_is_passed_on_at_once(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = asyncio.create_task(stage.exec("while read -r x; do echo got $x; done", client, stdin=True))
    for number in range(5):
        client.send("i", f"{number}\n".encode())
        await client.wait_output(f"got {number}\n".encode())
    client.send("i", b"")
    assert (await task).exit == 0


@pytest.mark.parametrize("programs", [0, 1], ids=["as soon as asked", "while it runs"])
async def test_a_client_that_leaves_ends_its_input(stage: Stage, programs: int) -> None:
    await stage.open()
    client = client_with(b"some\n", end=False)
    task = asyncio.create_task(stage.exec("cat >got; echo done >>got", client, stdin=True))
    while not client.notes:
        await asyncio.sleep(0)
    if programs:
        await stage.wait_foreground(programs)
    client.leave()
    assert "client has gone" in (await task).said
    assert (await stage.exec("cat got")).output == b"some\ndone\n"


async def test_with_a_terminal_the_client_types(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = asyncio.create_task(stage.exec("test -t 0 && read -r x && echo got $x", client, tty=True))
    while not client.notes:
        await asyncio.sleep(0)
    client.send("i", b"hello\r")
    ran = await task
    assert ran.exit == 0
    assert ran.output.endswith(b"hello\r\ngot hello\r\n")


async def test_with_a_terminal_control_c_is_a_character(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = asyncio.create_task(stage.exec("sleep 1000", client, tty=True))
    await stage.wait_foreground(1)
    client.send("i", b"\x03")
    assert (await task).exit == 130


async def test_a_command_begins_in_its_clients_window(stage: Stage) -> None:
    await stage.open()
    ran = await stage.exec("stty size", tty=True, rows=20, cols=66)
    assert ran.output == b"20 66\r\n"


async def test_the_window_may_change_while_the_command_waits_for_its_turn(stage: Stage) -> None:
    await stage.open()
    other, client = Client(), Client()
    before = asyncio.create_task(stage.exec("echo ready; read -r x", other, tty=True))
    await other.wait_output(b"ready")
    client.send("w", (20).to_bytes(2, "big") + (66).to_bytes(2, "big"))
    task = asyncio.create_task(stage.exec("stty size", client, tty=True, rows=30, cols=100))
    await stage.type(b"\r")
    assert (await before).exit == 0
    assert (await task).output == b"20 66\r\n"


async def test_a_clients_window_counts_while_its_command_has_the_terminal(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = asyncio.create_task(stage.exec("echo ready; read -r x; stty size", client, tty=True))
    await client.wait_output(b"ready")
    client.send("w", (20).to_bytes(2, "big") + (66).to_bytes(2, "big"))
    client.send("i", b"\r")
    assert b"20 66" in (await task).output
