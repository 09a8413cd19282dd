"""A person shares the shell: what they have typed is neither run nor lost, whatever they were in the middle of."""

import asyncio

import pytest

from tests.session.stage import UNTIL_GO, Client, Stage
from tests.waiting import PATIENCE_S, wait_until

# What is typed, what is typed after the command, and what the line prints (which is not what it looks like).
HALF_LINES = [
    (b"echo ha''lf", b"", b"half"),
    (b"echo 'half \"quo", b"''ted'", b'half "quoted'),
    ("echo h\u00e4''lf \u20ac".encode(), b"", "h\u00e4lf \u20ac".encode()),
    (b"echo " + b"lo''ng " * 40, b"", b"long " * 39 + b"long"),
    (b"echo ha''l\x1b[D\x1b[D", b"\x05f", b"half"),
    (b"echo back\x08\x08\x08\x08ha''lf", b"", b"half"),
    (b"echo ad''\x1b[D\x1b[D\x1b[D", b"bc", b"abcd"),
]


@pytest.mark.parametrize(("typed", "rest", "printed"), HALF_LINES)
async def test_a_half_typed_line_is_neither_run_nor_lost(
    stage: Stage, typed: bytes, rest: bytes, printed: bytes
) -> None:
    await stage.open()
    await stage.type(typed)
    ran = await stage.exec("echo from exec")
    assert ran.output == b"from exec\n"
    await stage.type(rest + b"\r")
    await stage.wait_printed(printed)


@pytest.mark.parametrize("term", ["dumb", "nosuch"])
async def test_a_terminal_that_can_do_nothing_does(bash: Stage, term: str) -> None:
    """readline 8.2 hangs in drawing some lines that are wider than such a one, with a prompt like Debian's."""
    await bash.open(rc=f"TERM={term}; PS1='> '")
    for width in (29, 52, 60, 77, 100, 140):
        await bash.exec(rf"PS1='\[\e]0;{'i' * 36}\a\]{'v' * width}$ '")
        assert (await bash.exec("echo from exec")).output == b"from exec\n"
    await bash.type("echo \u00fc''ber\r".encode())  # characters are characters again
    await bash.wait_printed("\n\u00fcber".encode())


@pytest.mark.parametrize("text", ["sleep 1000", "while :; do :; done"])
async def test_a_half_typed_line_survives_an_interrupt(stage: Stage, text: str) -> None:
    await stage.open()
    await stage.type(b"echo ha''lf")
    client = Client()
    task = asyncio.create_task(stage.exec(f"echo run''ning; {text}", client))
    await client.wait_output(b"running")
    await stage.wait_foreground(1 if "sleep" in text else 0)
    client.send("k", b"INT")
    await task
    await stage.type(b"-line\r")
    await stage.wait_printed(b"half-line")


