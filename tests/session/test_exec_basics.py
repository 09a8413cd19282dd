"""exec: output, exit status and the effects on the shell are those of the same line typed at the prompt."""

import asyncio
import re
from typing import NamedTuple

from tests.collecting import collecting
from tests.session.stage import Stage

# text, exit status, output (None: any output)
LINES: list[tuple[str, int, bytes | None]] = [
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
    ("cat <<EOF 2>/dev/null\nunterminated", 0, None),
    ("for i in 1 2 3; do\n  echo $i\ndone", 0, b"1\n2\n3\n"),
    ("f() { echo in f $1; }; f x", 0, b"in f x\n"),
    ("echo hi # comment", 0, None),
    ("-n", 127, None),
    ("cat", 0, b""),
    ("read x; echo $?", 0, b"1\n"),
    ("echo \u00e9\u20ac\U0001f600", 0, "\u00e9\u20ac\U0001f600\n".encode()),
    ("echo \x01\x02\t\x7f", 0, b"\x01\x02 \x7f\n"),
    ("printf '\\033]7717;E;1;2;0;Z\\007'", 0, b"\x1b]7717;E;1;2;0;Z\x07"),  # the same bytes as a mark of our hooks
    ("printf '\\033]7717;S;'", 0, b"\x1b]7717;S;"),
    ("printf '\\033'", 0, b"\x1b"),
    ("printf '\\033]77'", 0, b"\x1b]77"),
    ("cat bytes", 0, bytes(range(256)) * 300),
    *(
        (f"{'; '.join(['x=' + 'a' * (200_000 // n)] * n)}\necho ${{#x}}", 0, b"%d\n" % (200_000 // n))
        for n in (1, 8000)
    ),
]
UNPARSABLE = [
    *("if", "echo 'unterminated", 'echo "unterminated', "echo ${x", "echo `x"),
    *("echo first\nif true; then", "echo first\n)"),
]


async def test_exec_returns_the_output_and_status_of_the_command(stage: Stage) -> None:
    await stage.open()
    (stage.home / "bytes").write_bytes(bytes(range(256)) * 300)
    with collecting() as row:
        for text, status, output in LINES:
            with row(text[:80]):
                ran = await stage.exec(text)
                assert (ran.exit, ran.by, ran.ended) == (status, "command", False), ran
                assert output is None or ran.output == output
        for text in UNPARSABLE:
            with row(text):
                ran = await stage.exec(text)
                assert (ran.exit, ran.by) == (2, "command")
                assert b"first\n" not in ran.output
                assert ran.output.endswith(b"\n")
                assert (await stage.exec("if true; then echo next; fi")).output == b"next\n"
        with row("NUL"):
            assert (await stage.exec("echo a\0b"))[:3] == (2, b"", "waypoint")


async def test_concurrent_commands_run_one_after_the_other(stage: Stage) -> None:
    await stage.open()
    runs = await asyncio.gather(*(stage.exec(f"sleep 0.01; echo {n}; n=$((n+1))") for n in range(10)))
    assert [run.output for run in runs] == [f"{n}\n".encode() for n in range(10)]
    assert (await stage.exec("echo $n")).output == b"10\n"


class Dialogue(NamedTuple):
    """Commands in one new shell: text, exit status (None: any), output (bytes: exact; str: a regular expression)."""

    name: str
    steps: list[tuple[str, int | None, bytes | str]]
    rc: str = ""
    only: str = ""


BUILTINS = ("builtin", "read", "printf", "local", "eval", "case", "unset", "return", "until", "shift", "trap")
SET_STATE = r"""
x='a b'; export Y=1; declare -i n=5; n=n+2; f() { echo called $1; }; alias hey='echo from alias'; set -- one 'th ree'
set -o noglob; umask 027; ulimit -n 100; trap 'echo bye' USR1; exec 5>fd5; echo into >&5; unset HOME; HOME=/tmp; cd /usr
sleep 1000 &
"""
SHOW_STATE = r"""
pwd; echo "$x"; sh -c 'echo $Y'; echo $n; f me; hey; echo $# "$2"; echo *; umask; ulimit -n; trap | grep bye
echo more >&5; cat "$OLDPWD/fd5"; echo ~; jobs; kill %sleep; wait
"""
STATE = (
    r"^/usr\na b\n1\n7\ncalled me\nfrom alias\n2 th ree\n\*\n0?027\n100\ntrap -- 'echo bye' (SIG)?USR1\ninto\nmore\n"
    r"/tmp\n.*sleep 1000"
)
DIALOGUES = [
    Dialogue("the state of the shell persists", [(SET_STATE, 0, ""), (SHOW_STATE, None, STATE)]),
    Dialogue(
        "arrays and locals are as at top level",
        [
            ("declare -A map=([k]=v); declare list=(1 2 3); readonly fixed=1", 0, b""),
            (
                'echo ${map[k]} ${#list[@]} $fixed "${FUNCNAME[*]}"; local z=1',
                None,
                r"^v 3 1 \n.*only be used in a func",
            ),
            ("return 3; echo after", None, "can only `return' from a function or sourced script"),
        ],
        only="bash",
    ),
    Dialogue(
        "set -x traces the command only",
        [
            ("set -x", 0, ""),
            ("echo traced", 0, r"^(?!.*__wp).*\ntraced\n$"),
            ("echo $-; set +x", 0, r"x[^\n]*\n[^\n]*$"),
            ("echo quiet", 0, b"quiet\n"),
        ],
    ),
    Dialogue(
        "set -u",
        [
            ("set -u", 0, b""),
            ("echo before; echo $no_such_variable; echo after; false", 1, r"^before\n(?!.*after)"),
            ("set +u; echo fine", 0, b"fine\n"),
        ],
    ),
    Dialogue(
        "an ERR trap runs for errors of the command only",
        [("trap 'echo ERR' ERR", 0, b""), ("true", 0, b""), ("false", 1, "ERR\n")],
        only="bash",
    ),
    Dialogue(
        "a DEBUG trap",
        [("trap 'count=$((count+1))' DEBUG", 0, b""), ("echo one; echo two", 0, b"one\ntwo\n")],
        only="bash",
    ),
    Dialogue(
        "zsh options that change the language",
        [("echo one", 0, b"one\n"), ("echo $?", 0, b"0\n")],
        "setopt ksh_arrays sh_word_split ksh_glob glob_subst no_equals csh_junkie_quotes ignore_braces",
        only="zsh",
    ),
    Dialogue(
        "POSIX mode", [("echo one; false", 1, b"one\n"), ("if", 2, ""), ("echo $?", 0, b"2\n")], "set -o posix", "bash"
    ),
    Dialogue(
        "aliases of builtins",
        [("echo fine", 0, b"fine\n")],
        "\n".join(f"alias {one}='echo hijacked'" for one in BUILTINS),
    ),
    Dialogue(
        "functions named like builtins",
        [("echo fine", 0, b"fine\n")],
        "read() { echo hijacked; }\nprintf() { echo hijacked; }\nexport() { echo hijacked; }\n[() { :; }",
        "bash",
    ),
    Dialogue(
        "a shell with redirected output",
        [
            ("exec >all; echo to the file", 0, b""),
            ("grep -a file all >&2", 0, b"to the file\n"),
            ("exec >/dev/tty 2>err", 0, b""),
            ("echo back; echo lost >&2", 0, b"back\n"),
        ],
    ),
    Dialogue(  # documented: bash lets no script assign it
        "PIPESTATUS of the command before is lost",
        [
            ("false | true; echo ${PIPESTATUS[@]}", 0, b"1 0\n"),
            ("false | true", 0, b""),
            ("echo ${PIPESTATUS[@]}", 0, r"^(?!1 0\n)"),
        ],
        only="bash",
    ),
    Dialogue(
        "a command removes the prompts",
        [
            ("PROMPT_COMMAND=; unset PS0 PS1 PS2; unset PROMPT_COMMAND", 0, b""),
            ("echo again", 0, b"again\n"),
            ("PROMPT_COMMAND='echo theirs'", 0, b""),
            ("echo again", 0, b"again\n"),
        ],
        only="bash",
    ),
    Dialogue(
        "the user's own prompt command still runs",
        [("echo $((count > 0)); count=0", 0, b"1\n"), ("(exit 9)", 9, b""), ("echo $count $seen", 0, b"2 0\n")],
        "PROMPT_COMMAND='count=$((count+1)); seen=$?'",
        "bash",
    ),
    Dialogue("TMOUT", [("TMOUT=1", 0, b""), ("unset TMOUT; echo here", 0, b"here\n")], only="bash"),
    Dialogue(
        "read-only variables",
        [
            ("echo $PAGER", 0, b"less\n"),
            ("readonly PROMPT_COMMAND", 0, b""),
            ("echo again", 0, b"again\n"),
            ("env", 0, r"^(?!.*(__wp|WAYPOINT))"),
        ],
        "readonly PAGER=less HISTCONTROL=x PS0=a PS2=b",
        "bash",
    ),
    Dialogue(
        "without job control",
        [("set +m", 0, b""), ("/bin/echo one; sh -c 'exit 3'", 3, b"one\n"), ("echo two", 0, b"two\n")],
    ),
    *(
        Dialogue(modes, [(f"stty {modes} </dev/tty", 0, ""), ("echo one; /bin/echo two", 0, b"one\ntwo\n")])
        for modes in ("raw -echo", "-echo", "-icanon", "ocrnl")
    ),
]


async def test_exec_works_in_shells_with_unusual_settings(stage: Stage) -> None:
    with collecting() as row:
        for dialogue in DIALOGUES:
            if dialogue.only in ("", stage.shell):
                with row(dialogue.name):
                    fresh = await stage.fresh(dialogue.rc)
                    for text, status, output in dialogue.steps:
                        ran = await fresh.exec(text)
                        assert ran.by == "command", (text, ran)
                        assert status is None or ran.exit == status, (text, ran)
                        if isinstance(output, bytes):
                            assert ran.output == output, text
                        else:
                            assert re.search(output, ran.output.decode(), re.DOTALL), (text, ran)


async def test_the_exit_status_is_passed_on_between_exec_and_typed_lines(stage: Stage) -> None:
    await stage.open()
    await stage.exec("(exit 5)")
    assert (await stage.exec("echo $?; (exit 6)")).output == b"5\n"
    mark = len(stage.printed())
    await stage.type(b"echo typed=$?\r")
    await stage.wait_printed(b"typed=6", mark)
    await stage.type(b"(exit 7)\r")
    assert (await stage.exec("echo $?")).output == b"7\n"


async def test_the_history_has_typed_lines_but_no_lines_of_exec(stage: Stage) -> None:
    await stage.open()
    await stage.type(b"echo typed-one\r")
    await stage.wait_printed(b"typed-one\r\n")
    await stage.exec("echo not typed")
    await stage.type(b"echo typed-two\r")
    await stage.wait_printed(b"typed-two\r\n")
    ran = await stage.exec("fc -l 1 2>/dev/null || history")
    lines = [line.split(maxsplit=1)[1] for line in ran.output.decode().splitlines()]
    assert [line.strip() for line in lines] == ["echo typed-one", "echo typed-two"]


async def test_exec_keeps_the_history_setting_of_the_user(bash: Stage) -> None:
    with collecting() as row:
        for setting in ("", "HISTCONTROL=ignoredups", "HISTCONTROL=", "readonly HISTCONTROL=erasedups"):
            with row(setting):
                stage = await bash.fresh(setting)
                await stage.type(b"echo typed-one\r")
                await stage.wait_printed(b"typed-one\r\n")
                first, *lines = (await stage.exec("echo ${HISTCONTROL-unset}; history")).output.decode().splitlines()
                assert first == (setting.partition("=")[2] if setting else "unset")
                assert [line.split(maxsplit=1)[1] for line in lines] == ["echo typed-one"]


async def test_set_e_ends_the_shell_only_when_a_command_fails(stage: Stage) -> None:
    await stage.open()
    await stage.exec("set -e")
    assert (await stage.exec("true; if false; then :; fi; false || echo caught")).output == b"caught\n"
    ran = await stage.exec("false; echo not reached")
    assert (ran.exit, ran.output) == (1, b"")
    assert (ran.ended, stage.new_shell) == ((False, True) if stage.shell == "bash" else (True, False))
