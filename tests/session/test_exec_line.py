"""exec works while a person types in the same shell: the typed text is neither run nor lost."""

import asyncio

import pytest

from tests.collecting import collecting
from tests.session.stage import Client, Stage
from tests.waiting import PATIENCE_S

# typed before the command, typed after it, the output of the line (the quotes make it differ from the typed text)
HALF_LINES = [
    (b"echo ha''lf", b"", b"half"),
    (b"echo 'half \"quo", b"''ted'", b'half "quoted'),
    ("echo h\u00e4''lf \u20ac".encode(), b"", "h\u00e4lf \u20ac".encode()),
    (b"echo " + b"lo''ng " * 40, b"", b"long " * 39 + b"long"),
    (b"echo ha''l\x1b[D\x1b[D", b"\x05f", b"half"),
    (b"echo back\x08\x08\x08\x08ha''lf", b"", b"half"),
    (b"echo ad''\x1b[D\x1b[D\x1b[D", b"bc", b"abcd"),
]
# Keys after which the line editor waits for another key.
HALF_KEYS = (b"\x1b", b"\x18", b"\x12", b"\x12ech", b"\x16", b"\x1b5", b"echo x\x1b", b"ec\t", b"ec\t\t", b"echo $\t\t")
FROM_EXEC = (0, b"from exec\n", "command", False, "")


async def test_a_half_typed_line_is_neither_run_nor_lost(stage: Stage) -> None:
    await stage.open()
    with collecting() as row:
        for typed, rest, printed in HALF_LINES:
            with row(typed):
                await stage.exec("true")  # the shell is at its prompt again
                mark = len(stage.printed())
                await stage.type(typed)
                assert await stage.exec("echo from exec") == FROM_EXEC
                await stage.type(rest + b"\r")
                await stage.wait_printed(printed, mark)


async def test_exec_works_on_a_terminal_without_capabilities(bash: Stage) -> None:
    """On such a terminal, readline 8.2 hangs when it draws some wide lines with a prompt like Debian's."""
    with collecting() as row:
        for term in ("dumb", "nosuch"):
            with row(term):
                stage = await bash.fresh(f"TERM={term}; PS1='> '")
                for width in (29, 52, 60, 77, 100, 140):
                    await stage.exec(rf"PS1='\[\e]0;{'i' * 36}\a\]{'v' * width}$ '")
                    assert await stage.exec("echo from exec") == FROM_EXEC
                await stage.type("echo \u00fc''ber\r".encode())  # UTF-8 input works again
                await stage.wait_printed("\n\u00fcber".encode())


@pytest.mark.soak(part="timing")
async def test_a_half_typed_line_survives_an_interrupt(stage: Stage) -> None:
    for text, programs in (("sleep 1000", 1), ("while :; do :; done", 0)):
        fresh = await stage.fresh()
        await fresh.type(b"echo ha''lf")
        task, client = await fresh.begin(f"echo run''ning; {text}", b"running", programs=programs)
        client.send("k", b"INT")
        await task
        await fresh.type(b"-line\r")
        await fresh.wait_printed(b"half-line")


async def test_keys_typed_while_a_command_runs_follow_the_half_typed_line(stage: Stage) -> None:
    with collecting() as row:
        for half, rest, printed in ((b"", b"echo ty''ped\r", b"typed"), (b"echo fi''", b"rst\r", b"first")):
            with row(printed):
                fresh = await stage.fresh()
                await fresh.type(half)
                task, _ = await fresh.begin("echo one; until [ -e go ]; do :; done; echo two", b"one\n")
                await fresh.type(rest)
                (fresh.home / "go").touch()
                assert (await task).output == b"one\ntwo\n"
                await fresh.wait_printed(printed)


async def test_control_keys_typed_while_a_command_runs_go_to_the_line_editor(stage: Stage) -> None:
    await stage.open("PROMPT_COMMAND='sleep 0.1'; precmd() { sleep 0.1; }")
    await stage.type(b"echo wrong")
    task, _ = await stage.begin("echo one; sleep 0.2", b"one\n")
    await stage.type(b"\x15echo ri''ght\r")
    await task
    await stage.wait_printed(b"right")
    assert b"wrongecho" not in stage.printed()


async def half_pressed(stage: Stage, keys: bytes) -> None:
    await stage.exec("echo something for the search >/dev/null")
    mark = len(stage.printed())
    await stage.type(keys)
    assert await stage.exec("echo from exec") == FROM_EXEC
    await stage.type(b"\x07\x15echo cl''ean\r")
    await stage.wait_printed(b"\rclean\r\n", mark)


async def test_exec_runs_while_the_line_editor_waits_for_a_second_key(stage: Stage) -> None:
    with collecting() as row:
        for keys in HALF_KEYS if stage.shell == "bash" else (b"\x12", b"\x12ech", b"echo x\x1b"):
            with row(keys):
                fresh = await stage.fresh()
                if stage.shell == "bash":
                    await half_pressed(fresh, keys)
                else:
                    await fresh.type(keys)
                    assert await fresh.exec("echo from exec") == FROM_EXEC


@pytest.mark.soak(part="timing")
async def test_exec_runs_while_the_terminal_is_stopped(bash: Stage) -> None:
    await bash.open()
    await half_pressed(bash, b"\x13")


async def test_exec_runs_in_both_vi_modes(stage: Stage) -> None:
    with collecting() as row:
        for keys in (b"", b"echo ha''lf", b"echo ha''lf\x1b", b"echo ha''lf\x1bb"):
            with row(keys):
                fresh = await stage.fresh()
                await fresh.exec("set -o vi" if stage.shell == "bash" else "bindkey -v")
                await fresh.type(keys)
                assert await fresh.exec("echo from exec") == FROM_EXEC
                if keys:
                    await fresh.type(b"\r")
                    await fresh.wait_printed(b"half")


# typed keys; the output that shows the shell is busy; keys that end this; a word of the refusal
GOT = b'; echo "go""t <$x>"\r'
BUSY = {
    "": [
        *((keys, b"> ", b"\x03", "") for keys in (b"echo 'open\r", b"for i in 1; do\r", b"cat <<END\r", b"echo \\\r")),
        (b"echo be''gun; cat\r", b"begun", b"\x04", "cat"),
    ],
    "bash": [(builtin + GOT, b'x>"', b"q\r", "") for builtin in (b"read -r -s -n1 x", b"read -r -e x")],
    "zsh": [(builtin + GOT, b'x>"', b"q\r", "") for builtin in (b"read -r -k1 x", b"x=; vared x")],
}


async def test_exec_waits_for_a_busy_shell_and_then_reports_it(stage: Stage) -> None:
    """The shell waits for more lines of a command, runs a foreground program, or reads keys in a builtin."""
    with collecting() as row:
        for keys, shows, end, named in BUSY[""] + BUSY[stage.shell]:
            with row(keys):
                fresh = await stage.fresh()
                mark = len(fresh.printed())
                await fresh.type(keys)
                await fresh.wait_printed(shows, mark)
                if named:
                    await fresh.wait_foreground(1)
                ran = await fresh.exec("echo from exec", wait_prompt_s=0.3)
                assert (ran.exit, ran.by, ran.output) == (125, "waypoint", b"")
                assert named in ran.said
                waiting = asyncio.create_task(fresh.exec("echo from exec", wait_prompt_s=PATIENCE_S))
                await asyncio.sleep(0)
                await fresh.type(end)
                assert (await waiting).output == b"from exec\n"
                if keys.endswith(GOT):
                    assert b"got <q>" in fresh.printed(mark)


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