async def test_keys_typed_while_a_command_runs_come_after_it(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = asyncio.create_task(stage.exec(f"echo one; read -r x </dev/null; {UNTIL_GO}; echo two", client))
    await client.wait_output(b"one\n")
    await stage.type(b"echo ty''ped\r")
    (stage.home / "go").touch()
    ran = await task
    assert ran.output == b"one\ntwo\n"
    await stage.wait_printed(b"typed")


async def test_control_keys_typed_while_a_command_runs_are_the_editors_not_the_terminals(stage: Stage) -> None:
    await stage.open("PROMPT_COMMAND='sleep 0.1'; precmd() { sleep 0.1; }")
    await stage.type(b"echo wrong")
    client = Client()
    task = asyncio.create_task(stage.exec(f"echo one; {UNTIL_GO}", client))
    await client.wait_output(b"one\n")
    await stage.type(b"\x15echo ri''ght\r")
    (stage.home / "go").touch()
    await task
    await stage.wait_printed(b"right")
    assert b"wrongecho" not in stage.printed()


async def test_keys_typed_while_a_command_runs_go_behind_the_half_typed_line(stage: Stage) -> None:
    await stage.open()
    await stage.type(b"echo fi''")
    client = Client()
    task = asyncio.create_task(stage.exec(f"echo one; {UNTIL_GO}", client))
    await client.wait_output(b"one\n")
    await stage.type(b"rst\r")
    (stage.home / "go").touch()
    assert (await task).output == b"one\n"
    await stage.wait_printed(b"first")


@pytest.mark.parametrize(
    "keys",
    [
        b"\x1b",
        b"\x18",
        b"\x12",
        b"\x12ech",
        b"\x13",
        b"\x16",
        b"\x1b5",
        b"echo x\x1b",
        b"ec\t",
        b"ec\t\t",
        b"echo $\t\t",
    ],
)
async def test_keys_half_pressed_do_not_get_in_the_way(bash: Stage, keys: bytes) -> None:
    await bash.open()
    await bash.exec("echo something for the search >/dev/null")
    await bash.type(keys)
    assert await bash.exec("echo from exec") == (0, b"from exec\n", "command", False, "")
    await bash.type(b"\x07\x15")
    await bash.type(b"echo cl''ean\r")
    await bash.wait_printed(b"\rclean\r\n")


async def test_a_terminal_that_was_stopped_before_the_shell_drew_its_prompt_is_started_again(bash: Stage) -> None:
    await bash.open()
    await bash.exec("PROMPT_COMMAND[978]='touch drawing; until [[ -e stopped ]]; do sleep 0.01; done'")
    await asyncio.to_thread(wait_until, (bash.home / "drawing").exists, "prompt")
    await bash.type(b"\x13")
    (bash.home / "stopped").touch()
    assert await bash.exec("echo from exec") == (0, b"from exec\n", "command", False, "")


@pytest.mark.parametrize("keys", [b"\x12", b"\x12ech", b"echo x\x1b"])
async def test_a_search_in_zsh_does_not_get_in_the_way(zsh: Stage, keys: bytes) -> None:
    await zsh.open()
    await zsh.type(keys)
    assert await zsh.exec("echo from exec") == (0, b"from exec\n", "command", False, "")


@pytest.mark.parametrize("keys", [b"", b"echo ha''lf", b"echo ha''lf\x1b", b"echo ha''lf\x1bb"])
async def test_vi_mode_is_served_in_both_its_modes(stage: Stage, keys: bytes) -> None:
    await stage.open()
    await stage.exec("set -o vi" if stage.shell == "bash" else "bindkey -v")
    await stage.type(keys)
    assert await stage.exec("echo from exec") == (0, b"from exec\n", "command", False, "")
    if keys:
        await stage.type(b"\r")
        await stage.wait_printed(b"half")


@pytest.mark.parametrize("keys", [b"echo 'open\r", b"for i in 1; do\r", b"cat <<END\r", b"echo \\\r"])
async def test_in_the_middle_of_a_longer_command_exec_waits_and_then_says_so(stage: Stage, keys: bytes) -> None:
    await stage.open()
    mark = len(stage.printed())
    await stage.type(keys)
    await stage.wait_printed(b"> ", mark)
    ran = await stage.exec("echo from exec", wait_prompt_s=0.3)
    assert (ran.exit, ran.by, ran.output) == (125, "waypoint", b"")
    waiting = asyncio.create_task(stage.exec("echo from exec", wait_prompt_s=PATIENCE_S))
    await asyncio.sleep(0)
    await stage.type(b"\x03")
    assert (await waiting).output == b"from exec\n"


async def test_a_foreground_program_is_waited_for_and_named(stage: Stage) -> None:
    await stage.open()
    await stage.type(b"cat\r")
    await stage.wait_foreground(1)
    ran = await stage.exec("echo from exec", wait_prompt_s=0.2)
    assert (ran.exit, ran.by, ran.output) == (125, "waypoint", b"")
    assert "cat" in ran.said
    waiting = asyncio.create_task(stage.exec("echo from exec", wait_prompt_s=PATIENCE_S))
    await asyncio.sleep(0)
    await stage.type(b"\x04")
    assert (await waiting).output == b"from exec\n"


@pytest.mark.parametrize("text", ["read -r -s -n1 x", "read -r -k1 x", "read -r -e x", "vared y"])
async def test_a_builtin_that_reads_keys_is_not_the_prompt(stage: Stage, text: str) -> None:
    if (stage.shell == "zsh") == (" -e" in text or " -n1" in text):
        return
    await stage.open("y=1")
    await stage.type(f'echo be""gun; {text}; echo "got <$x>"\r'.encode())
    await stage.wait_printed(b"begun")
    ran = await stage.exec("echo from exec", wait_prompt_s=0.3)
    assert (ran.exit, ran.by, ran.output) == (125, "waypoint", b"")
    await stage.type(b"q\r")
    assert (await stage.exec("echo from exec", wait_prompt_s=PATIENCE_S)).output == b"from exec\n"
    assert b"7717" not in stage.printed().split(b"got <")[1][:3]


async def test_a_waiting_command_whose_client_leaves_is_not_run(stage: Stage) -> None:
    await stage.open()
    await stage.type(b"cat\r")
    await stage.wait_foreground(1)
    first, second = Client(), Client()
    one = asyncio.create_task(stage.exec("echo >one", first, wait_prompt_s=PATIENCE_S))
    two = asyncio.create_task(stage.exec("echo >two", second, wait_prompt_s=PATIENCE_S))
    await asyncio.sleep(0)
    first.leave()
    second.send("k", b"INT")
    assert (await one).exit == (await two).exit == 125
    await stage.type(b"\x04")
    assert (await stage.exec("ls", wait_prompt_s=PATIENCE_S)).output == b""


async def test_a_background_job_may_print_into_a_commands_output(stage: Stage) -> None:
    await stage.open()
    await stage.exec("(while [ ! -e go-on ]; do :; done; echo from behind; : >said) &")
    ran = await stage.exec("echo in front; : >go-on; while [ ! -e said ]; do :; done; rm said go-on")
    assert {b"from behind", b"in front"} <= set(ran.output.splitlines())
