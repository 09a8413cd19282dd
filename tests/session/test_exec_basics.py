"""exec gives exactly what the command printed, and its status, in bash and in zsh."""

import pytest

from tests.session.stage import Stage


@pytest.mark.parametrize(
    ("text", "status", "output"),
    [
        ("echo hi", 0, b"hi\n"),
        ("", 0, b""),
        ("   ", 0, b""),
        ("false", 1, b""),
        ("(exit 77)", 77, b""),
        ("sh -c 'kill -TERM $$'", 143, None),
        ("echo 'a!b' \"c!d\" !!", 0, b"a!b c!d !!\n"),
        ("printf 'no newline'", 0, b"no newline"),
        ("printf '\\r\\n\\n\\r'", 0, b"\r\n\n\r"),
        ("echo err >&2; echo out", 0, b"err\nout\n"),
        ("echo a; echo b\necho c\n\n\necho d", 0, b"a\nb\nc\nd\n"),
        ("echo one \\\ntwo", 0, b"one two\n"),
        ("echo trailing \\", 0, None),
        ("cat <<EOF\n$((1+1))\n\tx\nEOF", 0, b"2\n\tx\n"),
        ("for i in 1 2 3; do\n  echo $i\ndone", 0, b"1\n2\n3\n"),
        ("f() { echo in f $1; }; f x", 0, b"in f x\n"),
        ("echo hi # comment", 0, None),
        ("-n", 127, None),
        ("cat", 0, b""),
        ("read x; echo $?", 0, b"1\n"),
        ("echo \u00e9\u20ac\U0001f600", 0, "\u00e9\u20ac\U0001f600\n".encode()),
        ("echo \x01\x02\t\x7f", 0, b"\x01\x02 \x7f\n"),
        ("printf '\\033]7717;E;1;2;0;Z\\007'", 0, b"\x1b]7717;E;1;2;0;Z\x07"),
        ("printf '\\033]7717;S;'", 0, b"\x1b]7717;S;"),
        ("printf '\\033'", 0, b"\x1b"),
        ("printf '\\033]77'", 0, b"\x1b]77"),
    ],
)
async def test_the_bytes_and_the_status_are_the_commands_own(
    stage: Stage, text: str, status: int, output: bytes | None
) -> None:
    await stage.open()
    ran = await stage.exec(text)
    assert (ran.exit, ran.by, ran.ended) == (status, "command", False), ran
    if output is not None:
        assert ran.output == output
    after = await stage.exec("echo still here")
    assert after.output == b"still here\n"


async def test_all_byte_values_pass_unchanged(stage: Stage) -> None:
    await stage.open()
    (stage.home / "bytes").write_bytes(bytes(range(256)) * 300)
    ran = await stage.exec("cat bytes")
    assert ran.output == bytes(range(256)) * 300


@pytest.mark.soak(part="floods")
async def test_a_flood_of_two_byte_lines_is_byte_exact(stage: Stage) -> None:
    await stage.open()
    ran = await stage.exec("yes | head -c 50000000")
    assert ran.exit == 0
    assert len(ran.output) == 50_000_000
    assert ran.output == b"y\n" * 25_000_000


@pytest.mark.parametrize("lines", [1, 8000])
async def test_two_hundred_thousand_bytes_of_text_run_as_they_are(stage: Stage, lines: int) -> None:
    await stage.open()
    words = "\n".join(f"x{number}=" + "a" * (200_000 // lines) for number in range(lines))
    ran = await stage.exec(f"{words}\necho ${{#x0}}")
    assert ran == (0, f"{200_000 // lines}\n".encode(), "command", False, "")


@pytest.mark.parametrize(
    "text",
    [
        "if",
        "echo 'unterminated",
        'echo "unterminated',
        "echo ${x",
        "echo `x",
        "echo first\nif true; then",
        "echo first\n)",
    ],
)
async def test_text_that_does_not_parse_gives_two_and_runs_nothing(stage: Stage, text: str) -> None:
    await stage.open()
    ran = await stage.exec(text)
    assert (ran.exit, ran.by) == (2, "command")
    assert b"first\n" not in ran.output
    assert ran.output.endswith(b"\n")
    after = [await stage.exec(again) for again in ("{ echo next; }", "if true; then echo next; fi")]
    assert [run.output for run in after] == [b"next\n", b"next\n"]


async def test_a_nul_in_the_text_is_refused(stage: Stage) -> None:
    await stage.open()
    ran = await stage.exec("echo a\0b")
    assert (ran.exit, ran.by, ran.output) == (2, "waypoint", b"")


async def test_an_unterminated_here_document_ends_with_the_text(stage: Stage) -> None:
    await stage.open()
    ran = await stage.exec("cat <<EOF\nline")
    assert b"line" in ran.output
    assert (await stage.exec("echo next")).output == b"next\n"


async def test_commands_queue_behind_each_other(stage: Stage) -> None:
    import asyncio

    await stage.open()
    runs = await asyncio.gather(*(stage.exec(f"sleep 0.01; echo {n}; n=$((n+1))") for n in range(10)))
    assert [run.output for run in runs] == [f"{n}\n".encode() for n in range(10)]
    assert (await stage.exec("echo $n")).output == b"10\n"


async def test_pagers_do_not_page_and_git_does_not_ask(stage: Stage) -> None:
    await stage.open("export PAGER=less\nMANPAGER=mine")
    show = 'echo "$PAGER ${GIT_PAGER-unset} $MANPAGER $SYSTEMD_PAGER ${GIT_TERMINAL_PROMPT-unset}"; env | grep -c PAGER'
    assert (await stage.exec(show)).output == b"cat cat cat cat 0\n4\n"
    shown = await stage.exec(show, tty=True)
    assert shown.output.replace(b"\r", b"") == b"less unset mine  unset\n1\n"


async def test_a_pager_that_the_command_sets_stays(stage: Stage) -> None:
    await stage.open()
    await stage.exec("export PAGER=most; unset GIT_PAGER")
    ran = await stage.exec('echo "$PAGER ${GIT_PAGER-unset}"', tty=True)
    assert ran.output == b"most unset\r\n"
