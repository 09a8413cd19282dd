"""Viewers see the output of a session without the marks of our hooks, even if they attach late or read slowly."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellwrap.marks import format_mark
from tests.session.stage import HOOKS, Client, Stage
from waypoint.terminal.drawing import WRAPPERS
from waypoint.terminal.view_filter import ViewFilter, command_line

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x1b"), max_size=12).map(str.encode)
KEYS = ("0123456789abcdef", "fedcba9876543210")
MARKS = st.sampled_from(
    [
        format_mark("P", "12", "nonce", "bash"),
        format_mark("A", *KEYS, "0"),
        format_mark("S", *KEYS),
        format_mark("V", *KEYS, "raw", "ls -l"),
        format_mark("V", *KEYS, "tty", "vi"),
        format_mark("E", *KEYS, "0", "Z"),
        format_mark("E", KEYS[0], "0" * 16, "0", "Z"),
    ]
)
DRAWINGS = st.sampled_from(  # recorded from bash 5.2 and zsh 5.9, in rows of 80 and of 20 columns
    [
        b' \\builtin eval "$__wp_x"\r\n\x1b[?2004l\r',
        b' \\builtin eval "$_\r__wp_x"\r\n\x1b[?2004l\r',
        b' \\builtin\rn eval "$__wp_x"\r\n',
        b"\x1b[9D" + WRAPPERS[1] + b"\x1b[K\x1b[A\x1b[22D\x1b[?1l\x1b>\x1b[?2004l\x1b[1B\r\r\n",
        b"\x08\x08"
        + WRAPPERS[1][4:]
        + b"\x1b[?2004l\r\r\n",  # replaces a half-typed line that begins with the same characters
        b"\x08" + WRAPPERS[2] + b"\x1b[K\x1b[5A\x08\x08\x1b[?1l\x1b>\x1b[?2004l\x1b[5B\r\r\n",
    ]
)
OTHER = st.sampled_from([b"\n", b"\x1b", b"\x1b]7717;", b"\x1b[?2004l"])
STREAM = st.lists(st.one_of(TEXT, MARKS, DRAWINGS, OTHER), max_size=20)
LINES = st.lists(st.one_of(TEXT, st.sampled_from([b"\x1b[31m", b" ", b"\\builtin eval"])), max_size=5).map(
    lambda parts: b"".join(part + b"\r\n" for part in parts)
)


def shown(pieces: list[bytes]) -> bytes:
    view = ViewFilter(0)
    return b"".join(view.feed(piece) for piece in pieces) + view.finish()


@given(STREAM.map(b"".join), st.lists(st.integers(0, 400), max_size=8))
def test_the_view_does_not_depend_on_how_the_stream_is_cut(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in pairwise(places)]
    assert shown(pieces) == shown([data])


@given(LINES, DRAWINGS, LINES, st.lists(st.integers(0, 400), max_size=8))
def test_the_view_hides_only_the_line_that_runs_a_command(
    before: bytes, drawing: bytes, after: bytes, cuts: list[int]
) -> None:
    head, end = format_mark("A", *KEYS, "0"), format_mark("V", *KEYS, "raw", "ls")
    data = head + b"P> " + before + drawing + after + end
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    seen = shown([data[begin:end] for begin, end in pairwise(places)])
    assert seen.replace(b"\x1b[?2004l", b"").replace(b"\x1b[?1l", b"").replace(b"\x1b>", b"") == (
        b"P> " + before + after + command_line("ls")
    )


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_hidden_wrappers_are_those_of_the_hooks(wrapper: bytes) -> None:
    hooks = (HOOKS / "hooks.bash").read_text() + (HOOKS / "zdotdir/.zshrc").read_text()
    assert f"='{wrapper.decode()}'" in hooks


@given(STREAM)
def test_no_mark_is_ever_shown(parts: list[bytes]) -> None:
    whole = [part for part in parts if part not in (b"\x1b", b"\x1b]7717;")]
    assert b"7717" not in shown(whole)


@given(st.lists(st.one_of(TEXT, st.sampled_from([b"\n", b"\x1b", b"\x1b[31m"])), max_size=20).map(b"".join))
def test_output_without_marks_is_shown_unchanged(data: bytes) -> None:
    assert shown([data]) == data


def test_a_command_is_shown_in_place_of_the_line_that_ran_it() -> None:
    data = (
        b"$ half\r\x1b[K"
        + format_mark("A", *KEYS, "4")
        + b'$  \\builtin eval "$__wp_x"\r\n\x1b[?2004l\r'
        + format_mark("S", *KEYS)
        + format_mark("V", *KEYS, "raw", "printf %27a%5Cnb%27%01 %C3%A4")
        + b"a\nb\n"
        + format_mark("E", *KEYS, "0", "Z")
        + format_mark("P", "1", "n", "bash")
        + b"$ half\n"
    )
    line = "\r\x1b[K\x1b[2m\u00bb printf 'a\\nb'\ufffd \u00e4\x1b[22m\r\n".encode()
    assert shown([data]) == b"$ half\r\x1b[K$ \x1b[?2004l" + line + b"a\r\nb\r\n$ half\n"


def test_an_unfinished_mark_hides_nothing() -> None:
    data = format_mark("A", *KEYS, "0") + b"x" * 8193 + b"the rest"
    assert shown([data, b" is shown"]) == b"x" * 8193 + b"the rest is shown"


async def attach(stage: Stage, client: Client, rows: int = 24, cols: int = 80) -> "asyncio.Task[None]":
    task = asyncio.create_task(stage.daemon.viewers.attach(client, client, rows, cols))
    await client.wait_output(b"P> ")
    return task


async def test_viewers_see_an_exec_but_not_the_line_that_runs_it(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = await attach(stage, client)
    await stage.exec("echo one; echo two")
    await client.wait_output(b"one\r\ntwo\r\n")
    assert "\u00bb echo one; echo two".encode() in client.output_bytes
    assert b"__wp" not in client.output_bytes
    assert b"7717" not in client.output_bytes
    client.leave()
    await task


async def test_a_later_viewer_sees_the_same_output(stage: Stage) -> None:
    await stage.open()
    early, late = Client(), Client()
    first = await attach(stage, early)
    await stage.exec("echo one; echo two")
    await stage.daemon.line.wait_idle()
    second = await attach(stage, late)
    seen, replayed = bytes(early.output_bytes), bytes(late.output_bytes)
    begin = "\u00bb echo one".encode()
    assert seen[seen.index(begin) :].startswith(replayed[replayed.index(begin) :][:40])
    for client in (early, late):
        client.leave()
    await asyncio.gather(first, second)


async def test_a_slow_viewer_is_repainted_and_delays_nobody(stage: Stage) -> None:
    stage.ring_size = 1 << 16
    await stage.open()
    client = Client()
    task = await attach(stage, client)
    client.may_take.clear()
    ran = await stage.exec("yes | head -c 3000000; echo the end")
    assert len(ran.output) == 3_000_008
    client.may_take.set()
    await client.wait_output(b"the end\r\n")
    assert b"\x1b[2J" in client.output_bytes
    assert len(client.output_bytes) < 1_000_000
    client.leave()
    await task


async def test_viewers_see_the_last_output_of_a_session_that_ends(stage: Stage) -> None:
    await stage.open()
    client = Client()
    task = await attach(stage, client)
    await stage.exec("echo last words")
    await stage.exec("exit 3")
    await task
    assert b"last words\r\n" in client.output_bytes


@contextlib.asynccontextmanager
async def full_screen(bash: Stage, script: str, *keys: bytes) -> AsyncIterator[Client]:
    """Run the script as a full-screen program, and yield a viewer of the session who has typed `keys`."""
    await bash.open()
    (bash.home / "full-screen").write_text(f"printf '\\033[?1049hstarted'; {script}")
    run, exec_client = await bash.begin("bash full-screen", b"started", tty=True)
    viewer = Client()
    for key in keys:
        viewer.send("i", key)
    task = asyncio.create_task(bash.daemon.viewers.attach(viewer, viewer, 24, 80))
    yield viewer
    viewer.leave()
    exec_client.send("k", b"KILL")
    await asyncio.gather(task, run)


async def test_a_full_screen_program_redraws_for_a_new_viewer(bash: Stage) -> None:
    script = "trap 'printf \"\\033[Hdrawn $((++n))\"' WINCH; while :; do read -t 0.05 x; done"
    async with full_screen(bash, script) as viewer:
        await viewer.wait_output(b"started")
        await viewer.wait_output(b"drawn")
        assert viewer.output_bytes.index(b"\x1b[?1049h") < viewer.output_bytes.index(b"started")


async def test_a_replay_repeats_no_terminal_queries(stage: Stage) -> None:
    await stage.open()
    await stage.exec("printf 'a\\033[6nb\\033[cd\\033]11;?\\007e\\n' >/dev/tty")
    client = Client()
    task = await attach(stage, client)
    assert b"abde" in client.output_bytes
    client.leave()
    await task


async def test_logs_show_the_same_as_a_viewer(stage: Stage) -> None:
    await stage.open()
    await stage.exec("echo one; echo two")
    await stage.daemon.line.wait_idle()
    client = Client()
    await stage.daemon.viewers.logs(client, client, follow=False)
    assert b"one\r\ntwo\r\n" in client.output_bytes
    assert b"7717" not in client.output_bytes
    following = Client()
    task = asyncio.create_task(stage.daemon.viewers.logs(following, following, follow=True))
    await following.wait_output(b"two\r\n")
    await stage.exec("echo three")
    await following.wait_output(b"three\r\n")
    following.leave()
    await task


@pytest.mark.parametrize("cols", [20, 80])
async def test_logs_have_all_output_of_a_background_job_during_commands(stage: Stage, cols: int) -> None:
    stage.ring_size = 1 << 24
    await stage.open()
    stage.daemon.terminal.window.resize(24, cols)
    await stage.exec('sh -c \'n=0; until [ -e stop ]; do n=$((n+1)); echo "job $n."; done; echo la""st\' &')
    for _ in range(20):
        await stage.exec("echo one")
    (stage.home / "stop").touch()
    await stage.wait_printed(b"last")
    await stage.daemon.line.wait_idle()
    client = Client()
    await stage.daemon.viewers.logs(client, client, follow=False)
    assert stage.daemon.terminal.ring.start == 0
    # If the terminal's buffer is full, a line may be interrupted by other output.
    whole_lines = set(re.findall(rb"job \d+\.\r", stage.printed()))
    assert len(whole_lines) > 20
    assert whole_lines <= set(re.findall(rb"job \d+\.\r", client.output_bytes))


async def test_keys_are_not_lost_while_no_program_reads_them(bash: Stage) -> None:
    await bash.open()
    client = Client()
    task = await attach(bash, client)
    run = asyncio.create_task(bash.exec("sleep 0.3"))
    await bash.wait_foreground(1)
    for _ in range(10):
        client.send("i", b"#" * 9_000)
    client.send("i", b"\x15echo al''ive\r")
    assert (await run).exit == 0
    await client.wait_output(b"alive\r\n")
    client.leave()
    await task


async def test_input_of_a_new_viewer_follows_its_window_size(bash: Stage) -> None:
    script = 'while read -r line; do echo "$line in $(stty size)"; done'
    async with full_screen(bash, script, b"typed\n") as viewer:
        await viewer.wait_output(b"typed in 24 80")
